"""The SNI gateway: TLS of clients that know of no proxy, relayed to the server that it names."""
import socket
import ssl
import subprocess

import pytest

from node import CULVERT, SLOW, HttpOrigin, Origin, block, echo, policy, recv_all, recv_exact, snapshot, wait_for
from test_sniff import client_hello, is_closed, pem, records_of, tls_origin  # noqa: F401

GW = {"name": "gw", "protocol": "sni", "listen": "127.0.0.1:0", "identity": "u"}


def gateway(start, port, origins=("localhost",), doc=None, extra=(), **more):
    listener = {**GW, "origins": list(origins), "origin_port": port, **more.pop("listener", {})}
    return start(listeners=[listener, *extra], doc=doc, **more)


def alert(s):
    """The description of the fatal alert that ends the connection."""
    data = recv_all(s)
    assert len(data) == 7 and data[:6] == b"\x15\x03\x03\x00\x02\x02", data
    return data[6]


def metric(node, outcome):
    return node.metrics()[f'culvert_sniff_total{{listener="gw",outcome="{outcome}"}}']


def test_real_clients(start, pem):  # noqa: F811
    with tls_origin(pem) as origin:
        node = gateway(start, origin.port)
        port = node.ports["gw"]
        got = subprocess.run(["curl", "-sk", "--max-time", str(10 * SLOW), "--connect-to", f"LocalHost:443:127.0.0.1:{port}",
                              "https://LocalHost/"], capture_output=True, check=True)
        assert got.stdout == b"ok\n"
        for version in ("-tls1_2", "-tls1_3"):
            got = subprocess.run(["openssl", "s_client", "-quiet", version, "-connect", f"127.0.0.1:{port}", "-servername",
                                  "localhost"], input=b"GET /\r\n\r\n", capture_output=True, timeout=20 * SLOW)
            assert got.stdout.endswith(b"ok\n"), got
    for record in node.wait_records(3, egress="direct"):
        assert record["protocol"] == "sni" and record["listener"] == "gw" and record["username"] == "u"
        assert record["target_host"] == record["sniffed_host"] == "localhost" and record["target_port"] == origin.port
        assert record["sniff_protocol"] == "tls" and record["egress"] == "direct" and record["bytes_up"] > 200
    assert metric(node, "tls_sni") == 3


def test_every_byte_arrives_once(start):
    """Not terminated, not changed: split anywhere, in any records, with what follows the hello."""
    hello = client_hello("localhost")
    with Origin(echo) as origin:
        node = gateway(start, origin.port)
        cases = [(hello, cut) for cut in range(1, len(hello), 11)]
        cases += [(records_of(hello, n), 0) for n in (1, 2, 3, 5, 100)]
        for data, cut in cases:
            s = node.connect("gw")
            s.sendall(data[:cut])
            s.sendall(data[cut:] + b"early")
            assert recv_exact(s, len(data) + 5) == data + b"early"
            s.shutdown(socket.SHUT_WR)
            assert recv_all(s) == b""
            s.close()
    assert len(node.wait_records(len(cases), result="ok")) == len(cases)


@pytest.mark.parametrize("what, stage, code", [
    ("other.test", "sni_allowlist", 112),
    ("sub.localhost", "sni_allowlist", 112),
    (None, "sni", 109),
    ("under_score.test", "sni", 112),
    ("blocked.test", "policy", 112),
    ("closed", "dial", 80),
])
def test_refused_with_an_alert(start, what, stage, code):
    doc = snapshot(policies={"default": policy(block("blocked.test"))})
    with Origin(echo) as origin:
        port = origin.port
        if what == "closed":
            origin.close()
            what = "localhost"
        node = gateway(start, port, origins=["localhost", "blocked.test"], doc=doc)
        s = node.connect("gw")
        s.sendall(client_hello(what))
        assert alert(s) == code
        record = node.wait_records(failure_stage=stage)[0]
        assert record["result"] == "error" and "egress" not in record and origin.accepted == 0
        assert record.get("sniffed_host") == (what if what and "_" not in what else None)


def test_curl_says_why(start):
    node = gateway(start, 443)
    got = subprocess.run(["openssl", "s_client", "-connect", f"127.0.0.1:{node.ports['gw']}", "-servername", "no.test"],
                         input=b"", capture_output=True, timeout=20 * SLOW)
    assert b"unrecognized name" in got.stderr


