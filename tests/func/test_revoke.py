"""A new policy ends the sessions that it does not allow any more, at once, and no others."""
import base64
import hashlib
import os
import random
import socket
import threading
import time

import pytest

from node import SLOW, HttpOrigin, Origin, block, echo, policy, snapshot, wait_for


def basic(name, password):
    return "Proxy-Authorization: Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def user(password="p", **more):
    return {"password": password, "policy": "default", **more}


class Stream(threading.Thread):
    """Sends and receives random data through an echo origin until told to stop; keeps both hashes."""

    def __init__(self, s, seed):
        super().__init__(daemon=True)
        self.socket, self.seed = s, seed
        self.sent, self.got = hashlib.sha256(), hashlib.sha256()
        self.done = threading.Event()
        self.ended = None  # when the connection broke
        self.moved = 0
        self.start()

    def run(self):
        rng = random.Random(self.seed)
        try:
            while not self.done.is_set():
                data = rng.randbytes(rng.randrange(1, 20000))
                self.sent.update(data)
                self.socket.sendall(data)
                left = len(data)
                while left:
                    part = self.socket.recv(left)
                    if not part:
                        raise ConnectionError("ended")
                    self.got.update(part)
                    left -= len(part)
                self.moved += len(data)
                time.sleep(0.02)
        except OSError:
            self.ended = time.monotonic()
        self.socket.close()


def open_streams(node, port, name, n, password="p", way="socks", host="127.0.0.1"):
    streams = []
    for i in range(n):
        if way == "socks" or (way == "both" and i % 2):
            rep, s = node.socks(host, port, user=name, password=password)
            assert rep == 0
        else:
            s = node.connect()
            s.sendall(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: x\r\n{basic(name, password)}\r\n\r\n".encode())
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += s.recv(1)
            assert b" 200 " in head
        s.settimeout(60)
        streams.append(Stream(s, f"{name}{i}"))
    return streams


@pytest.mark.threads
@pytest.mark.parametrize("recheck", [False, True])
def test_two_hundred_streams(start, recheck):
    node = start(doc=snapshot({n: user() for n in "abcd"}), recheck=recheck)
    with Origin(echo) as origin:
        streams = {n: open_streams(node, origin.port, n, 50, way="both") for n in "abcd"}
        wait_for(lambda: all(s.moved > 0 for group in streams.values() for s in group), 30, "all streams")
        before = {s: s.moved for s in streams["d"]}
        doc = snapshot({"b": user(expire="2001-01-01"), "c": user(policy="strict"), "d": user(), "e": user()},
                       policies={"default": policy(), "strict": policy(block("127.0.0.0/8"))}, version=2)
        node.apply(doc)
        swapped = time.monotonic()
        gone = streams["a"] + streams["b"] + (streams["c"] if recheck else [])
        wait_for(lambda: all(s.ended for s in gone), 10, "the end of the streams")
        assert max(s.ended for s in gone) - swapped < 2
        # New ones of the new user, none of the others.
        streams["e"] = open_streams(node, origin.port, "e", 1)
        assert node.socks("127.0.0.1", origin.port, user="a")[0] == -1
        assert node.socks("127.0.0.1", origin.port, user="b")[0] == -1
        assert node.socks("127.0.0.1", origin.port, user="c")[0] == 2
        stay = streams["d"] + streams["e"] + ([] if recheck else streams["c"])
        wait_for(lambda: all(s.moved > before.get(s, 0) + 50000 for s in stay), 30, "the others")
        for s in stay:
            s.done.set()
        for s in stay:
            s.join(30)
            assert s.ended is None and s.sent.digest() == s.got.digest()
    why = {"a": "user no longer exists", "b": "user expired", "c": "blocked by policy"}
    for name in "abc" if recheck else "ab":
        node.wait_records(50, username=name, message=why[name])
    assert node.metrics()["culvert_sessions_revoked_total"] == len(gone)


PLAIN_SHA = "sha256:00ff:" + hashlib.sha256(b"\x00\xffp").hexdigest()


@pytest.mark.parametrize("old,new", [("p", "other"), (PLAIN_SHA, "sha256:01:" + hashlib.sha256(b"\x01q").hexdigest()),
                                     ("p", PLAIN_SHA)], ids=["plain", "hash", "form"])
def test_password_change(start, old, new):
    """Another password, or another form of it, ends what was opened with the one before."""
    node = start(doc=snapshot({"u": user(old), "v": user()}))
    with Origin(echo) as origin:
        gone = open_streams(node, origin.port, "u", 3, way="both")
        stay = open_streams(node, origin.port, "v", 3, way="both")
        wait_for(lambda: all(s.moved for s in gone + stay), what="the streams")
        node.apply(snapshot({"u": user(old, max_connections=7), "v": user()}, version=2))
        time.sleep(0.6)
        assert not any(s.ended for s in gone + stay)
        node.apply(snapshot({"u": user(new), "v": user()}, version=3))
        swapped = time.monotonic()
        wait_for(lambda: all(s.ended for s in gone), what="the end")
        assert max(s.ended for s in gone) - swapped < 2
        assert not any(s.ended for s in stay)
        for s in stay:
            s.done.set()
            s.join()
    node.wait_records(3, username="u", message="password has changed")


def test_trusted_user_has_no_password(start):
    """Sessions of a listener without login are not bound to a password, but to the user."""
    node = start(doc=snapshot({"u": user()}),
                 listeners=[{"name": "main", "listen": "127.0.0.1:0", "no_auth_user": "u"}])
    with Origin(echo) as origin:
        rep, s = node.socks("127.0.0.1", origin.port, user=None)
        assert rep == 0
        node.apply(snapshot({"u": user("new")}, version=2))
        time.sleep(0.6)
        s.sendall(b"x")
        assert s.recv(1) == b"x"
        node.apply(snapshot({"v": user()}, version=3))
        s.settimeout(2)
        with pytest.raises(ConnectionResetError):
            if s.recv(1) == b"":
                raise ConnectionResetError


def test_keep_alive_of_a_user_who_is_gone(start):
    """A connection that is kept alive serves no request of a user who is gone."""
    with HttpOrigin() as web:
        node = start(doc=snapshot({"u": user(), "v": user()}))

        def ask(stream, s, name):
            s.sendall(f"GET http://127.0.0.1:{web.port}/ HTTP/1.1\r\nHost: x\r\n{basic(name, 'p')}\r\n\r\n".encode())
            status = int(stream.readline().split()[1])
            length = 0
            while (line := stream.readline()) != b"\r\n":
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            stream.read(length)
            return status
        s = node.connect()
        stream = s.makefile("rb")
        assert ask(stream, s, "u") == 200 and ask(stream, s, "u") == 200
        assert web.accepted == 1
        node.apply(snapshot({"v": user()}, version=2))
        time.sleep(0.6)
        assert ask(stream, s, "u") == 407
        assert len(web.requests) == 2
        # The same connection may still be used by somebody else; the origin's is not shared.
        assert ask(stream, s, "v") == 200
        assert web.accepted == 2


def test_transfer_in_forward_state_ends(start):
    """A request that is under way ends with its user."""
    release = threading.Event()

    def slow(conn):
        conn.recv(65536)
        conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b"x" * 1000)
        release.wait(20)
    with Origin(slow) as web:
        node = start(doc=snapshot({"u": user()}))
        s = node.connect()
        s.sendall(f"GET http://127.0.0.1:{web.port}/ HTTP/1.1\r\nHost: x\r\n{basic('u', 'p')}\r\n\r\n".encode())
        assert s.recv(100)
        node.apply(snapshot({"v": user()}, version=2))
        s.settimeout(2)
        try:
            while s.recv(65536):
                pass
        except ConnectionResetError:
            pass
        release.set()
        node.wait_records(1, username="u", message="user no longer exists")


