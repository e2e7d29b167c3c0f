"""A receiver that does not read stops its own sender and nobody else, whatever the way out; nothing piles up."""
import os
import threading
import time

import pytest

from node import SANITIZED, Node, Origin, echo, policy, recv_exact, snapshot, wait_for
from peers import Certificates, free_port, upstream

SESSIONS = 40
BLOCK = bytes(1 << 20)
# What the node may keep for one blocked session: its record, a read buffer and, through TLS, records on both sides.
KIB_EACH = 200


@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    return Certificates(tmp_path_factory.mktemp("certs"))


@pytest.fixture(scope="module")
def far(certs, tmp_path_factory):
    """The proxy behind the node, another one: (plain port, TLS port)."""
    pem = certs.make("far", "DNS:localhost,IP:127.0.0.1")
    with Node(tmp_path_factory.mktemp("far"), users={"far": "p"}, listeners=[
            {"name": "main", "protocol": "mixed", "listen": "127.0.0.1:0"},
            {"name": "tls", "protocol": "mixed", "listen": "127.0.0.1:0", "tls": {"cert": pem, "key": pem}}]) as node:
        yield node.ports["main"], node.ports["tls"]


def ways(kind, far):
    plain, tls = far
    login = ("far", "p")
    through = {
        "http": lambda: upstream("http", plain, *login),
        "socks5": lambda: upstream("socks5", plain, *login),
        "https": lambda: upstream("http", tls, *login, host="localhost", tls=True),
        "socks5 over tls": lambda: upstream("socks5", tls, *login, host="localhost", tls=True),
        "chain": lambda: {"type": "chain", "members": [
            {"id": "dead", "priority": 1, "backend": upstream("http", free_port())["backend"]},
            {"id": "good", "priority": 2, "backend": upstream("socks5", plain, *login)["backend"]}]},
    }
    if kind == "direct":
        return snapshot()
    return snapshot(policies={"default": policy(default="way")}, egresses={"way": through[kind]()})


def still(total, step=0.2):
    """Wait until a count that grows no longer does; it."""
    last = -1
    while last != (last := total()):
        time.sleep(step)
    return last


@pytest.mark.rss
@pytest.mark.parametrize("direction", ["down", "up"])
@pytest.mark.parametrize("kind", ["direct", "http", "socks5", "https", "socks5 over tls", "chain"])
def test_nobody_reads(start, certs, far, kind, direction):
    stop = threading.Event()

    def flood(conn):
        """One that sends as much as it can, and reads nothing."""
        conn.sendall(b"!")
        conn.settimeout(0.2)
        while direction == "down" and not stop.is_set():
            try:
                conn.send(BLOCK)
            except TimeoutError:
                pass
        stop.wait(60)

    node = start(doc=ways(kind, far), env={"SSL_CERT_FILE": certs.ca})
    with Origin(flood) as o, Origin(echo) as e:
        def connect(port):
            rep, s = node.socks("127.0.0.1", port)
            assert rep == 0
            return s

        recv_exact(connect(o.port), 1)
        before = node.rss_kib()
        clients = [connect(o.port) for _ in range(SESSIONS)]
        for s in clients:
            recv_exact(s, 1)
            s.setblocking(False)

        def moved():
            for s in clients if direction == "up" else ():
                try:
                    s.send(BLOCK)
                except BlockingIOError:
                    pass
            return sum(r["bytes_" + direction] for r in node.sessions())
        wait_for(lambda: moved() > SESSIONS * 65536, timeout=30, what="the flood to fill up")
        total = still(moved)
        grown = node.rss_kib() - before
        print(f"{grown / SESSIONS:.1f} KiB for each of {SESSIONS} sessions, {total >> 20} MiB are on their way")
        if not SANITIZED:
            assert grown < SESSIONS * KIB_EACH
        # Somebody else is served meanwhile, and nobody spins.
        payload = os.urandom(200000)
        other = connect(e.port)
        other.settimeout(20)
        other.sendall(payload)
        assert recv_exact(other, len(payload)) == payload
        spent = node.cpu_seconds()
        time.sleep(1)
        assert node.cpu_seconds() - spent < 0.5, "processor time is used while everything is blocked"
        stop.set()
        for s in [*clients, other]:
            s.close()
