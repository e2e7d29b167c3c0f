"""Guessing of passwords is held up, connections that come too fast are refused; nobody else notices."""
import base64
import socket
import time

import pytest

from node import SANITIZED, Origin, echo, recv_exact, snapshot, socks_auth, socks_greeting, wait_for


def login(node, user, password, source="127.0.0.1"):
    """SOCKS5 login from an address of loopback: True or False."""
    s = socket.create_connection(("127.0.0.1", node.port), timeout=20, source_address=(source, 0))
    try:
        s.sendall(socks_greeting(user) + socks_auth(user, password))
        assert recv_exact(s, 2) == b"\x05\x02"
        return recv_exact(s, 2) == b"\x01\x00"
    finally:
        s.close()


def http_status(node, user, password, source="127.0.0.1"):
    s = socket.create_connection(("127.0.0.1", node.port), timeout=20, source_address=(source, 0))
    token = base64.b64encode(f"{user}:{password}".encode()).decode()
    s.sendall(f"CONNECT 127.0.0.1:1 HTTP/1.1\r\nHost: x\r\nProxy-Authorization: Basic {token}\r\n\r\n".encode())
    status = int(s.makefile("rb").readline().split()[1])
    s.close()
    return status


def http_retry_after(node, user, password):
    """Seconds that an answer tells to wait; None: it tells nothing."""
    s = socket.create_connection(("127.0.0.1", node.port), timeout=20)
    token = base64.b64encode(f"{user}:{password}".encode()).decode()
    s.sendall(f"CONNECT 127.0.0.1:1 HTTP/1.1\r\nHost: x\r\nProxy-Authorization: Basic {token}\r\n\r\n".encode())
    with s, s.makefile("rb") as answer:
        head = iter(answer.readline, b"\r\n")
        found = [line.split(b":")[1] for line in head if line.lower().startswith(b"retry-after:")]
    return int(found[0]) if found else None


def node_with(start, **login_options):
    return start(users={"u": "p", "v": "p"},
                 login={"failures": 5, "source_failures": 20, "window": "60s", "backoff": "1s", **login_options})


def test_user_and_source(start):
    node = node_with(start)
    for i in range(5):
        assert not login(node, "u", f"wrong{i}")
    # Refused now, and nobody but this pair.
    assert not login(node, "u", "p")
    assert http_status(node, "u", "p") == 429
    assert http_retry_after(node, "u", "p") == 1
    assert login(node, "u", "p", source="127.0.0.2")
    assert login(node, "v", "p")
    metrics = node.metrics()
    assert metrics["culvert_auth_backoff_total"] == 3
    assert metrics["culvert_auth_failed_total"] == 5
    node.wait_records(3, message="too many failed logins, try again later", failure_stage="auth")
    assert "too many wrong logins, refusing more client='127.0.0.1:" in node.log()
    assert "wrong0" not in node.log()
    # The pause ends, also for one that has kept trying, and the right login clears the slate.
    wait_for(lambda: login(node, "u", "p"), 5, "the end of the pause")
    for i in range(4):
        assert not login(node, "u", f"again{i}")
    assert login(node, "u", "p")


def test_pauses_grow(start):
    node = node_with(start, backoff="300ms", backoff_max="2s")
    for i in range(5):
        login(node, "u", f"wrong{i}")
    pauses = []
    for i in range(5):
        begin = time.monotonic()
        # A wrong guess is counted only once it is looked at: http tells 407 from 429.
        wait_for(lambda: http_status(node, "u", f"next{i}") == 407, 10, "the next look")
        pauses.append(time.monotonic() - begin)
    print([round(p, 2) for p in pauses])
    for got, want in zip(pauses, (0.3, 0.6, 1.2, 2.0, 2.0)):
        assert want - 0.25 <= got <= want + 1.5


def test_same_wrong_password_is_one_guess(start):
    """A browser that goes on using an old password does not shut its user out."""
    node = node_with(start)
    for _ in range(50):
        assert not login(node, "u", "old")
    assert login(node, "u", "p")
    # The old one becomes right by a new policy.
    for _ in range(3):
        assert not login(node, "u", "old")
    node.apply(snapshot({"u": "old"}, version=2))
    assert login(node, "u", "old")


def test_source(start):
    """Many users from one place: who is known there goes on, others wait; other places do not."""
    node = node_with(start)
    assert login(node, "v", "p")
    for i in range(20):
        assert not login(node, f"guess{i}", "x")
    assert not login(node, "u", "p")
    assert login(node, "v", "p")
    assert login(node, "u", "p", source="127.0.0.9")


def test_off(start):
    node = node_with(start, failures=0, source_failures=0)
    for i in range(60):
        assert not login(node, "u", f"wrong{i}")
    assert login(node, "u", "p")
    assert node.metrics()["culvert_auth_backoff_total"] == 0


def test_default_is_kind(start):
    """With the defaults a dozen people behind one address may each err a few times."""
    node = start(users={f"u{i}": "p" for i in range(12)})
    for i in range(12):
        for k in range(6):
            assert not login(node, f"u{i}", f"wrong{k}")
        assert login(node, f"u{i}", "p")


def test_connections_per_second(start, echo_origin):
    node = start(limits={"source_connections_per_second": 5, "connections_per_second": 1000})

    def attempt(source):
        s = socket.create_connection(("127.0.0.1", node.port), timeout=20, source_address=(source, 0))
        try:
            s.sendall(b"\x05\x01\x02")
            return s.recv(2) == b"\x05\x02"
        except ConnectionResetError:
            return False
        finally:
            s.close()
    begin = time.monotonic()
    came = sum(attempt("127.0.0.1") for _ in range(60))
    took = time.monotonic() - begin
    assert 10 <= came <= 11 + 5 * took
    assert attempt("127.0.0.2")
    metrics = node.metrics()
    assert metrics["culvert_connections_limit_total"] == 60 - came
    assert metrics['culvert_refused_total{listener="main",stage="listener"}'] == 60 - came
    assert "connections come too fast, refusing listener='main' client='127.0.0.1:" in node.log()
    wait_for(lambda: attempt("127.0.0.1"), what="the next one")


def test_connections_per_second_of_the_node(start):
    node = start(limits={"connections_per_second": 10})
    came = 0
    for i in range(100):
        s = socket.create_connection(("127.0.0.1", node.port), timeout=20, source_address=(f"127.0.1.{i}", 0))
        try:
            s.sendall(b"\x05\x01\x02")
            came += s.recv(2) == b"\x05\x02"
        except ConnectionResetError:
            pass
        s.close()
    assert 20 <= came <= 60


@pytest.mark.rss
@pytest.mark.threads
def test_many_failures_leave_nothing(start):
    """Ten thousand wrong logins of as many names: memory and descriptors are what they were."""
    node = start(users={"u": "p"}, login={"source_failures": 0})
    for i in range(500):
        login(node, f"warm{i}", "x")
    wait_for(lambda: not node.sessions(), what="quiet")
    fds, rss = node.fds(), node.rss_kib()
    for i in range(5000):
        assert not login(node, f"name{i}", "x", source=f"127.0.{i % 50}.{i % 200 + 1}")
    wait_for(lambda: not node.sessions(), what="quiet")
    assert node.fds() <= fds + 2
    if not SANITIZED:
        assert node.rss_kib() < rss + 4096