@pytest.mark.parametrize("data", [
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"\x05\x01\x00",
    b"CONNECT localhost:443 HTTP/1.1\r\nHost: localhost:443\r\n\r\n",
    b"\x80\x2e\x01\x03\x01\x00\x15\x00\x00\x00\x10",
])
def test_what_is_no_tls_is_closed(start, data):
    with HttpOrigin() as web:
        node = gateway(start, web.port)
        s = node.connect("gw")
        s.sendall(data)
        assert is_closed(s)
        assert node.wait_records(failure_stage="sni")[0]["message"] == "valid TLS SNI is required"
        assert web.accepted == 0


def test_no_whole_hello(start):
    """A hello and then silence, an end in the middle, too much of it; and one who says nothing at all."""
    node = gateway(start, 443, limits={"handshake_timeout": "500ms"}, listener={"sniff": {"max_bytes": 1024}})
    hello = client_hello("localhost")
    s = node.connect("gw")
    s.sendall(hello[:100])
    assert is_closed(s)
    record = node.wait_records(failure_stage="sni_read", sniff_outcome="timeout")[0]
    assert record["message"] == "ClientHello did not come in time"
    s = node.connect("gw")
    s.sendall(hello[:100])
    s.shutdown(socket.SHUT_WR)
    assert is_closed(s)
    node.wait_records(failure_stage="sni_read", sniff_outcome="incomplete")
    s = node.connect("gw")
    s.sendall(b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc\x03\x03" + bytes(2000))
    assert alert(s) == 112
    node.wait_records(failure_stage="sni", sniff_outcome="limit_exceeded")
    s = node.connect("gw")
    assert is_closed(s)
    wait_for(lambda: not node.sessions())
    assert len(node.records()) == 3


def test_identity_and_limits_hold(start):
    """Unknown, expired, full: closed before the hello; the permit comes back; a removed user's sessions end."""
    users = {"u": {"password": "p", "policy": "default", "max_connections": 1}}
    hello = client_hello("localhost")
    with Origin(echo) as origin:
        node = gateway(start, origin.port, doc=snapshot(users=users))
        s = node.connect("gw")
        s.sendall(hello)
        assert recv_exact(s, len(hello)) == hello
        assert is_closed(node.connect("gw"))
        node.wait_records(failure_stage="limit", username="u")
        s.close()
        node.wait_records(result="ok")
        s = node.connect("gw")
        s.sendall(hello)
        assert recv_exact(s, len(hello)) == hello
        node.apply(snapshot(users={"other": "p"}, version=2))
        assert is_closed(s)
        assert is_closed(node.connect("gw"))
        record = node.wait_records(failure_stage="auth")[0]
        assert record["username"] == "u" and record["message"] == "identity is not in the snapshot"
        node.apply(snapshot(users={"u": {**users["u"], "expire": "2020-01-01"}}, version=3))
        assert is_closed(node.connect("gw"))
        assert [r["message"] for r in node.wait_records(2, failure_stage="auth")][1] == "user expired"


def test_port_of_the_listener(start):
    """Without origin_port it is the port that the client came to; here that leads back, and is noticed."""
    node = gateway(start, 0)
    s = node.connect("gw")
    s.sendall(client_hello("localhost"))
    assert alert(s) == 80
    record = node.wait_records(target_host="localhost")[0]
    assert record["target_port"] == node.ports["gw"] and record["failure_stage"] == "dial"
    assert record["message"] == "origin leads back to this listener"
    assert len(node.records()) == 1


def test_address_guard_holds(start):
    node = gateway(start, 443, direct={"allow": []})
    s = node.connect("gw")
    s.sendall(client_hello("localhost"))
    assert alert(s) == 112
    assert node.wait_records()[0]["message"] == "address is private and not allowed by name"


def test_unix_listener(start, tmp_path):
    with Origin(echo) as origin:
        path = str(tmp_path / "gw.sock")
        node = gateway(start, origin.port, listener={"listen": f"unix:{path}"})
        hello = client_hello("localhost")
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(10 * SLOW)
            s.connect(path)
            s.sendall(hello)
            assert recv_exact(s, len(hello)) == hello
        assert node.wait_records()[0]["client_addr"] == "unix"


def test_behind_a_load_balancer(start):
    """The PROXY header comes first; the hello after it, in one piece with it or not, split anywhere."""
    hello = client_hello("localhost")
    header = b"PROXY TCP4 203.0.113.9 10.0.0.1 5000 443\r\n"
    with Origin(echo) as origin:
        node = gateway(start, origin.port, listener={"proxy_protocol": {"from": ["127.0.0.0/8"]}})
        data = header + hello
        for cut in (1, 20, len(header) - 1, len(header), len(header) + 1, len(header) + 5, len(data) - 1, len(data)):
            s = node.connect("gw")
            s.sendall(data[:cut])
            s.sendall(data[cut:])
            assert recv_exact(s, len(hello)) == hello, cut
            s.close()
        assert {r["client_addr"] for r in node.wait_records(8, result="ok", protocol="sni")} == {"203.0.113.9:5000"}
        s = node.connect("gw")
        s.sendall(header + client_hello("other.test"))
        assert alert(s) == 112
        s = node.connect("gw")
        s.sendall(header + b"GET http://127.0.0.1/ HTTP/1.1\r\nHost: a\r\n\r\n")
        assert is_closed(s)
        assert node.wait_records(protocol="sni", failure_stage="sni")[0]["client_addr"] == "203.0.113.9:5000"


def test_reload_changes_origins(start):
    import signal
    with Origin(echo) as origin:
        node = gateway(start, origin.port, origins=["a.test"])
        hello = client_hello("localhost")
        s = node.connect("gw")
        s.sendall(hello)
        assert alert(s) == 112
        node.config["listeners"][0]["origins"] = ["a.test", "LOCALHOST."]
        node.write_config()
        node.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "config reloaded" in node.log())
        s = node.connect("gw")
        s.sendall(hello)
        assert recv_exact(s, len(hello)) == hello


