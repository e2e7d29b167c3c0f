"""The PROXY protocol on listeners: whose address a session has, and from whom it is believed."""
import socket
import struct
import subprocess

import pytest

from node import Origin, recv_all, recv_exact, socks_auth, socks_greeting, socks_reply, socks_request, wait_for
from pki import Authority, Tls, context

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"


def v1(src="203.0.113.9", dst="10.0.0.1", sport=5000, dport=1080):
    return f"PROXY TCP{6 if ':' in src else 4} {src} {dst} {sport} {dport}\r\n".encode()


def v2(src="203.0.113.9", dst="10.0.0.1", sport=5000, dport=1080, tlvs=b"", command=1):
    family = socket.AF_INET6 if ":" in src else socket.AF_INET
    body = socket.inet_pton(family, src) + socket.inet_pton(family, dst) + struct.pack("!HH", sport, dport) + tlvs
    return SIGNATURE + bytes([0x20 | command, 0x21 if family == socket.AF_INET6 else 0x11]) + struct.pack("!H", len(body)) + body


def tlv(kind, value):
    return struct.pack("!BH", kind, len(value)) + value


@pytest.fixture
def lists(tmp_path):
    ca = Authority(tmp_path)
    cert, key, _ = ca.issue("server", cn="default", dns=["proxy.test"])
    base = {"listen": "127.0.0.1:0", "proxy_protocol": {"from": ["127.0.0.0/8"]}}
    return [{**base, "name": "main", "protocol": "mixed"}, {**base, "name": "socks", "protocol": "socks5"},
            {**base, "name": "http", "protocol": "http"},
            {**base, "name": "tls", "protocol": "mixed", "tls": {"cert": cert, "key": key}},
            {**base, "name": "elsewhere", "protocol": "mixed", "proxy_protocol": {"from": ["192.0.2.0/24", "2001:db8::/32"]}}]


def messages(port):
    return socks_greeting("u") + socks_auth("u", "p") + socks_request("127.0.0.1", port)


def finish(s):
    assert recv_exact(s, 4) == b"\x05\x02\x01\x00" and socks_reply(s)[0] == 0
    s.sendall(b"hi")
    assert recv_exact(s, 2) == b"hi"


