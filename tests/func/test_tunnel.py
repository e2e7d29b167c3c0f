"""Sessions that leave by a tunnel: a node as an ordinary user, a stock OpenVPN server, everything behind
the server reachable by the tunnel only."""
import contextlib
import ctypes
import hashlib
import os
import signal
import socket
import struct
import subprocess
import sys
import threading

import pytest

import openvpn_lab
from node import (Node, SLOW, policy, recv_all, recv_exact, snapshot, socks_auth, socks_reply, socks_request, wait_for)
from openvpn_lab import INNER, NOBODY, Lab
from udp import Association

pytestmark = [pytest.mark.netns,
              pytest.mark.skipif(not openvpn_lab.can_run(), reason="needs root, openvpn and /dev/net/tun")]

# In the servers' namespace: TCP 7000 sends back the hash of what it got and then as many bytes of a pattern
# as were asked for; UDP 7001 echoes; UDP 53 knows inner.test.
SERVICES = r'''
import hashlib, socket, socketserver, struct, sys, threading
INNER = sys.argv[1]
class Tcp(socketserver.BaseRequestHandler):
    def handle(self):
        want, = struct.unpack(">I", self.request.recv(4, socket.MSG_WAITALL))
        h, n = hashlib.sha256(), 0
        while True:
            data = self.request.recv(65536)
            if not data:
                break
            h.update(data)
        self.request.sendall(h.digest())
        block = bytes(i * 7 % 251 for i in range(251 * 64))
        while n < want:
            k = min(want - n, len(block))
            self.request.sendall(block[:k])
            n += k
class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    allow_reuse_address = daemon_threads = True
    request_queue_size = 64
def udp(port, fn):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind((INNER, port))
    while True:
        data, peer = s.recvfrom(65536)
        s.sendto(fn(data), peer)
def dns(q):
    i = 12
    while q[i]:
        i += q[i] + 1
    name, qtype = q[12:i + 1], struct.unpack(">H", q[i + 1:i + 3])[0]
    known = name.lower() == b"\x05inner\x04test\x00"
    rec = b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x3c\x00\x04" + socket.inet_aton(INNER) if known and qtype == 1 else b""
    return q[:2] + struct.pack(">HHHHH", 0x8180 if known else 0x8183, 1, 1 if rec else 0, 0, 0) + q[12:i + 5] + rec
threading.Thread(target=udp, args=(7001, lambda d: d), daemon=True).start()
threading.Thread(target=udp, args=(53, dns), daemon=True).start()
server = Server((INNER, 7000), Tcp)
print("ready", flush=True)
server.serve_forever()
'''


@pytest.fixture(scope="module")
def lab():
    with Lab() as made:
        log = made.spawn([sys.executable, "-c", SERVICES, INNER], "services.log")
        wait_for(lambda: "ready" in made.text("services.log"), 20, "the services")
        assert log.poll() is None
        yield made


