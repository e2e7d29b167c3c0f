"""Networks that misbehave, in a namespace of their own: black holes, rejects, vanished peers, slow resolvers."""
import contextlib
import os
import socket
import struct
import subprocess
import threading
import time

import pytest

from node import Node, SLOW, recv_all, recv_exact, snapshot, socks_auth, socks_greeting, socks_request, wait_for

pytestmark = pytest.mark.netns


def ip(*args):
    subprocess.run(["ip", *args], check=True, capture_output=True)


@contextlib.contextmanager
def namespace():
    """Enter a fresh network namespace in this thread: loopback up, 192.0.2.0/24 towards a cable that nobody listens on."""
    name = f"cvt{os.getpid()}-{threading.get_ident() % 10000}"
    ip("netns", "add", name)
    old = os.open("/proc/self/ns/net", os.O_RDONLY)
    try:
        subprocess.run(["nsenter", f"--net=/run/netns/{name}", "true"], check=True)
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        fd = os.open(f"/run/netns/{name}", os.O_RDONLY)
        assert libc.setns(fd, 0) == 0
        os.close(fd)
        ip("link", "set", "lo", "up")
        ip("link", "add", "d0", "type", "veth", "peer", "name", "d1")
        ip("link", "set", "d1", "up")
        ip("link", "set", "d0", "up")
        ip("addr", "add", "192.0.2.1/24", "dev", "d0")
        ip("addr", "add", "2001:db8::1/64", "dev", "d0", "nodad")
        yield name
    finally:
        libc.setns(old, 0)
        os.close(old)
        ip("netns", "del", name)


class Dns(threading.Thread):
    """A resolver: zone maps (name, type) to a list of addresses, "silent", or a function."""

    def __init__(self, zone):
        super().__init__(daemon=True)
        self.zone = zone
        self.queries = []
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.start()

    def run(self):
        while True:
            try:
                data, peer = self.socket.recvfrom(2048)
            except OSError:
                return
            labels, i = [], 12
            while data[i]:
                labels.append(data[i + 1:i + 1 + data[i]].decode())
                i += data[i] + 1
            qtype, = struct.unpack(">H", data[i + 1:i + 3])
            name = ".".join(labels).lower()
            self.queries.append((name, qtype))
            answer = self.zone.get((name, qtype))
            if callable(answer):
                answer = answer()
            if answer == "silent":
                continue
            known = any(n == name for n, _ in self.zone)
            records = b""
            for address in answer or []:
                raw = socket.inet_pton(socket.AF_INET if qtype == 1 else socket.AF_INET6, address)
                records += b"\xc0\x0c" + struct.pack(">HHIH", qtype, 1, 1, len(raw)) + raw
            flags = 0x8180 if known else 0x8183
            self.socket.sendto(data[:2] + struct.pack(">HHHHH", flags, 1, len(answer or []), 0, 0) + data[12:i + 5] + records, peer)


A, AAAA = 1, 28


def allow_all(**more):
    return {"direct": {"allow": ["0.0.0.0/0", "::/0"]}, **more}


def test_replies_by_kind_of_failure(tmp_path):
    with namespace():
        ip("route", "add", "unreachable", "198.51.100.1/32")
        ip("route", "add", "prohibit", "198.51.100.4/32")
        dns = Dns({})
        with Node(tmp_path, **allow_all(limits={"connect_timeout": "700ms"}, dns={"servers": [f"127.0.0.1:{dns.port}"]})) as node:
            for target, reps, statuses in (("127.0.0.1", (5,), (502,)), ("198.51.100.1", (4,), (502,)),
                                           ("192.0.2.77", (4, 6), (504,)), ("nx.test", (4,), (502,)), ("203.0.113.9", (3,), (502,))):
                rep, s = node.socks(target, 81)
                assert rep in reps, (target, rep)
                s = node.connect()
                s.sendall(f"CONNECT {target}:81 HTTP/1.1\r\nHost: x\r\nProxy-Authorization: Basic dTpw\r\n\r\n".encode())
                status = int(s.recv(4096).split()[1])
                assert status in statuses, (target, status)