CASES = {
    "v1": (v1(), "203.0.113.9:5000"), "v1 ipv6": (v1("2001:db8::7", "::1"), "[2001:db8::7]:5000"),
    "v2": (v2(), "203.0.113.9:5000"), "v2 ipv6": (v2("2001:db8::7", "::1"), "[2001:db8::7]:5000"),
    "v2 mapped": (v2("::ffff:203.0.113.9", "::1"), "203.0.113.9:5000"),
    "v2 with tlvs": (v2(tlvs=tlv(1, b"h2") + tlv(2, b"proxy.test") + tlv(5, b"id") + tlv(0x20, b"\1\0\0\0\0" + tlv(0x21, b"TLSv1.3"))
                        + tlv(0xEA, b"x" * 3000) + tlv(4, b"\0" * 7)), "203.0.113.9:5000"),
    "v1 unknown": (b"PROXY UNKNOWN\r\n", None), "v1 unknown, more": (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", None),
    "v2 local": (SIGNATURE + b"\x20\0\0\0", None), "v2 local with addresses": (v2(command=0), None),
    "v2 unix": (SIGNATURE + b"\x21\x31\0\xd8" + b"a" * 216, None),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("listener", ["main", "socks", "tls"])
def test_client_address(start, lists, echo_origin, name, listener):
    header, want = CASES[name]
    node = start(listeners=lists)
    s = node.connect(listener)
    own = "%s:%d" % s.getsockname()
    if listener == "tls":
        s.sendall(header)
        s = Tls(0, context(), sock=s)
        s.sendall(messages(echo_origin.port))
    else:
        s.sendall(header + messages(echo_origin.port))
    finish(s)
    assert node.sessions()[0]["client"] == (want or own)
    s.close()
    assert node.wait_records(1)[0]["client_addr"] == (want or own)


def test_split_at_every_byte(start, lists, echo_origin):
    node = start(listeners=lists)
    for header in (v1(), v2(tlvs=tlv(5, b"x"))):
        data = header + messages(echo_origin.port)
        for at in range(1, len(header) + 4):
            with node.connect("main") as s:
                s.sendall(data[:at])
                # The node has taken the first piece when it is asked for its sessions.
                node.status()
                s.sendall(data[at:])
                finish(s)
    assert {r["client_addr"] for r in node.wait_records(10)} == {"203.0.113.9:5000"}


def test_http_address_holds_for_all_requests(start, lists, web):
    node = start(listeners=lists)
    with node.connect("http") as s:
        for i in range(3):
            s.sendall((v1() if i == 0 else b"") + b"GET http://127.0.0.1:%d/%d HTTP/1.1\r\nHost: x\r\nProxy-Authorization: Basic dTpw\r\n\r\n"
                      % (web.port, i))
            assert recv_exact(s, 12) == b"HTTP/1.1 200"
            wait_for(lambda: s.recv(65536).endswith(b"/%d" % i))
    assert [r["client_addr"] for r in node.wait_records(3)] == ["203.0.113.9:5000"] * 3


def expect_closed(s):
    try:
        assert recv_all(s) == b""
    except ConnectionResetError:
        pass
    s.close()


BAD = {
    "no header": messages(1), "http": b"GET / HTTP/1.1\r\n\r\n", "tls": b"\x16\x03\x01\x02\x00", "garbage": b"\0" * 50,
    "lower case": b"proxy TCP4 1.2.3.4 1.2.3.4 1 1\r\n", "no crlf": b"PROXY TCP4 1.2.3.4 1.2.3.4 1 1\n" + b" " * 90,
    "too long": b"PROXY TCP4 " + b"1" * 200, "bad address": v1("1.2.3.256"), "bad port": v1(sport=70000), "leading zero": v1("01.2.3.4"),
    "name": b"PROXY TCP4 host.test 1.2.3.4 1 1\r\n", "udp": SIGNATURE + b"\x21\x12\0\x0c" + b"x" * 12,
    "version 3": SIGNATURE + b"\x31\x11\0\x0c", "command 2": SIGNATURE + b"\x22\x11\0\x0c" + b"x" * 12,
    "short body": SIGNATURE + b"\x21\x11\0\x04" + b"x" * 40, "oversize": SIGNATURE + b"\x21\x11\xff\xff" + b"x" * 2000,
    "torn tlv": v2(tlvs=b"\x05\0\x09x"), "bad checksum": v2(tlvs=tlv(3, b"\1\2\3\4")),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_header(start, lists, name):
    node = start(listeners=lists, limits={"handshake_timeout": "2s"})
    for listener in ("main", "socks", "tls"):
        s = node.connect(listener)
        s.sendall(BAD[name])
        expect_closed(s)
    for r in node.wait_records(3):
        assert r["failure_stage"] == "parse" and r["client_addr"].startswith("127.0.0.1:") and "username" not in r


def test_only_from_listed_sources(start, lists, echo_origin):
    node = start(listeners=lists)
    for data in (v1() + messages(echo_origin.port), messages(echo_origin.port)):
        s = node.connect("elsewhere")
        try:
            s.sendall(data)
        except OSError:
            pass
        expect_closed(s)
    assert node.metrics()['culvert_listener_rejected_source_total{listener="elsewhere"}'] == 2
    assert not node.records()
    assert "not from a listed proxy, refusing listener='elsewhere' client='127.0.0.1:" in node.log()
    assert echo_origin.accepted == 0


def test_nothing_comes(start, lists):
    """A listed source that never sends its header is closed by the deadline, and told of."""
    node = start(listeners=lists, limits={"handshake_timeout": "1s"})
    silent, half = node.connect("main"), node.connect("tls")
    half.sendall(v1()[:20])
    expect_closed(silent)
    expect_closed(half)
    for r in node.wait_records(2):
        assert r["failure_stage"] == "parse" and "timed out" in r["message"]
    with node.connect("main"):
        pass  # a look whether the port is open
    node.connect("main").close()
    wait_for(lambda: node.status()["totals"]["active"] == 0)
    assert len(node.records()) == 2


def test_unix_socket(start, tmp_path, echo_origin):
    path = str(tmp_path / "in.sock")
    node = start(listeners=[{"name": "main", "protocol": "mixed", "listen": "127.0.0.1:0"},
                            {"name": "unix", "protocol": "mixed", "listen": "unix:" + path, "proxy_protocol": {}}])
    for header, want in ((v2(), "203.0.113.9:5000"), (b"PROXY UNKNOWN\r\n", None)):
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(20)
        s.connect(path)
        s.sendall(header + messages(echo_origin.port))
        finish(s)
        s.close()
        if want:
            node.wait_records(1, client_addr=want)
    node.wait_records(2)
    s = socket.socket(socket.AF_UNIX)
    s.connect(path)
    s.sendall(messages(echo_origin.port))
    expect_closed(s)


def test_config_rules(start, lists):
    node = start()
    for listen, section, text in (
            ("127.0.0.1:0", {}, "proxy_protocol: needs the addresses"), ("127.0.0.1:0", {"from": []}, "needs the addresses"),
            ("127.0.0.1:0", {"from": ["x"]}, "'x' is not accepted"), ("127.0.0.1:0", {"sources": ["::/0"]}, "sources"),
            ("unix:/tmp/x.sock", {"from": ["::/0"]}, "has no use on a Unix socket")):
        node.config["listeners"] = [{"name": "main", "listen": listen, "proxy_protocol": section}]
        node.write_config()
        r = subprocess.run([node.binary, "check", "-c", node.config_path], capture_output=True, text=True, timeout=60)
        assert r.returncode != 0 and text in r.stdout + r.stderr, (section, r)


# --- HAProxy in front ---

@pytest.mark.parametrize("option", ["send-proxy", "send-proxy-v2", "send-proxy-v2-ssl-cn",
                                    "send-proxy-v2 proxy-v2-options ssl,cert-cn,unique-id,crc32c"])
@pytest.mark.parametrize("listener", ["main", "tls"])
def test_haproxy(start, lists, tmp_path, echo_origin, web, option, listener):
    node = start(listeners=lists)
    config = tmp_path / "haproxy.cfg"
    front = socket.create_server(("127.0.0.2", 0))
    port = front.getsockname()[1]
    config.write_text(f"""
defaults
    mode tcp
    timeout connect 10s
    timeout client 60s
    timeout server 60s
frontend in
    bind fd@{front.fileno()}
    unique-id-format %{{+X}}o%ci%cp
    default_backend out
backend out
    server node 127.0.0.1:{node.ports[listener]} {option}
""")
    # It takes over a socket that listens already: whoever connects early is served when it is up.
    haproxy = subprocess.Popen(["haproxy", "-db", "-f", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                               pass_fds=[front.fileno()])
    front.close()
    try:
        s = socket.create_connection(("127.0.0.2", port), timeout=20)
        own = "%s:%d" % s.getsockname()
        if listener == "tls":
            s = Tls(0, context(), sock=s)
        s.sendall(messages(echo_origin.port))
        finish(s)
        assert node.sessions()[0]["client"] == own
        s.close()
        assert node.wait_records(1)[0]["client_addr"] == own
        if listener == "main":
            r = subprocess.run(["curl", "-sS", "-x", f"http://u:p@127.0.0.2:{port}", "--noproxy", "", f"http://127.0.0.1:{web.port}/h"],
                               capture_output=True, text=True, timeout=60)
            assert r.stdout == "origin GET /h", r
    finally:
        haproxy.terminate()
        haproxy.wait()
        haproxy.stderr.close()


# --- the SNI gateway behind a proxy ---

@pytest.mark.parametrize("glued", [True, False])
def test_sni_listener(start, glued):
    from test_sniff import client_hello
    hello = client_hello("localhost")

    def answer(conn):
        assert recv_exact(conn, len(hello)) == hello
        conn.sendall(b"seen")

    with Origin(answer) as origin:
        node = start(listeners=[{"name": "main", "protocol": "sni", "listen": "127.0.0.1:0", "identity": "u", "origins": ["localhost"],
                                 "origin_port": origin.port, "proxy_protocol": {"from": ["127.0.0.1"]}}])
        for header, want in ((v1(), "203.0.113.9:5000"), (v2("2001:db8::7", "::1", tlvs=tlv(2, b"localhost")), "[2001:db8::7]:5000")):
            with node.connect() as s:
                for part in ([header + hello] if glued else [header, hello[:50], hello[50:]]):
                    s.sendall(part)
                    node.status()
                assert recv_exact(s, 4) == b"seen"
            record = node.wait_records(1, client_addr=want)[0]
            assert record["protocol"] == "sni" and record["target_host"] == "localhost"
        with node.connect() as s:
            s.sendall(hello)
            expect_closed(s)
        assert node.wait_records(1, failure_stage="parse")


def test_datagrams_come_from_the_client(start, lists):
    """Not from the proxy: what a header says holds for an association, too."""
    node = start(listeners=lists)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as origin, socket.create_connection(
            ("127.0.0.1", node.port), timeout=20, source_address=("127.0.0.2", 0)) as s:
        origin.bind(("127.0.0.1", 0))
        origin.settimeout(20)
        s.sendall(v1(src="127.0.0.3") + socks_greeting("u") + socks_auth("u", "p") + socks_request("0.0.0.0", 0, command=3))
        assert recv_exact(s, 4) == b"\x05\x02\x01\x00"
        code, host, port = socks_reply(s)
        assert (code, host) == (0, "127.0.0.1")
        head = b"\0\0\0\x01" + socket.inet_aton("127.0.0.1") + origin.getsockname()[1].to_bytes(2, "big")
        for source in ("127.0.0.2", "127.0.0.3"):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as u:
                u.settimeout(20)
                u.bind((source, 0))
                u.sendto(head + source.encode(), (host, port))
                if source == "127.0.0.2":
                    continue
                data, peer = origin.recvfrom(100)
                assert data == b"127.0.0.3"  # and the other one never came
                origin.sendto(b"back", peer)
                assert u.recv(100).endswith(b"back")
