"""Rates of users: what the node's own counters say that it moved, against what it was told."""
import hashlib
import os
import random
import socket
import ssl
import struct
import subprocess
import threading
import time

import pytest

from node import SANITIZED, Origin, SLOW, policy, recv_exact, snapshot, wait_for

KIB, MIB = 1024, 1 << 20
BLOCK = os.urandom(256 * KIB)


def source(conn):
    """Sends for as long as somebody takes it."""
    while True:
        conn.sendall(BLOCK)


def sink(conn):
    while conn.recv(1 << 18):
        pass


def http_source(conn):
    """A response that does not end, for any request."""
    head = b""
    while b"\r\n\r\n" not in head:
        head += conn.recv(65536)
    conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n")
    source(conn)


def http_sink(conn):
    sink(conn)


def drain(s, stop=None):
    """Read in a thread until the connection ends."""
    def run():
        try:
            while s.recv(1 << 18):
                pass
        except OSError:
            pass
    threading.Thread(target=run, daemon=True).start()


def abort(s):
    """End with a reset: what is in buffers is not to be moved at the user's rate any more."""
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    try:
        s.shutdown(socket.SHUT_RDWR)  # wakes the thread that uses it
    except OSError:
        pass  # it has ended already
    s.close()


def fill(s):
    def run():
        try:
            while True:
                s.sendall(BLOCK)
        except OSError:
            pass
    threading.Thread(target=run, daemon=True).start()


def moved(node, user, direction):
    return node.metrics().get('culvert_user_bytes_total{user="%s",direction="%s"}' % (user, direction), 0)


class Rate(float):
    """Bytes per second; 'least' and 'most' are what it was at least and at most: nobody knows when
    in the course of a request the node has read its counters."""
    least = most = 0.0


def measure(node, directions, seconds):
    """The Rate of each (user, direction), by the node's counters."""
    def sample():
        start = time.monotonic()
        found = node.metrics()
        end = time.monotonic()
        return start, end, [found.get('culvert_user_bytes_total{user="%s",direction="%s"}' % d, 0) for d in directions]
    start1, end1, first = sample()
    time.sleep(seconds)
    start2, end2, last = sample()
    rates = []
    for a, b in zip(first, last):
        rate = Rate((b - a) / ((start2 + end2 - start1 - end1) / 2))
        rate.least, rate.most = (b - a) / (end2 - start1), (b - a) / (start2 - end1)
        rates.append(rate)
    return rates


# What idle time may have earned (60 ms) and one quantum (1/32 s), in seconds' worth of the rate.
BURST = 0.092


def bounded(rate, want, seconds, low=0.9):
    """Not above 'want' but for the burst; not far below, which threads that run late may cost."""
    return rate.least <= want * (1 + BURST / seconds) and rate.most >= want * (low if SLOW == 1 else 0.5)


def user(**more):
    return {"password": "p", "policy": "default", **more}


def open_socks(node, origin, name="u", n=1, listener="main"):
    found = []
    for _ in range(n):
        rep, s = node.socks("127.0.0.1", origin.port, user=name, listener=listener)
        assert rep == 0
        s.settimeout(30 * SLOW)
        found.append(s)
    return found


def http_request(node, head, name):
    import base64
    s = node.connect()
    token = base64.b64encode(f"{name}:p".encode()).decode()
    s.sendall(head.replace("@AUTH@", f"Proxy-Authorization: Basic {token}\r\n").encode())
    return s


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    path = tmp_path_factory.mktemp("tls")
    cert, key = path / "cert.pem", path / "key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                    "-keyout", str(key), "-out", str(cert), "-subj", "/CN=proxy.test", "-days", "2"],
                   check=True, capture_output=True)
    return str(cert), str(key)


