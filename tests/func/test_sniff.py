"""Sniffing: what clients' first bytes say is logged (observe) or decides along (route)."""
import socket
import ssl
import subprocess
import time

import pytest

from node import HttpOrigin, Origin, SLOW, block, direct, echo, policy, recv_all, recv_exact, snapshot, wait_for
from udp import Association


def listeners(mode, **more):
    """A time limit that no busy machine reaches, unless the test is about it."""
    return [{"name": "main", "protocol": "mixed", "listen": "127.0.0.1:0",
             "sniff": {"mode": mode, "timeout": "5s", **more}}]


def client_hello(name, **how):
    """A ClientHello of Python's TLS, as it would be sent."""
    ctx = ssl.create_default_context()
    ctx.check_hostname = False
    ctx.verify_mode = ssl.CERT_NONE
    if how.get("alpn"):
        ctx.set_alpn_protocols(how["alpn"])
    out = ssl.MemoryBIO()
    tls = ctx.wrap_bio(ssl.MemoryBIO(), out, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return out.read()


def records_of(hello, size):
    """The same hello in records of at most 'size' payload bytes."""
    body, out = hello[5:], b""
    for at in range(0, len(body), size):
        part = body[at:at + size]
        out += hello[:3] + len(part).to_bytes(2, "big") + part
    return out


def connect(node, host, port, user="u", password="p"):
    """HTTP CONNECT; return (status, socket)."""
    import base64
    s = node.connect()
    login = base64.b64encode(f"{user}:{password}".encode()).decode()
    s.sendall(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n"
              f"Proxy-Authorization: Basic {login}\r\n\r\n".encode())
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += recv_exact(s, 1)
    return int(head.split()[1]), s


def socks(node, host, port):
    return node.socks(host, port)


@pytest.fixture(params=["socks5", "http"])
def tunnel(request):
    """tunnel(node, host, port) -> (connected?, socket), by either protocol."""
    def make(node, host, port):
        if request.param == "socks5":
            rep, s = node.socks(host, port)
            return rep == 0, s
        status, s = connect(node, host, port)
        return status == 200, s
    make.protocol = request.param
    return make


@pytest.fixture(scope="module")
def pem(tmp_path_factory):
    where = tmp_path_factory.mktemp("tls")
    cert, key = str(where / "cert.pem"), str(where / "key.pem")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days",
                    "2", "-subj", "/CN=localhost", "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key


def tls_origin(pem):
    """A TLS server that answers with the name it was asked for."""
    ctx = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ctx.load_cert_chain(*pem)
    names = {}
    ctx.sni_callback = lambda s, name, _: names.__setitem__(id(s), name)

    def serve(conn):
        try:
            with ctx.wrap_socket(conn, server_side=True) as tls:
                request = tls.recv(65536)
                tls.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n" if request else b"")
                tls.unwrap()  # closing with the client's last words unread would be a reset
        except (ssl.SSLError, ConnectionError):
            pass
    return Origin(serve)


def is_closed(s):
    """The peer has ended or reset the connection without a byte."""
    try:
        return s.recv(1) == b""
    except ConnectionResetError:
        return True


# --- observe ---

def test_observe_tells_the_name_and_changes_nothing(start, tunnel, echo_origin):
    node = start(listeners=listeners("observe"))
    hello = client_hello("Shop.Example.COM")
    ok, s = tunnel(node, "127.0.0.1", echo_origin.port)
    assert ok
    s.sendall(hello + b"more")
    assert recv_exact(s, len(hello) + 4) == hello + b"more"
    s.close()
    record = node.wait_records(result="ok")[0]
    assert record["sniffed_host"] == "shop.example.com" and record["sniff_protocol"] == "tls"
    assert record["sniff_outcome"] == "matched" and record["effective_policy_host"] == "127.0.0.1"
    assert record["target_host"] == "127.0.0.1" and record["bytes_up"] == len(hello) + 4
    assert node.metrics()['culvert_sniff_total{listener="main",outcome="tls_sni"}'] == 1


def test_observe_does_not_decide(start, tunnel, echo_origin):
    node = start(listeners=listeners("observe"), doc=snapshot(policies={"default": policy(block("blocked.test"))}))
    hello = client_hello("blocked.test")
    ok, s = tunnel(node, "127.0.0.1", echo_origin.port)
    s.sendall(hello)
    assert ok and recv_exact(s, len(hello)) == hello
    s.close()
    assert node.wait_records()[0]["result"] == "ok"


def test_observe_hello_in_pieces(start, echo_origin):
    node = start(listeners=listeners("observe"))
    hello = records_of(client_hello("pieces.test"), 7)
    _, s = node.socks("127.0.0.1", echo_origin.port)
    for at in range(0, len(hello), 50):
        s.sendall(hello[at:at + 50])
        assert recv_exact(s, len(hello[at:at + 50])) == hello[at:at + 50]
    s.close()
    assert node.wait_records()[0]["sniffed_host"] == "pieces.test"


def test_observe_leaves_bulk_traffic_alone(start):
    """After the name is known, or will not be, the relay goes on as without it."""
    node = start(listeners=listeners("observe"))
    size = 8 << 20
    with Origin(lambda c: c.sendall(len(recv_all(c)).to_bytes(8, "big"))) as sink:
        for first in (b"GET / HTTP/1.1\r\nHost: bulk.test\r\n\r\n", b"\x00binary"):
            _, s = node.socks("127.0.0.1", sink.port)
            s.sendall(first)
            chunk = bytes(1 << 20)
            for _ in range(size >> 20):
                s.sendall(chunk)
            s.shutdown(socket.SHUT_WR)
            assert int.from_bytes(recv_exact(s, 8), "big") == size + len(first)
            s.close()
    assert len(node.wait_records(2, result="ok")) == 2


@pytest.mark.parametrize("first, outcome", [
    (b"\x00\x01\x02", "unsupported"),
    (b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n", "unsupported"),
    (b"EHLO mail.test\r\n", "unsupported"),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "unsupported"),
    (b"GET / HTTP/1.1\r\nHost: 10.0.0.1\r\n\r\n", "unsupported"),
    (b"GET / HTTP/1.1\r\nHost: a_b.test\r\n\r\n", "malformed"),
    (b"GET / HTTP/1.1\r\nHost: a.test\r\nHost: b.test\r\n\r\n", "malformed"),
    (b"\x16\x03\x01\x00\x05\x02\x00\x00\x01\x00", "malformed"),
    (b"\x16\x03\x01\x02\x00\x01\x00", "timeout"),
    (b"GET / HTTP/1.1\r\nHost: a.te", "timeout"),
    (b"GET / HTTP/1.1\r\nX: " + b"a" * 17000, "limit_exceeded"),
])
def test_outcomes(start, echo_origin, first, outcome):
    node = start(listeners=listeners("observe", timeout="300ms"))
    _, s = node.socks("127.0.0.1", echo_origin.port)
    s.sendall(first)
    assert recv_exact(s, len(first)) == first
    name = f'culvert_sniff_total{{listener="main",outcome="{outcome}"}}'
    wait_for(lambda: node.metrics()[name] == 1, what=outcome)
    s.sendall(b"more")
    assert recv_exact(s, 4) == b"more"
    s.close()
    record = node.wait_records()[0]
    assert record["sniff_outcome"] == outcome and "sniffed_host" not in record and "sniff_protocol" not in record
    assert record["result"] == "ok"


def test_incomplete_and_silent(start, echo_origin):
    node = start(listeners=listeners("observe"))
    _, s = node.socks("127.0.0.1", echo_origin.port)
    s.sendall(b"\x16\x03\x01")
    s.shutdown(socket.SHUT_WR)
    assert recv_all(s) == b"\x16\x03\x01"
    assert node.wait_records()[0]["sniff_outcome"] == "incomplete"
    stats = wait_for(lambda: [r for r in node.records("stats") if r["sniff_incomplete_total"] == 1])
    assert stats[0]["sniff_matched_total"] == 0


def test_off_is_silent(start, echo_origin):
    node = start()
    _, s = node.socks("127.0.0.1", echo_origin.port)
    s.sendall(client_hello("off.test"))
    s.close()
    assert not [k for k in node.wait_records()[0] if "sniff" in k or k == "effective_policy_host"]


# --- route ---

def test_route_block_by_name(start, tunnel, echo_origin):
    node = start(listeners=listeners("route"), doc=snapshot(policies={"default": policy(block("blocked.test"))}))
    for name in ("blocked.test", "www.Blocked.TEST"):
        ok, s = tunnel(node, "127.0.0.1", echo_origin.port)
        assert ok
        s.sendall(client_hello(name))
        assert is_closed(s)
    assert echo_origin.accepted == 0
    record = node.wait_records(2, failure_stage="policy", protocol=tunnel.protocol)[0]
    assert record["sniffed_host"] == "blocked.test" == record["effective_policy_host"]
    assert record["target_host"] == "127.0.0.1" and record["decision"] == "block" and record["matched_route"] == 0
    assert record["message"] == "blocked by policy" and record["result"] == "error" and "egress" not in record


def test_route_name_allows_an_address_that_the_default_blocks(start, tunnel, echo_origin):
    """The name decides for an address; what is dialled is still the address."""
    doc = snapshot(policies={"default": policy(direct("good.test"), default="block")})
    node = start(listeners=listeners("route"), doc=doc)
    hello = client_hello("good.test")
    ok, s = tunnel(node, "127.0.0.1", echo_origin.port)
    assert ok
    s.sendall(hello)
    assert recv_exact(s, len(hello)) == hello
    s.close()
    record = node.wait_records(result="ok")[0]
    assert record["matched_route"] == 0 and record["effective_policy_host"] == "good.test"
    assert record["bytes_up"] == len(hello) == record["bytes_down"]
    # Without a name the default stands.
    ok, s = tunnel(node, "127.0.0.1", echo_origin.port)
    s.sendall(b"\0no name")
    assert ok and is_closed(s)
    assert node.wait_records(failure_stage="policy")[0]["sniff_outcome"] == "unsupported"
    assert echo_origin.accepted == 1


def test_route_refuses_before_success_what_no_name_can_change(start, echo_origin):
    doc = snapshot(policies={"default": policy(block("10.0.0.0/8", "bad.test"), default="block"), "one": policy()},
                   users={"u": "p", "one": {"password": "p", "policy": "one", "max_connections": 1}})
    node = start(listeners=listeners("route"), doc=doc)
    assert node.socks("10.1.2.3", 443)[0] == 2
    assert node.socks("bad.test", 443)[0] == 2
    assert node.socks("other.test", 443)[0] == 2  # a name that only the default blocks: no other name changes it
    assert connect(node, "10.1.2.3", 443)[0] == 403
    rep, first = node.socks("127.0.0.1", echo_origin.port, user="one")
    assert rep == 0
    assert node.socks("127.0.0.1", echo_origin.port, user="one")[0] == 2
    assert connect(node, "127.0.0.1", echo_origin.port, user="one")[0] == 429
    first.close()
    wait_for(lambda: node.wait_records(username="one", result="error"))
    assert not [r for r in node.records() if r.get("sniff_outcome") not in (None, "incomplete")]


def test_route_requested_name_is_not_replaced(start, echo_origin):
    """For a requested name another name in the hello changes nothing but a block."""
    doc = snapshot(policies={"default": policy(direct("localhost"), block("evil.test"), default="block")})
    node = start(listeners=listeners("route"), doc=doc)
    hello = client_hello("other.test")
    rep, s = node.socks("localhost", echo_origin.port)
    s.sendall(hello)
    assert rep == 0 and recv_exact(s, len(hello)) == hello
    s.close()
    assert node.wait_records(result="ok")[0]["effective_policy_host"] == "localhost"
    rep, s = node.socks("localhost", echo_origin.port)
    s.sendall(client_hello("evil.test"))
    assert rep == 0 and is_closed(s)
    assert node.wait_records(failure_stage="policy")[0]["matched_route"] == 1


def test_route_recheck_knows_the_name(start, echo_origin):
    """A new policy ends what it blocks by the name that decided along, and nothing that the name still allows."""
    def doc(version, *blocked):
        return snapshot(policies={"default": policy(block(*blocked), direct("good.test", "soon.test"), default="block")},
                        version=version)
    node = start(listeners=listeners("route"), doc=doc(1, "never.test"), recheck=True)
    open_sockets = {}
    for name in ("good.test", "soon.test"):
        hello = client_hello(name)
        _, s = node.socks("127.0.0.1", echo_origin.port)
        s.sendall(hello)
        assert recv_exact(s, len(hello)) == hello
        open_sockets[name] = s
    node.apply(doc(2, "never.test", "soon.test"))
    assert is_closed(open_sockets["soon.test"])
    assert node.wait_records(sniffed_host="soon.test")[0]["result"] == "error"
    open_sockets["good.test"].sendall(b"still here")
    assert recv_exact(open_sockets["good.test"], 10) == b"still here"


def test_route_every_split(start, tunnel, echo_origin):
    node = start(listeners=listeners("route"))
    hello = client_hello("split.test")
    for cut in list(range(1, 64)) + list(range(64, len(hello), 37)):
        ok, s = tunnel(node, "127.0.0.1", echo_origin.port)
        assert ok
        s.sendall(hello[:cut])
        s.sendall(hello[cut:] + b"tail")
        assert recv_exact(s, len(hello) + 4) == hello + b"tail", cut
        s.close()
    wait_for(lambda: node.metrics()['culvert_sniff_total{listener="main",outcome="tls_sni"}'] >= 63)
    assert {r["sniffed_host"] for r in node.wait_records(63)} == {"split.test"}


def test_route_one_byte_at_a_time_and_small_records(start, tunnel, echo_origin):
    node = start(listeners=listeners("route", max_bytes=65536))
    for data in (client_hello("bytes.test"), records_of(client_hello("bytes.test", alpn=["h2", "http/1.1"]), 1)):
        ok, s = tunnel(node, "127.0.0.1", echo_origin.port)
        assert ok
        for byte in data:
            s.send(bytes([byte]))
        assert recv_exact(s, len(data)) == data
        s.close()
    assert [r["sniffed_host"] for r in node.wait_records(2)] == ["bytes.test"] * 2


def test_route_hello_glued_to_the_request(start, echo_origin):
    """All in one write; the hello goes up once, behind nothing else."""
    from node import socks_auth, socks_greeting, socks_request
    node = start(listeners=listeners("route"))
    hello = client_hello("glued.test")
    s = node.connect()
    s.sendall(socks_greeting("u") + socks_auth("u", "p") + socks_request("127.0.0.1", echo_origin.port) + hello)
    assert recv_exact(s, 4 + 10) == b"\x05\x02\x01\x00" + b"\x05\x00\x00\x01" + bytes(6)
    assert recv_exact(s, len(hello)) == hello
    s.close()
    s = node.connect()
    s.sendall(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\nHost: x\r\nProxy-Authorization: Basic dTpw\r\n\r\n" % echo_origin.port
              + hello)
    answer = b"HTTP/1.1 200 Connection Established\r\n\r\n"
    assert recv_exact(s, len(answer) + len(hello)) == answer + hello
    s.close()
    found = node.wait_records(2, result="ok")
    assert [r["sniffed_host"] for r in found] == ["glued.test"] * 2
    assert [r["bytes_down"] for r in found] == [len(hello)] * 2


def test_route_http_host(start, tunnel):
    doc = snapshot(policies={"default": policy(block("blocked.test"))})
    node = start(listeners=listeners("route"), doc=doc)
    with HttpOrigin() as web:
        ok, s = tunnel(node, "127.0.0.1", web.port)
        s.sendall(b"GET / HTTP/1.1\r\nHost: Fine.test:8080\r\nConnection: close\r\n\r\n")
        assert ok and b"200 OK" in s.recv(4096)
        s.close()
        ok, s = tunnel(node, "127.0.0.1", web.port)
        s.sendall(b"GET / HTTP/1.1\r\nHost: sub.BLOCKED.test.\r\n\r\n")
        assert ok and is_closed(s)
        assert len(web.requests) == 1
    record = node.wait_records(failure_stage="policy")[0]
    assert record["sniff_protocol"] == "http" and record["sniffed_host"] == "sub.blocked.test"
    assert node.wait_records(result="ok")[0]["sniffed_host"] == "fine.test"


def test_route_server_speaks_first(start, tunnel):
    """Nobody hangs: after the time limit it is decided without a name."""
    node = start(listeners=listeners("route", timeout="200ms"))

    def banner(conn):
        conn.sendall(b"220 ready\r\n")
        echo(conn)
    with Origin(banner) as origin:
        began = time.monotonic()
        ok, s = tunnel(node, "127.0.0.1", origin.port)
        assert ok and recv_exact(s, 11) == b"220 ready\r\n"
        assert time.monotonic() - began >= 0.15
        s.sendall(b"QUIT\r\n")
        assert recv_exact(s, 6) == b"QUIT\r\n"
        s.close()
    record = node.wait_records(result="ok")[0]
    assert record["sniff_outcome"] == "timeout" and record["bytes_down"] == 17


def test_route_dial_failure_is_a_reset(start, tunnel):
    node = start(listeners=listeners("route"))
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    ok, s = tunnel(node, "127.0.0.1", port)
    assert ok
    s.sendall(client_hello("dial.test"))
    with pytest.raises(ConnectionResetError):
        s.recv(1)
    record = node.wait_records(failure_stage="dial")[0]
    assert record["message"] == "connection refused" and record["sniffed_host"] == "dial.test"


def test_route_client_leaves(start, tunnel, echo_origin):
    node = start(listeners=listeners("route"))
    ok, s = tunnel(node, "127.0.0.1", echo_origin.port)
    s.close()
    record = node.wait_records(failure_stage="sniff_read")[0]
    assert record["message"] == "client went away" and echo_origin.accepted == 0
    # A client that has said something and says no more is served (a half-close).
    ok, s = tunnel(node, "127.0.0.1", echo_origin.port)
    s.sendall(b"\x16\x03\x01only this")
    s.shutdown(socket.SHUT_WR)
    assert ok and recv_all(s) == b"\x16\x03\x01only this"
    assert node.wait_records(result="ok")[0]["sniff_outcome"] in ("incomplete", "malformed")


def test_route_more_early_data_than_is_looked_at(start, tunnel):
    """What is beyond the limit stays with the client until the relay takes it; nothing is lost."""
    node = start(listeners=listeners("route", max_bytes=512))
    data = b"GET / HTTP/1.1\r\nX: " + b"a" * (300 << 10)
    with Origin(lambda c: c.sendall(recv_all(c))) as mirror:
        ok, s = tunnel(node, "127.0.0.1", mirror.port)
        assert ok
        s.sendall(data)
        s.shutdown(socket.SHUT_WR)
        assert recv_all(s) == data
    assert node.wait_records(result="ok")[0]["sniff_outcome"] == "limit_exceeded"


def test_route_through_a_tls_listener(start, pem, echo_origin):
    node = start(listeners=[{"name": "main", "protocol": "socks5", "listen": "127.0.0.1:0",
                             "tls": {"cert": pem[0], "key": pem[1]}, "sniff": {"mode": "route", "timeout": "5s"}}])
    from node import socks_auth, socks_greeting, socks_request
    ctx = ssl.create_default_context()
    ctx.check_hostname, ctx.verify_mode = False, ssl.CERT_NONE
    hello = client_hello("inner.test")
    with ctx.wrap_socket(node.connect(), server_hostname="outer.test") as s:
        s.sendall(socks_greeting("u") + socks_auth("u", "p") + socks_request("127.0.0.1", echo_origin.port))
        recv_exact(s, 14)
        for at in range(0, len(hello), 100):
            s.sendall(hello[at:at + 100])
        assert recv_exact(s, len(hello)) == hello
    assert node.wait_records()[0]["sniffed_host"] == "inner.test"


def test_route_absolute_form_is_not_sniffed(start, web):
    node = start(listeners=listeners("route"))
    s = node.connect()
    s.sendall(b"GET http://127.0.0.1:%d/x HTTP/1.1\r\nHost: x\r\nProxy-Authorization: Basic dTpw\r\n"
              b"Connection: close\r\n\r\n" % web.port)
    assert b"200 OK" in recv_all(s)
    assert "sniff_outcome" not in node.wait_records()[0]


def test_route_many_at_once_leave_nothing(start, echo_origin):
    """Clients that say half a hello and stay hold bounded memory for a bounded time."""
    node = start(listeners=listeners("route", timeout="1s"))
    fds = node.fds()
    part = client_hello("half.test")[:200]
    clients = [node.socks("127.0.0.1", echo_origin.port)[1] for _ in range(100)]
    for s in clients:
        s.sendall(part)
    for s in clients:
        assert recv_exact(s, len(part)) == part
        s.close()
    node.wait_records(100, sniff_outcome="timeout", result="ok")
    wait_for(lambda: node.fds() <= fds + 2, what="descriptors to go")


@pytest.mark.threads
def test_route_ends_with_the_node(start, echo_origin):
    node = start(listeners=listeners("route"), limits={"drain_grace": "0s"})
    clients = [node.socks("127.0.0.1", echo_origin.port)[1] for _ in range(8)]
    for s in clients:
        s.sendall(b"\x16\x03\x01")
    assert node.stop() == 0
    assert len([r for r in node.records() if r.get("sniff_outcome") == "incomplete"]) == 8


# --- QUIC in associations ---

@pytest.mark.parametrize("mode", ["off", "observe", "route"])
def test_quic_is_watched(start, mode):
    """A real client's first datagrams: told and counted, never deciding, arriving as they are."""
    doc = snapshot(policies={"default": policy(block("localhost"))})
    node = start(listeners=listeners(mode), doc=doc)
    capture = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    capture.bind(("127.0.0.1", 0))
    capture.settimeout(20 * SLOW)
    client = subprocess.Popen(["gtlsclient", "-q", "127.0.0.1", str(capture.getsockname()[1]), "https://localhost/"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        flight = capture.recv(65536)
    finally:
        client.kill()
        client.wait()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server, Association(node) as a:
        server.bind(("127.0.0.1", 0))
        server.settimeout(10 * SLOW)
        for data in (b"\x12\x34no quic", flight, b"\x40short header"):
            a.send(data, server.getsockname())
            assert server.recv(65536) == data
    record = node.wait_records(protocol="socks5-udp")[0]
    assert record["result"] == "ok"
    assert (record.get("sniffed_host"), record.get("sniff_protocol")) == \
        (("localhost", "quic") if mode != "off" else (None, None))
    assert node.metrics()['culvert_sniff_total{listener="main",outcome="quic_sni"}'] == (mode != "off")


# --- real clients ---

@pytest.mark.parametrize("mode", ["observe", "route"])
def test_curl_and_openssl(start, pem, mode):
    node = start(listeners=listeners(mode))
    with tls_origin(pem) as origin:
        got = subprocess.run(
            ["curl", "-sk", "--max-time", str(10 * SLOW), "--socks5", f"127.0.0.1:{node.port}", "-U", "u:p",
             "--connect-to", f"curl.example:443:127.0.0.1:{origin.port}", "https://curl.example/"],
            capture_output=True, check=True)
        assert got.stdout == b"ok\n"
        got = subprocess.run(
            ["curl", "-sk", "--max-time", str(10 * SLOW), "-x", f"http://u:p@127.0.0.1:{node.port}", "--tls-max", "1.2",
             "--connect-to", f"curl12.example:443:127.0.0.1:{origin.port}", "https://curl12.example/"],
            capture_output=True, check=True)
        assert got.stdout == b"ok\n"
        for name in (["-servername", "openssl.example"], ["-noservername"]):
            got = subprocess.run(
                ["openssl", "s_client", "-quiet", "-proxy", f"127.0.0.1:{node.port}", "-proxy_user", "u", "-proxy_pass",
                 "pass:p", "-connect", f"127.0.0.1:{origin.port}", *name],
                input=b"GET / HTTP/1.0\r\n\r\n", capture_output=True, timeout=20 * SLOW)
            assert got.stdout.endswith(b"ok\n"), got
    # A client that closes before the origin's close_notify comes ends its session by a reset.
    found = node.wait_records(4, egress="direct")
    # Workers write for themselves: sessions that end at about the same time have no order among them.
    named = {r.get("sniffed_host"): r for r in found}
    assert len(found) == 4 and set(named) == {"curl.example", "curl12.example", "openssl.example", None}
    assert named[None]["sniff_outcome"] == "unsupported"
