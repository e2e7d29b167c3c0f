"""What flows through an established session: half-close, order, bounds, timers, counts."""
import hashlib
import os
import resource
import socket
import threading
import time

import pytest

from node import SANITIZED, Origin, echo, recv_all, recv_exact, wait_for

MIB = 1 << 20


def read_until_end(s):
    digest, total = hashlib.sha256(), 0
    while True:
        data = s.recv(1 << 16)
        if not data:
            return digest.hexdigest(), total
        digest.update(data)
        total += len(data)


def connect_http(node, port):
    s = node.connect()
    s.sendall(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\nHost: x\r\nProxy-Authorization: Basic dTpw\r\n\r\n" % port)
    reply = b""
    while b"\r\n\r\n" not in reply:
        reply += s.recv(1)
    assert reply.startswith(b"HTTP/1.1 200"), reply
    return s


def connect_socks(node, port):
    rep, s = node.socks("127.0.0.1", port)
    assert rep == 0
    return s


@pytest.mark.parametrize("connect", [connect_socks, connect_http])
def test_half_close_by_the_client(node, connect):
    payload, answer = os.urandom(MIB), os.urandom(MIB)
    got, go = [], threading.Event()

    def origin(conn):
        got.append(recv_all(conn))
        go.wait(10)
        conn.sendall(answer)

    with Origin(origin) as o:
        s = connect(node, o.port)
        s.sendall(payload)
        s.shutdown(socket.SHUT_WR)
        wait_for(lambda: got, what="the origin to see the end")
        assert got[0] == payload
        go.set()
        assert recv_all(s) == answer


@pytest.mark.parametrize("connect", [connect_socks, connect_http])
def test_half_close_by_the_origin(node, connect):
    payload, answer = os.urandom(MIB), os.urandom(MIB)
    got = []

    def origin(conn):
        conn.sendall(answer)
        conn.shutdown(socket.SHUT_WR)
        got.append(recv_all(conn))

    with Origin(origin) as o:
        s = connect(node, o.port)
        assert recv_all(s) == answer
        s.sendall(payload)
        s.shutdown(socket.SHUT_WR)
        wait_for(lambda: got)
        assert got[0] == payload


def test_small_writes_slow_reader_then_end(node):
    """Segments of 1448 bytes against a reader that is slower, then FIN: the tail must not get stuck."""
    data = os.urandom(1448 * 400)

    def origin(conn):
        for i in range(0, len(data), 1448):
            conn.sendall(data[i:i + 1448])

    with Origin(origin) as o:
        for _ in range(20):
            s = connect_socks(node, o.port)
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            assert recv_all(s) == data
            s.close()


def test_many_megabytes_both_ways_at_once(node):
    size = 24 * MIB
    block = os.urandom(MIB)
    want = hashlib.sha256(block * (size // MIB)).hexdigest()
    result = []

    def origin(conn):
        def send():
            for _ in range(size // MIB):
                conn.sendall(block)
            conn.shutdown(socket.SHUT_WR)
        t = threading.Thread(target=send)
        t.start()
        result.append(read_until_end(conn))
        t.join()

    with Origin(origin) as o:
        s = connect_socks(node, o.port)

        def send():
            for _ in range(size // MIB):
                s.sendall(block)
            s.shutdown(socket.SHUT_WR)
        t = threading.Thread(target=send)
        t.start()
        assert read_until_end(s) == (want, size)
        t.join()
        wait_for(lambda: result)
        assert result[0] == (want, size)
    record = node.wait_records(result="ok")[0]
    assert record["bytes_up"] == size and record["bytes_down"] == size


def test_counts_are_live(node, echo_origin):
    s = connect_socks(node, echo_origin.port)
    s.sendall(b"x" * 1000)
    recv_exact(s, 1000)
    row = node.sessions()[0]
    assert row["bytes_up"] == 1000 and row["bytes_down"] == 1000
    assert row["state"] == "relay" and row["target"] == f"127.0.0.1:{echo_origin.port}"


@pytest.mark.rss
def test_slow_readers_are_bounded_in_memory(start):
    node = start()
    block = bytes(MIB)
    stop = threading.Event()

    def origin(conn):
        conn.settimeout(0.5)
        try:
            while not stop.is_set():
                conn.sendall(block)
        except TimeoutError:
            stop.wait(20)

    with Origin(origin) as o:
        first = connect_socks(node, o.port)
        recv_exact(first, 1)
        before = node.rss_kib()
        clients = [connect_socks(node, o.port) for _ in range(50)]
        wait_for(lambda: sum(r["bytes_down"] for r in node.sessions()) > 50 * 65536, what="the flood to fill up")
        total = -1
        while total != (total := sum(r["bytes_down"] for r in node.sessions())):
            time.sleep(0.2)
        grown = node.rss_kib() - before
        limit = 50 * 160 * (3 if SANITIZED else 1)
        assert grown < limit, f"{grown} KiB for 50 sessions"
        spent = node.cpu_seconds()
        time.sleep(1)
        assert node.cpu_seconds() - spent < 0.3, "CPU is burnt while everything is blocked"
        stop.set()
        for s in clients:
            s.close()


def test_half_close_timeout(start):
    node = start(limits={"half_close_timeout": "300ms"})

    def silent(conn):
        recv_all(conn)
        conn.recv(1)
        wait_gone.wait(20)

    wait_gone = threading.Event()
    with Origin(silent) as o:
        before = node.fds()
        clients = [connect_socks(node, o.port) for _ in range(50)]
        for s in clients:
            s.shutdown(socket.SHUT_WR)
        wait_for(lambda: node.fds() <= before + 1, what="half-closed sessions to go")
        wait_gone.set()
    assert len(node.wait_records(50)) == 50


def test_idle_timeout(start, echo_origin):
    node = start(limits={"idle_timeout": "400ms"})
    s = connect_socks(node, echo_origin.port)
    for _ in range(6):
        s.sendall(b"x")
        recv_exact(s, 1)
        time.sleep(0.15)
    started = time.monotonic()
    try:
        assert recv_all(s) == b""
    except ConnectionResetError:
        pass
    assert time.monotonic() - started > 0.2


def test_connection_limit_of_a_user(start, echo_origin):
    node = start(users={"u": {"password": "p", "policy": "default", "max_connections": 2}})
    a, b = connect_socks(node, echo_origin.port), connect_socks(node, echo_origin.port)
    rep, _ = node.socks("127.0.0.1", echo_origin.port)
    assert rep == 2
    node.wait_records(failure_stage="limit")
    a.close()
    wait_for(lambda: node.socks("127.0.0.1", echo_origin.port)[0] == 0, what="a permit to come back")
    b.close()


def test_max_sessions_at_accept(start, echo_origin):
    node = start(limits={"max_sessions": 5})
    clients = [connect_socks(node, echo_origin.port) for _ in range(5)]
    s = node.connect()
    s.sendall(b"\x05\x01\x02")
    try:
        assert s.recv(2) == b""
    except ConnectionResetError:
        pass
    for c in clients:
        c.close()
    wait_for(lambda: not node.sessions())
    connect_socks(node, echo_origin.port)
    assert node.metrics()['culvert_listener_rejected_full_total{listener="main"}'] >= 1


def test_descriptors_run_out(start, echo_origin):
    """EMFILE: no spinning, what runs goes on, the admin port answers, and it recovers."""
    def few():
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))

    node = start(preexec=few)
    kept = connect_socks(node, echo_origin.port)
    clients = []
    for _ in range(200):
        s = socket.socket()
        s.setblocking(False)
        s.connect_ex(("127.0.0.1", node.port))
        clients.append(s)
    wait_for(lambda: node.fds() >= 95, what="descriptors to run out")
    spent = node.cpu_seconds()
    time.sleep(1.5)
    assert node.cpu_seconds() - spent < 0.45
    kept.sendall(b"still here")
    assert recv_exact(kept, 10) == b"still here"
    for s in clients:
        s.close()
    wait_for(lambda: node.fds() < 60, what="descriptors to come back")
    wait_for(lambda: node.socks("127.0.0.1", echo_origin.port)[0] == 0)
    assert node.log().count("accept") < 20


def test_vanished_client_cancels_the_dial(start):
    """A client that leaves while the dial is under way leaves nothing behind."""
    node = start(dns={"servers": ["127.0.0.1:9"], "timeout": "30s", "attempts": 1},
                 limits={"connect_timeout": "30s"})
    before = node.fds()
    from node import socks_auth, socks_greeting, socks_request
    silent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    silent.bind(("127.0.0.1", 0))
    node.config["dns"]["servers"] = [f"127.0.0.1:{silent.getsockname()[1]}"]
    node.write_config()
    node.process.send_signal(1)
    wait_for(lambda: "config reloaded" in node.log(), what="the reload")
    s = node.connect()
    s.sendall(socks_greeting("u") + socks_auth("u", "p") + socks_request("slow.test", 80))
    recv_exact(s, 4)
    wait_for(lambda: [r for r in node.sessions() if r["state"] == "dial"])
    s.close()
    wait_for(lambda: not node.sessions(), what="the session to go")
    wait_for(lambda: node.fds() <= before + 6)
    silent.close()


@pytest.mark.rss
def test_no_descriptor_or_memory_is_left_over(start, echo_origin):
    """Thousands of short sessions of every ending; descriptors, threads and memory return."""
    node = start(log={"level": "info"})

    def one(kind):
        if kind == 0:
            s = connect_socks(node, echo_origin.port)
            s.sendall(b"x")
            recv_exact(s, 1)
        elif kind == 1:
            _, s = node.socks("127.0.0.1", 1)
        elif kind == 2:
            _, s = node.socks("127.0.0.1", 1, "u", "no")
        elif kind == 3:
            s = node.connect()
        elif kind == 4:
            s = node.connect()
            s.sendall(b"GET / HTTP/1.1\r\n\r\n")
        else:
            s = connect_http(node, echo_origin.port)
        s.close()

    def rounds(n):
        for i in range(n):
            one(i % 6)
        wait_for(lambda: not node.sessions())

    rounds(600)
    fds, rss, threads = node.fds(), node.rss_kib(), len(os.listdir(f"/proc/{node.pid}/task"))
    rounds(3000)
    wait_for(lambda: node.fds() <= fds + 4, what="descriptors")
    assert len(os.listdir(f"/proc/{node.pid}/task")) == threads
    if not SANITIZED:
        assert node.rss_kib() < rss * 1.05 + 1024