def test_accuracy(start, certificate):
    """Every way in, both directions, small and large rates, all at the same time: 1 % in 10 s."""
    rates = {
        "slow": user(up_rate=8 * KIB, down_rate=8 * KIB),
        "ten": user(down_rate=300000),
        "up": user(up_rate=1 * MIB),
        "tls": user(down_rate=2 * MIB),
        "get": user(down_rate=500000),
        "put": user(up_rate=700000),
        "slowget": user(down_rate=8 * KIB),
        "connect": user(down_rate=4 * MIB),
    }
    cert, key = certificate
    node = start(users=rates, listeners=[
        {"name": "main", "protocol": "mixed", "listen": "127.0.0.1:0"},
        {"name": "tls", "protocol": "socks5", "listen": "127.0.0.1:0", "tls": {"cert": cert, "key": key}}])
    with Origin(source) as src, Origin(sink) as snk, Origin(http_source) as web, Origin(http_sink) as weblog:
        keep = []
        for s in open_socks(node, src, "slow"):
            drain(s)
            keep.append(s)
        for name, n in (("slow", 1), ("up", 3)):
            for s in open_socks(node, snk, name, n):
                fill(s)
                keep.append(s)
        for s in open_socks(node, src, "ten", 10):
            drain(s)
            keep.append(s)
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        s = context.wrap_socket(node.connect("tls"))
        s.sendall(b"\x05\x01\x02\x01\x03tls\x01p" + bytes([5, 1, 0, 1, 127, 0, 0, 1]) + src.port.to_bytes(2, "big"))
        drain(s)
        keep.append(s)
        for name in ("get", "slowget"):
            s = http_request(node, f"GET http://127.0.0.1:{web.port}/ HTTP/1.1\r\nHost: x\r\n@AUTH@\r\n", name)
            drain(s)
            keep.append(s)
        s = http_request(node, f"PUT http://127.0.0.1:{weblog.port}/ HTTP/1.1\r\nHost: x\r\n"
                               f"Content-Length: 1000000000000\r\n@AUTH@\r\n", "put")
        fill(s)
        keep.append(s)
        s = http_request(node, f"CONNECT 127.0.0.1:{src.port} HTTP/1.1\r\nHost: x\r\n@AUTH@\r\n", "connect")
        drain(s)
        keep.append(s)

        wanted = [(name, d) for name, u in rates.items() for d in ("up", "down") if u.get(d + "_rate")]
        wait_for(lambda: all(moved(node, *w) > 0 for w in wanted), what="the first bytes")
        before = node.cpu_seconds()
        got = measure(node, wanted, 10)
        cpu = node.cpu_seconds() - before
        for (name, direction), rate in zip(wanted, got):
            want = rates[name][direction + "_rate"]
            print(f"{name:8} {direction:4} {rate:12.0f} of {want:9}: {100 * (rate - want) / want:+.2f} %")
        print(f"cpu {cpu:.2f} s in 10 s")
        for (name, direction), rate in zip(wanted, got):
            want = rates[name][direction + "_rate"]
            assert rate.least <= want * 1.01, (name, direction, rate)
            # The other side of the 1 % holds where threads run within some 50 ms of when they are due.
            assert rate.most >= want * (0.97 if SLOW == 1 else 0.5), (name, direction, rate)
        for s in keep:
            s.close()


def test_high_rate(start):
    """A rate of 100 MiB/s, by splice as well as by copying, bounds what would be more."""
    rate = 100 * MIB
    node = start(users={"fast": user(down_rate=rate), "free": user()})
    with Origin(source) as src:
        s, = open_socks(node, src, "fast")
        drain(s)
        wait_for(lambda: moved(node, "fast", "down") > 0, what="the first bytes")
        got, = measure(node, [("fast", "down")], 5)
        print(f"{got / MIB:.1f} MiB/s")
        assert bounded(got, rate, 5, low=0.3), got  # as far as the machine goes
        s.close()