@contextlib.contextmanager
def inside(name):
    """This thread in a network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    old = os.open("/proc/self/ns/net", os.O_RDONLY)
    new = os.open(f"/run/netns/{name}", os.O_RDONLY)
    try:
        assert libc.setns(new, 0) == 0
        yield
    finally:
        libc.setns(old, 0)
        os.close(old)
        os.close(new)


def document(version=1):
    return snapshot(policies={"default": policy(default="t")}, version=version, egresses={
        "t": {"type": "upstream", "backend": {"kind": "tunnel", "addr": "office"}}})


@contextlib.contextmanager
def node(lab, tmp_path, profile, **tunnel):
    path = os.path.join(lab.dir, "node-" + tmp_path.name)
    os.makedirs(path)
    os.chown(path, 65534, 65534)
    with inside(lab.c):
        made = Node(path, doc=document(), binary=lab.culvert, prefix=NOBODY, start=False,
                    tunnels=[{"name": "office", "profile": profile, "dns": [INNER], **tunnel}],
                    limits={"connect_timeout": "5s"})
        os.chown(made.config_path, 65534, 65534)
        with made:
            made.start()
            yield made


def up(n):
    wait_for(lambda: "tunnel is up" in n.log(), 30, "the tunnel")


def connect(n, host, port):
    """-> (reply code, socket)."""
    s = socket.create_connection(("127.0.0.1", n.port), timeout=30 * SLOW)
    s.sendall(b"\x05\x01\x02" + socks_auth("u", "p") + socks_request(host, port))
    assert recv_exact(s, 4) == b"\x05\x02\x01\x00"
    return socks_reply(s), s


def ask(n, host, sent, want):
    """Send 'sent' bytes, get 'want'; everything is checked."""
    reply, s = connect(n, host, 7000)
    assert reply[0] == 0, reply
    block = bytes(i * 5 % 253 for i in range(253 * 256))
    data = (block * (sent // len(block) + 1))[:sent]
    writer = threading.Thread(target=lambda: (s.sendall(struct.pack(">I", want) + data), s.shutdown(socket.SHUT_WR)))
    writer.start()
    got = recv_all(s)
    writer.join()
    s.close()
    assert got[:32] == hashlib.sha256(data).digest()
    pattern = bytes(i * 7 % 251 for i in range(251 * 64))
    assert got[32:] == (pattern * (want // len(pattern) + 1))[:want]


@pytest.mark.threads
@pytest.mark.parametrize("proto", ["udp", "tcp"])
def test_sessions_leave_by_the_tunnel(lab, tmp_path, proto):
    server, port = lab.server(proto, "--data-ciphers AES-256-GCM")
    try:
        with node(lab, tmp_path, lab.profile(proto, port)) as n:
            up(n)
            ask(n, INNER, 1000, 1000)
            ask(n, "inner.test", 3 << 20, 3 << 20)
            threads = [threading.Thread(target=ask, args=(n, INNER, 100000, 200000)) for _ in range(8)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            reply, s = connect(n, INNER, 7999)
            assert reply[0] == 5  # refused
            s.close()
            reply, s = connect(n, "nothing.test", 80)
            assert reply[0] == 4  # no such host
            s.close()
            tunnel, = n.status()["tunnels"]
            assert tunnel["name"] == "office" and tunnel["state"] == "up"
            assert tunnel["bytes_in"] > 3 << 20 and tunnel["bytes_out"] > 3 << 20
            assert tunnel["tcp_established"] >= 10 and tunnel["tcp_rtt_us"] > 0
            metrics = n.metrics()
            assert metrics['culvert_tunnel_up{tunnel="office"}'] == 1
            assert metrics['culvert_tunnel_bytes_in_total{tunnel="office"}'] >= tunnel["bytes_in"]
            wait_for(lambda: any(r.get("decision") == "tunnel:office" and r["result"] == "ok" and
                                 r["bytes_down"] == (3 << 20) + 32 for r in n.records()), what="the record")
    finally:
        lab.stop(server)


def test_datagrams_leave_by_the_tunnel(lab, tmp_path):
    server, port = lab.server("udp", "--data-ciphers AES-256-GCM")
    try:
        with node(lab, tmp_path, lab.profile("udp", port)) as n:
            up(n)
            with Association(n) as a:
                for data in (b"x", bytes(1200), bytes(range(256)) * 40):
                    # The first may be lost on the way: these are datagrams.
                    for _ in range(3):
                        a.send(data, (INNER, 7001))
                    got, sender = a.recv()
                    while got != data:
                        got, sender = a.recv()
                    assert sender == (INNER, 7001)
                a.send(b"by name", ("inner.test", 7001))
                while got != b"by name":
                    got, sender = a.recv()
    finally:
        lab.stop(server)


def test_check_knows_the_tunnels(lab, tmp_path):
    profile = lab.profile("udp", 1194)
    with inside(lab.c):
        n = Node(tmp_path, doc=document(), binary=lab.culvert, start=False,
                 tunnels=[{"name": "office", "profile": profile}])
        run = [lab.culvert, "check", "-c", n.config_path]
        good = subprocess.run(run, capture_output=True, text=True)
        assert good.returncode == 0, good
        n.config["tunnels"][0]["name"] = "other"
        n.write_config()
        bad = subprocess.run(run, capture_output=True, text=True)
        assert bad.returncode != 0 and "the config has no tunnel named 'office'" in bad.stderr
        n.config["tunnels"] = [{"name": "office", "profile": os.path.join(n.dir, "missing.ovpn")}]
        n.write_config()
        bad = subprocess.run(run, capture_output=True, text=True)
        assert bad.returncode != 0 and "tunnels[0].profile" in bad.stderr


def test_refused_while_down_then_served(lab, tmp_path):
    server, port = lab.server("udp", "--data-ciphers AES-256-GCM")
    lab.stop(server)
    with node(lab, tmp_path, lab.profile("udp", port), connect_timeout="2s") as n:
        reply, s = connect(n, INNER, 7000)
        assert reply[0] != 0
        s.close()
        wait_for(lambda: any(r.get("failure_stage") == "tunnel_down" for r in n.records()), what="the record")
        server, _ = lab.server("udp", "--data-ciphers AES-256-GCM", port=port)
        try:
            up(n)
            ask(n, INNER, 1000, 100000)
        finally:
            lab.stop(server)


def test_a_connection_outlives_a_stopped_server(lab, tmp_path):
    server, port = lab.server("udp", "--data-ciphers AES-256-GCM")
    try:
        with node(lab, tmp_path, lab.profile("udp", port)) as n:
            up(n)
            reply, s = connect(n, INNER, 7000)
            assert reply[0] == 0
            s.sendall(struct.pack(">I", 500000) + b"before")
            server.send_signal(signal.SIGSTOP)
            s.sendall(b"while")
            server.send_signal(signal.SIGCONT)
            s.sendall(b"after")
            s.shutdown(socket.SHUT_WR)
            got = recv_all(s)
            s.close()
            assert got[:32] == hashlib.sha256(b"beforewhileafter").digest()
            assert len(got) == 500032
    finally:
        lab.stop(server)