def test_max_connections_lowered(start):
    """What runs goes on; new ones are refused until there are fewer."""
    node = start(doc=snapshot({"u": user(max_connections=10)}))
    with Origin(echo) as origin:
        streams = open_streams(node, origin.port, "u", 8)
        wait_for(lambda: all(s.moved for s in streams), what="the streams")
        node.apply(snapshot({"u": user(max_connections=3)}, version=2))
        time.sleep(0.6)
        assert not any(s.ended for s in streams)
        assert node.socks("127.0.0.1", origin.port)[0] == 2
        for s in streams[:5]:
            s.done.set()
            s.join()
        wait_for(lambda: len(node.sessions()) == 3, what="five ends")
        assert node.socks("127.0.0.1", origin.port)[0] == 2
        streams[5].done.set()
        streams[5].join()
        wait_for(lambda: len(node.sessions()) == 2, what="one more end")
        assert node.socks("127.0.0.1", origin.port)[0] == 0
        for s in streams[6:]:
            s.done.set()
            s.join()


def test_throttled_session_is_ended(start):
    """Also one that waits for its user's rate."""
    node = start(doc=snapshot({"u": user(down_rate=10)}))

    def source(conn):
        while True:
            conn.sendall(b"x" * 65536)
    with Origin(source) as origin:
        sockets = [node.socks("127.0.0.1", origin.port)[1] for _ in range(20)]
        node.apply(snapshot({"v": user()}, version=2))
        swapped = time.monotonic()
        wait_for(lambda: not node.sessions(), what="the end")
        assert time.monotonic() - swapped < 2 * SLOW
        for s in sockets:
            s.close()