@pytest.mark.parametrize("rate,seconds", [(64 * KIB, 10), (4 * MIB, 6)])
def test_fairness(start, rate, seconds):
    """Ten sessions of a user on two workers get the same, one of which asks in small pieces."""
    node = start(users={"u": user(down_rate=rate)})
    with Origin(source) as src:
        sockets = open_socks(node, src, "u", 10)
        for s in sockets:
            drain(s)

        def sample():
            return {s["id"]: s["bytes_down"] for s in node.sessions() if s["state"] == "relay"}
        wait_for(lambda: sum(v > 0 for v in sample().values()) == 10, what="the first bytes of all")
        first = sample()
        time.sleep(seconds)
        last = sample()
        shares = [last[i] - first[i] for i in first]
        mean = sum(shares) / 10
        print(sorted(round(x / mean, 3) for x in shares))
        workers = {i[:2] for i in first}
        assert len(workers) == 2, "the sessions are to be on both workers"
        assert min(shares) >= 0.85 * mean and max(shares) <= 1.15 * mean
        for s in sockets:
            s.close()


def test_late_session_is_not_starved(start):
    """A session that comes while another one takes all there is gets its share at once."""
    node = start(users={"u": user(down_rate=200000)})
    with Origin(source) as src, Origin(lambda c: (c.recv(1), c.sendall(b"x" * 1000))) as small:
        for s in open_socks(node, src, "u", 5):
            drain(s)
        wait_for(lambda: moved(node, "u", "down") > 50000, what="the first bytes")
        s, = open_socks(node, small)
        begin = time.monotonic()
        s.sendall(b"?")
        assert recv_exact(s, 1000) == b"x" * 1000
        assert time.monotonic() - begin < 2 * SLOW


def test_change_in_running_sessions(start):
    """off -> on -> higher -> off takes effect in sessions that run, also in those that wait."""
    node = start(users={"u": user()})
    users = {"u": user()}
    version = 1

    def apply(**rates):
        nonlocal version
        version += 1
        users["u"] = user(**rates)
        node.apply(snapshot(users, version=version))
        time.sleep(0.5)  # the next measurement begins when this is in force everywhere

    with Origin(source) as src, Origin(sink) as snk:
        for s in open_socks(node, src, "u", 20):
            drain(s)
        for s in open_socks(node, snk, "u", 20):
            fill(s)
        wait_for(lambda: moved(node, "u", "up") > 0 and moved(node, "u", "down") > 0, what="the first bytes")
        both = [("u", "up"), ("u", "down")]
        free = measure(node, both, 1)
        assert free[0] > 10 * MIB and free[1] > 10 * MIB
        apply(up_rate=2000, down_rate=100000)
        up, down = measure(node, both, 4)
        assert up.least <= 2000 * 1.1 and bounded(down, 100000, 4, low=0.8), (up, down)
        apply(up_rate=1000000, down_rate=2000)  # those that were to wait for seconds go on at once
        up, down = measure(node, both, 3)
        assert bounded(up, 1000000, 3, low=0.8) and down.least <= 2000 * 1.1, (up, down)
        apply()
        up, down = measure(node, both, 1)
        assert up > 10 * MIB and down > 10 * MIB
        assert not [r for r in node.records() if r["result"] != "ok"]


@pytest.mark.rss
def test_throttled_sender_is_stopped(start):
    """What may not be moved yet stays where it is: neither memory nor processor time is used."""
    sent = []

    def counted(conn):
        n = 0
        try:
            while True:
                n += conn.send(BLOCK)
        finally:
            sent.append(n)

    node = start(users={"u": user(down_rate=64 * KIB, up_rate=64 * KIB)})
    with Origin(counted) as src, Origin(sink) as snk:
        before = node.rss_kib()
        sockets = open_socks(node, src, "u", 100)
        for s in sockets:
            drain(s)
        up = open_socks(node, snk, "u", 100)
        for s in up:
            fill(s)
        wait_for(lambda: moved(node, "u", "down") > 0, what="the first bytes")
        time.sleep(1)
        cpu = node.cpu_seconds()
        time.sleep(5)
        cpu = node.cpu_seconds() - cpu
        print(f"cpu {cpu / 5 * 100:.1f} %, memory +{node.rss_kib() - before} KiB")
        assert cpu / 5 < 0.05 * SLOW * (4 if SANITIZED else 1)
        if not SANITIZED:
            assert node.rss_kib() - before < 4096
        for s in sockets + up:
            abort(s)
        wait_for(lambda: not node.sessions(), what="the end of the sessions")
        wait_for(lambda: len(sent) == 100, what="the senders")
        # No more than what sockets hold, and that is their own affair.
        assert max(sent) < 12 * MIB