def test_happy_eyeballs_and_filter_per_candidate(tmp_path):
    with namespace():
        zone = {("two.test", A): ["127.0.0.1"], ("two.test", AAAA): ["2001:db8::77"],
                ("mixed.test", A): ["10.9.9.9", "192.0.2.1"], ("rebind.test", A): ["127.0.0.1"],
                ("mapped.test", AAAA): ["::ffff:127.0.0.1"], ("nat.test", AAAA): ["64:ff9b::7f00:1"]}
        dns = Dns(zone)
        listener = socket.create_server(("0.0.0.0", 0))
        port = listener.getsockname()[1]
        config = {"workers": 1, "dns": {"servers": [f"127.0.0.1:{dns.port}"]},
                  "direct": {"allow": ["127.0.0.0/8", "2001:db8::/32", "192.0.2.0/24"], "prefer": "ipv6"}}
        with Node(tmp_path / "a", **config) as node:
            started = time.monotonic()
            assert node.socks("two.test", port)[0] == 0
            assert 0.2 < time.monotonic() - started < 2 * SLOW  # not the ten seconds of a dead address
            assert node.socks("mixed.test", port)[0] == 0
        config["direct"] = {"allow": ["192.0.2.0/24"]}
        with Node(tmp_path / "b", **config) as node:
            for name in ("rebind.test", "mapped.test", "nat.test", "localhost"):
                assert node.socks(name, port)[0] == 2, name
            assert node.socks("mixed.test", port)[0] == 0
            before = len(dns.queries)
            assert node.socks("mixed.test", port)[0] == 0
            assert len(dns.queries) == before, "the answer was to be cached"
        listener.close()


def test_one_resolution_per_dial(tmp_path):
    with namespace():
        answers = iter([["192.0.2.1"]] + [["127.0.0.1"]] * 20)
        dns = Dns({("flip.test", A): lambda: next(answers)})
        listener = socket.create_server(("192.0.2.1", 0))
        with Node(tmp_path, dns={"servers": [f"127.0.0.1:{dns.port}"]}, direct={"allow": ["192.0.2.0/24"]}) as node:
            assert node.socks("flip.test", listener.getsockname()[1])[0] == 0
            assert [q for q in dns.queries if q[1] == A] == [("flip.test", A)]
            time.sleep(1.2)
            assert node.socks("flip.test", listener.getsockname()[1])[0] == 2


def test_a_silent_resolver_stops_nobody_else(tmp_path, echo_origin):
    dns = Dns({(f"n{i}.test", t): "silent" for i in range(200) for t in (A, AAAA)})
    with Node(tmp_path, workers=1, dns={"servers": [f"127.0.0.1:{dns.port}"], "timeout": "10s", "attempts": 1},
              limits={"connect_timeout": "10s"}) as node:
        waiting = []
        for i in range(200):
            s = node.connect()
            s.sendall(socks_greeting("u") + socks_auth("u", "p") + socks_request(f"n{i}.test", 80))
            recv_exact(s, 4)
            waiting.append(s)
        rep, s = node.socks("127.0.0.1", echo_origin.port)
        worst = 0
        for _ in range(200):
            started = time.monotonic()
            s.sendall(b"x")
            recv_exact(s, 1)
            worst = max(worst, time.monotonic() - started)
        assert worst < 0.5 * SLOW
        assert len([r for r in node.sessions() if r["state"] == "dial"]) == 200
        for w in waiting:
            w.close()


def test_vanished_peers_are_noticed(tmp_path):
    """The client's side goes away without a word; with unsent data it is TCP_USER_TIMEOUT that notices.

    The times are the defaults' own (a minute and two), so this checks the socket options that make it so.
    """
    with namespace():
        listener = socket.create_server(("127.0.0.1", 0))
        with Node(tmp_path) as node:
            _, client = node.socks("127.0.0.1", listener.getsockname()[1])

            def tuned():
                out = subprocess.run(["ss", "-tnoH", "state", "established"], capture_output=True, text=True).stdout
                return [line for line in out.splitlines() if "keepalive" in line and
                        (f":{node.port}" in line or f":{listener.getsockname()[1]}" in line)]

            wait_for(lambda: len(tuned()) >= 2, timeout=25, what="keepalive on both sides", step=0.3)
            client.close()
        listener.close()
