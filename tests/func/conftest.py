"""Fixtures; what they start is ended by them, also when a test fails."""
import os
import sys

import pytest

sys.path.insert(0, os.path.dirname(__file__))

from node import HttpOrigin, Node, Origin, echo  # noqa: E402


@pytest.fixture
def start(tmp_path):
    """start(**options) -> Node; each call starts another one."""
    nodes = []

    def make(**options):
        node = Node(tmp_path / f"node{len(nodes)}", **options)
        nodes.append(node)
        return node

    yield make
    failed = None
    for node in reversed(nodes):
        try:
            node.__exit__(None)
        except AssertionError as e:
            failed = failed or e
    if failed:
        raise failed


@pytest.fixture
def node(start):
    """A node with user u / p, whose policy is direct."""
    return start()


@pytest.fixture
def echo_origin():
    with Origin(echo) as origin:
        yield origin


@pytest.fixture
def web():
    with HttpOrigin() as origin:
        yield origin


def pytest_collection_modifyitems(items):
    if os.geteuid() != 0:
        for item in items:
            if item.get_closest_marker("netns"):
                item.add_marker(pytest.mark.skip(reason="needs root"))