def test_waiting_is_not_idle(start):
    """Sessions that wait for their turn for longer than idle_timeout and half_close_timeout live."""
    node = start(users={"u": user(down_rate=100)}, limits={"idle_timeout": "1s", "half_close_timeout": "1s"})
    with Origin(source) as src, Origin(lambda c: c.recv(1)) as quiet:
        sockets = open_socks(node, src, "u", 60)  # a round takes about two seconds
        for s in sockets[:30]:
            s.shutdown(socket.SHUT_WR)
        for s in sockets:
            drain(s)
        idle = open_socks(node, quiet, "u")
        time.sleep(5)
        assert len([s for s in node.sessions() if s["state"] == "relay"]) == 60
        # One that really is idle ended.
        ended = node.wait_records(1)
        assert len(ended) == 1 and "no data for too long" in str(ended[0])
        for s in sockets + idle:
            abort(s)


@pytest.mark.parametrize("seed", range(3))
def test_content_and_ends(start, seed):
    """All bytes arrive, in both directions, with half-closes on either side, whatever the rate."""
    rng = random.Random(seed)
    node = start(users={"u": user(up_rate=rng.choice([300000, 1 << 20, 20 << 20]),
                                  down_rate=rng.choice([300000, 1 << 20, 20 << 20]))})
    size_up, size_down = rng.randrange(1, 700000), rng.randrange(1, 700000)
    down = rng.randbytes(size_down)
    seen = []

    def both(conn):
        got = hashlib.sha256()

        def send():
            conn.sendall(down)
            conn.shutdown(socket.SHUT_WR)
        t = threading.Thread(target=send)
        t.start()
        while True:
            data = conn.recv(65536)
            if not data:
                break
            got.update(data)
        t.join()
        seen.append(got.hexdigest())

    with Origin(both) as origin:
        for _ in range(3):
            s, = open_socks(node, origin)
            up = rng.randbytes(size_up)
            t = threading.Thread(target=lambda: (s.sendall(up), s.shutdown(socket.SHUT_WR)))
            t.start()
            got = b""
            while True:
                data = s.recv(65536)
                if not data:
                    break
                got += data
            t.join()
            s.close()
            assert got == down
            wait_for(lambda: seen, what="the origin's end")
            assert seen.pop() == hashlib.sha256(up).hexdigest()
    for r in node.wait_records(3):
        assert r["bytes_up"] == size_up and r["bytes_down"] == size_down


def test_requests_share_the_rate(start):
    """Many short keep-alive requests pay like one long transfer, heads and bodies."""
    from node import HttpOrigin
    import base64
    body = b"y" * 20000
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    node = start(users={"u": user(down_rate=200000)})
    token = base64.b64encode(b"u:p").decode()
    done = threading.Event()
    with HttpOrigin(answer=lambda r: reply) as web:
        def client():
            s = node.connect()
            stream = s.makefile("rb")
            while not done.is_set():
                s.sendall(f"GET http://127.0.0.1:{web.port}/ HTTP/1.1\r\nHost: x\r\n"
                          f"Proxy-Authorization: Basic {token}\r\n\r\n".encode())
                while stream.readline() != b"\r\n":
                    pass
                assert len(stream.read(len(body))) == len(body)
            s.close()
        threads = [threading.Thread(target=client) for _ in range(6)]
        for t in threads:
            t.start()
        wait_for(lambda: moved(node, "u", "down") > 100000, what="the first answers")
        got, = measure(node, [("u", "down")], 6)
        done.set()
        for t in threads:
            t.join()
        print(f"{got:.0f} B/s")
        assert bounded(got, 200000, 6), got
        assert {r["bytes_down"] for r in node.records()} == {len(reply)}