@pytest.mark.threads
def test_many_at_once(start):
    hello = client_hello("localhost")
    with Origin(echo) as origin:
        node = gateway(start, origin.port)
        fds = node.fds()
        clients = [node.connect("gw") for _ in range(60)]
        for i, s in enumerate(clients):
            s.sendall(hello if i % 3 else hello[:50])
        for i, s in enumerate(clients):
            if i % 3:
                assert recv_exact(s, len(hello)) == hello
            s.close()
        node.wait_records(40, result="ok")
        node.wait_records(20, failure_stage="sni_read")
        wait_for(lambda: node.fds() <= fds + 2, what="descriptors to go")


@pytest.mark.parametrize("change, text", [
    ({"identity": None}, "is required with protocol 'sni'"),
    ({"origins": None}, "is required with protocol 'sni'"),
    ({"origins": []}, "is required with protocol 'sni'"),
    ({"origins": ["*.example.com"]}, "is no host name"),
    ({"origins": ["10.0.0.1"]}, "is no host name"),
    ({"origins": ["0x7f.1"]}, "is no host name"),
    ({"origins": ["https://example.com"]}, "is no host name"),
    ({"origins": ["a.test", "A.TEST."]}, "is origins[0] already"),
    ({"tls": {"cert": "a", "key": "b"}}, "does not terminate it"),
    ({"no_auth_user": "u"}, "has 'identity' for that"),
    ({"sniff": {"mode": "route"}}, "always reads the name"),
    ({"sniff": {"timeout": "1s"}}, "always reads the name"),
    ({"sniff": {"max_bytes": 100}}, "from 512 to 65536"),
    ({"udp": "off"}, "is for listeners that speak SOCKS5"),
    ({"listen": "unix:x"}, "is required with a listener on 'unix:'"),
    ({"protocol": "socks5"}, "is for protocol 'sni' only"),
    ({"protocol": "http", "identity": None, "origins": None, "origin_port": 1}, "is for protocol 'sni' only"),
    ({"protocol": "http", "identity": None, "origins": None, "sniff": {"mode": "yes"}}, "off, observe or route"),
    ({"protocol": "http", "identity": None, "origins": None, "sniff": {"speed": 1}}, "speed"),
])
def test_config_faults(tmp_path, change, text):
    import json
    listener = {k: v for k, v in {**GW, "origins": ["a.test"], **change}.items() if v is not None}
    path = tmp_path / "culvert.yaml"
    path.write_text(json.dumps({"node_id": "n", "listeners": [listener]}, indent=1))
    got = subprocess.run([CULVERT, "check", "-c", str(path)], capture_output=True, text=True)
    assert got.returncode != 0 and text in got.stdout + got.stderr, got
    assert "culvert.yaml:" in got.stdout + got.stderr
