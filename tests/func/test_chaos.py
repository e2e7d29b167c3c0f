"""Everything at once: clients that misbehave in every way, upstreams that die, swaps, reloads and takeovers, while good
clients transfer what they want; afterwards nothing is left over. CULVERT_CHAOS_SECONDS makes it longer, CULVERT_CHAOS_SEED
repeats one."""
import contextlib
import hashlib
import os
import random
import signal
import socket
import ssl
import struct
import threading
import time

import pytest

from node import SLOW, Node, Origin, echo, policy, recv_exact, snapshot, socks_auth, socks_greeting, socks_request, wait_for
from peers import Certificates, Microsocks, free_port, upstream
from takeover import ended, take_over
from udp import Association, UdpServer, header

SECONDS = float(os.environ.get("CULVERT_CHAOS_SECONDS", "12"))
SEED = int(os.environ.get("CULVERT_CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)


def document(version, far_port, rng):
    users = {"good": {"password": "p", "policy": "direct"},
             "wild": {"password": "p", "policy": "direct", "max_connections": 50},
             "up": {"password": "p", "policy": "up"}, "chain": {"password": "p", "policy": "chain"}}
    if version % 3 == 0:  # users whose sessions end now and then
        users.pop(rng.choice(["wild", "up", "chain"]))
    if version % 4 == 1:
        users.get("wild", {})["down_rate"] = rng.choice([0, 50000, 5000000])
    far = upstream("socks5", far_port, "a", "b")["backend"]
    return snapshot(users=users, version=version, policies={
        "direct": policy({"selectors": ["blocked.test"], "action": {"type": "block"}}),
        "up": policy(default="up"), "chain": policy(default="chain")}, egresses={
        "up": {"type": "upstream", "backend": far},
        "chain": {"type": "chain", "members": [
            {"id": "dead", "priority": 1, "backend": upstream("http", 1)["backend"]},
            {"id": "live", "priority": 2, "backend": far}]}})


class Wild:
    """One misbehaving client after another."""

    def __init__(self, node, echo_port, udp, seed):
        self.node, self.echo_port, self.udp, self.rng, self.done = node, echo_port, udp, random.Random(seed), 0

    def connect(self):
        s = socket.create_connection(("127.0.0.1", self.node.ports[self.rng.choice(["main", "tls"])]), 5 * SLOW)
        s.settimeout(self.rng.choice([0.01, 0.1, 1]))
        return s

    def pieces(self, s, data):
        at = 0
        while at < len(data):
            n = self.rng.choice([1, 2, 7, 100, len(data)])
            s.sendall(data[at:at + n])
            at += n

    def leave(self, s):
        how = self.rng.randrange(4)
        if how == 0:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif how == 1:
            s.shutdown(socket.SHUT_WR)
            s.recv(1000)
        elif how == 2:
            s.recv(10)

    def user(self):
        return self.rng.choice(["wild", "up", "chain", "nobody"])

    def garbage(self, s):
        self.pieces(s, self.rng.randbytes(self.rng.choice([1, 3, 40, 3000])))

    def socks(self, s):
        target = self.rng.choice([("127.0.0.1", self.echo_port), ("127.0.0.1", 1), ("blocked.test", 80), ("no.invalid", 80),
                                  ("169.254.169.254", 80), ("10.0.0.1", 22)])
        wish = socks_greeting("x") + socks_auth(self.user(), self.rng.choice(["p", "p", "wrong"])) + socks_request(*target)
        wish += self.rng.randbytes(self.rng.choice([0, 5, 5000]))
        self.pieces(s, wish[:self.rng.randrange(len(wish) + 1)] if self.rng.random() < 0.3 else wish)
        self.read_some(s)

    def http(self, s):
        rng = self.rng
        head = [rng.choice([b"GET http://127.0.0.1:%d/ HTTP/1.1", b"CONNECT 127.0.0.1:%d HTTP/1.1", b"POST http://127.0.0.1:%d/ HTTP/1.0",
                            b"GET / HTTP/9.%d", b"GET http://x:%d@y/ HTTP/1.1"]) % self.echo_port, b"Host: x",
                b"Proxy-Authorization: Basic " + rng.choice([b"d2lsZDpw", b"d2lsZDp4", b"!", b"dXA6cA=="])]
        head += rng.sample([b"Content-Length: 5", b"Content-Length: 6", b"Transfer-Encoding: chunked", b"Connection: close",
                            b"Transfer-Encoding: chunked, chunked", b" folded", b"X: " + b"y" * rng.choice([1, 9000]),
                            b"Expect: 100-continue", b"Upgrade: websocket", b"bad name: x"], rng.randrange(4))
        self.pieces(s, b"\r\n".join(head) + rng.choice([b"\r\n\r\n", b"\n\n", b"\r\n"]) + rng.choice([b"", b"hello", b"5\r\nhello\r\n0\r\n\r\n"]))
        self.read_some(s)

    def tls(self, s):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_hostname="x.test")
        with contextlib.suppress(ssl.SSLWantReadError):
            tls.do_handshake()
        hello = bytearray(outgoing.read())
        if self.rng.random() < 0.5:
            hello[self.rng.randrange(len(hello))] ^= 1 << self.rng.randrange(8)
        self.pieces(s, bytes(hello[:self.rng.randrange(len(hello) + 1)]))
        self.read_some(s)

    def datagrams(self, s):
        s.close()
        a = Association(self.node, user=self.rng.choice(["wild", "up", "chain"]))
        with contextlib.closing(a):
            a.udp.settimeout(0.05)
            if a.rep != 0:
                return
            for _ in range(self.rng.randrange(30)):
                payload = self.rng.randbytes(self.rng.randrange(1400))
                what = self.rng.randrange(3)
                a.send_raw(payload if what == 0 else header("127.0.0.1", self.udp.addr[1], frag=what == 1) + payload)
            a.udp.recv(2000)

    def read_some(self, s):
        for _ in range(self.rng.randrange(4)):
            if not s.recv(self.rng.choice([1, 100, 65536])):
                return

    def run(self, stop):
        kinds = [self.garbage, self.socks, self.socks, self.socks, self.http, self.http, self.tls, self.datagrams]
        while not stop.is_set():
            # Whatever the node does to such a client is right, as long as it lives.
            with contextlib.suppress(OSError, EOFError, AssertionError, ssl.SSLError), self.connect() as s:
                self.rng.choice(kinds)(s)
                self.leave(s)
            self.done += 1


def good_client(node, port, seed, stop, count, faults):
    """Transfers that must be whole, whatever goes on."""
    rng = random.Random(seed)
    try:
        while not stop.is_set():
            rep, s = node.socks("127.0.0.1", port, "good")
            assert rep == 0, f"REP {rep}"
            s.settimeout(60 * SLOW)
            data = rng.randbytes(rng.choice([1, 1000, 300000]))
            sender = threading.Thread(target=lambda: (s.sendall(data), s.shutdown(socket.SHUT_WR)))
            sender.start()
            digest, total = hashlib.sha256(), 0
            while part := s.recv(65536):
                digest.update(part)
                total += len(part)
            sender.join()
            s.close()
            assert (total, digest.digest()) == (len(data), hashlib.sha256(data).digest()), f"{total} of {len(data)} bytes"
            count.append(1)
    except (OSError, EOFError, AssertionError) as e:
        faults.append(repr(e))


@pytest.mark.threads
def test_chaos(tmp_path):
    print(f"CULVERT_CHAOS_SEED={SEED}")
    rng = random.Random(SEED)
    pem = Certificates(tmp_path).make("node", "DNS:x.test")
    far = Microsocks(tmp_path, "a", "b")
    node = Node(tmp_path / "node", doc=document(1, far.port, rng), limits={"handshake_timeout": "2s", "drain_grace": "20s"},
                login={"failures": 0, "source_failures": 0}, recheck=True, listeners=[
                    {"name": "main", "protocol": "mixed", "listen": "127.0.0.1:0"},
                    {"name": "tls", "protocol": "mixed", "listen": "127.0.0.1:0", "tls": {"cert": pem, "key": pem}}])
    stop, count, faults, threads, old = threading.Event(), [], [], [], []
    with node, Origin(echo) as o, UdpServer() as udp:
        far.start()
        wilds = [Wild(node, o.port, udp, rng.random()) for _ in range(6)]
        threads += [threading.Thread(target=w.run, args=(stop,)) for w in wilds]
        threads += [threading.Thread(target=good_client, args=(node, o.port, rng.random(), stop, count, faults)) for _ in range(4)]
        for t in threads:
            t.start()
        version, end, takeovers = 1, time.monotonic() + SECONDS * SLOW, 0
        while time.monotonic() < end and not faults:
            version += 1
            node.write_snapshot(document(version, far.port, rng))
            what = rng.randrange(8)
            if what == 0:
                node.process.send_signal(signal.SIGHUP)
            elif what == 1:
                far.stop()
                time.sleep(0.05)
                far.start()
            elif what == 2:
                for row in rng.sample(rows := node.sessions(), min(3, len(rows))):
                    if row.get("username") in ("wild", "up", "chain"):
                        node.http("DELETE", f"/sessions/{row['id']}")
            elif what == 3 and takeovers < 3:
                old.append(take_over(node))
                takeovers += 1
            else:
                node.metrics()
            assert node.process.poll() is None, node.log()[-3000:]
            time.sleep(0.03)
        stop.set()
        for t in threads:
            t.join(90 * SLOW)
            assert not t.is_alive()
        far.stop()
        print(f"{version} snapshots, {takeovers} takeovers, {sum(w.done for w in wilds)} wild clients, {len(count)} transfers")
        assert not faults, faults
        assert len(count) > 10
        assert [ended(p, 40) for p in old] == [0] * len(old)
        node.apply(document(10 * version + 1, free_port(), rng))
        wait_for(lambda: not node.sessions(), what="the end of the sessions", timeout=20)
        metrics = node.metrics()
        assert metrics["culvert_bugs_total"] == 0
        assert metrics["culvert_tls_handshakes_active"] == 0
        assert {k: v for k, v in metrics.items() if k.startswith("culvert_user_sessions_active") and v} == {}
        assert {k: v for k, v in metrics.items() if k.startswith("culvert_listener_sessions_active") and v} == {}
        wait_for(lambda: node.fds() < 80, what="the descriptors")
        rep, s = node.socks("127.0.0.1", o.port, "good")
        assert rep == 0
        s.sendall(b"alive")
        assert recv_exact(s, 5) == b"alive"
        s.close()
