"""SOCKS5 UDP with programs that others wrote: resolvers' clients, QUIC, SOCKS clients and proxies."""
import contextlib
import json
import os
import shutil
import socket
import subprocess

import pytest
import socks

from node import Node, SLOW, policy, snapshot, wait_for
from test_network import Dns, namespace
from udp import Association, Forwarder, UdpServer


def run(*args, timeout=60):
    return subprocess.run(args, capture_output=True, text=True, timeout=timeout * SLOW)


@contextlib.contextmanager
def running(*args, **more):
    process = subprocess.Popen(args, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **more)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_port(kind=socket.SOCK_STREAM):
    with socket.socket(socket.AF_INET, kind) as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def listens(port):
    try:
        socket.create_connection(("127.0.0.1", port)).close()
        return True
    except OSError:
        return False


def upstream(kind, port, **more):
    return {"type": "upstream", "backend": {"kind": kind, "addr": f"127.0.0.1:{port}", **more}}


@pytest.mark.parametrize("tool", ["dig", "kdig"])
def test_resolver_clients(node, tool):
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    dns = Dns({("www.example.org", 1): ["192.0.2.80"], ("www.example.org", 28): ["2001:db8::80"]})
    with Association(node) as a, Forwarder(a, ("127.0.0.1", dns.port)) as forwarder:
        for kind, answer in (("A", "192.0.2.80"), ("AAAA", "2001:db8::80")):
            r = run(tool, "+short", "@127.0.0.1", "-p", str(forwarder.port), "www.example.org", kind)
            assert r.stdout.split() == [answer], r
    assert node.wait_records(protocol="socks5-udp")[0]["datagrams_up"] == 2


@pytest.mark.threads
def test_quic(node, tmp_path):
    """A QUIC client and server, with one MiB between them."""
    server = shutil.which("gtlsserver") or "/usr/sbin/gtlsserver"
    client = shutil.which("gtlsclient") or "/usr/bin/gtlsclient"
    if not (os.path.exists(server) and os.path.exists(client)):
        pytest.skip("ngtcp2-client and ngtcp2-server are not installed")
    assert run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
               "-subj", "/CN=localhost", "-keyout", f"{tmp_path}/key", "-out", f"{tmp_path}/cert").returncode == 0
    root, out = tmp_path / "root", tmp_path / "out"
    root.mkdir()
    out.mkdir()
    (root / "file").write_bytes(os.urandom(1 << 20))
    port = free_port(socket.SOCK_DGRAM)
    with running(server, "-q", "-d", str(root), "127.0.0.1", str(port), f"{tmp_path}/key", f"{tmp_path}/cert"), \
            Association(node) as a, Forwarder(a, ("localhost", port), as_name=True) as forwarder:
        wait_for(lambda: f":{port:04X} " in open("/proc/net/udp").read(), what="the QUIC server")
        r = run(client, "-q", "--download", str(out), "--exit-on-all-streams-close", "--timeout", "10s", "127.0.0.1",
                str(forwarder.port), f"https://localhost:{port}/file")
        assert r.returncode == 0, r
    assert (out / "file").read_bytes() == (root / "file").read_bytes()
    record = node.wait_records(protocol="socks5-udp")[0]
    assert record["bytes_down"] > 1 << 20 and record["datagrams_dropped"] == 0


def test_pysocks(node):
    """A SOCKS library's own idea of UDP."""
    with UdpServer() as echo:
        s = socks.socksocket(socket.AF_INET, socket.SOCK_DGRAM)
        s.set_proxy(socks.SOCKS5, "127.0.0.1", node.port, username="u", password="p")
        s.settimeout(10 * SLOW)
        for i in range(10):
            s.sendto(b"datagram %d" % i, echo.addr)
            data, sender = s.recvfrom(1000)
            assert data == b"datagram %d" % i and sender == echo.addr
        s.close()
    assert node.wait_records(protocol="socks5-udp")[0]["datagrams_up"] == 10


def test_v2ray_as_client(node, tmp_path):
    """V2Ray brings datagrams of a local port to the node as a SOCKS client. It states its target in the request."""
    program = shutil.which("v2ray")
    if program is None:
        pytest.skip("v2ray is not installed")
    local = free_port(socket.SOCK_DGRAM)
    with UdpServer("127.0.0.2") as echo:
        (tmp_path / "v2ray.json").write_text(json.dumps({
            "log": {"loglevel": "none"},
            "inbounds": [{"listen": "127.0.0.1", "port": local, "protocol": "dokodemo-door",
                          "settings": {"address": "127.0.0.2", "port": echo.port, "network": "udp"}}],
            "outbounds": [{"protocol": "socks", "settings": {"servers": [
                {"address": "127.0.0.1", "port": node.port, "users": [{"user": "u", "pass": "p"}]}]}}]}))
        with running(program, "-config", str(tmp_path / "v2ray.json")), \
                socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.settimeout(0.3)

            def through():
                s.sendto(b"hello", ("127.0.0.1", local))
                try:
                    return s.recv(100) == b"hello"
                except (TimeoutError, ConnectionRefusedError):
                    return False
            wait_for(through, what="v2ray", timeout=20)
            s.settimeout(10 * SLOW)
            for i in range(50):
                s.sendto(b"%d" % i, ("127.0.0.1", local))
                assert s.recv(100) == b"%d" % i
    assert node.wait_records(protocol="socks5-udp")[0]["datagrams_down"] >= 51


@pytest.mark.netns
def test_keepalive_on_the_control_connection(tmp_path):
    """What notices a client that has vanished without a word: the socket's options, from the start."""
    with namespace(), Node(tmp_path) as node, Association(node):
        def tuned():
            out = run("ss", "-tnoH", "state", "established").stdout
            return [x for x in out.splitlines() if "keepalive" in x and f":{node.port} " in x]
        wait_for(tuned, what="keepalive")


# --- proxies behind the node ---


@contextlib.contextmanager
def dante(tmp_path):
    program = shutil.which("danted") or "/usr/sbin/danted"
    if not os.path.exists(program):
        pytest.skip("dante-server is not installed")
    port = free_port()
    config = tmp_path / "danted.conf"
    config.write_text(f"""\
logoutput: /dev/null
internal: 127.0.0.1 port = {port}
external: lo
clientmethod: none
socksmethod: none
client pass {{ from: 127.0.0.0/8 to: 0.0.0.0/0 }}
socks pass {{ from: 127.0.0.0/8 to: 0.0.0.0/0 command: connect udpassociate udpreply bindreply }}
""")
    with running(program, "-f", str(config), "-p", str(tmp_path / "danted.pid")):
        wait_for(lambda: listens(port), what="danted", timeout=20)
        yield upstream("socks5", port)


@contextlib.contextmanager
def v2ray(tmp_path):
    program = shutil.which("v2ray")
    if program is None:
        pytest.skip("v2ray is not installed")
    port = free_port()
    config = tmp_path / "v2ray-server.json"
    config.write_text(json.dumps({
        "log": {"loglevel": "none"},
        "inbounds": [{"listen": "127.0.0.1", "port": port, "protocol": "socks",
                      "settings": {"auth": "password", "udp": True, "ip": "127.0.0.1",
                                   "accounts": [{"user": "v", "pass": "w"}]}}],
        "outbounds": [{"protocol": "freedom", "settings": {}}]}))
    with running(program, "-config", str(config)):
        wait_for(lambda: listens(port), what="v2ray", timeout=20)
        yield upstream("socks5", port, username="v", password="w")


@contextlib.contextmanager
def another_node(tmp_path):
    with Node(tmp_path / "behind", users={"v": "w"}) as behind:
        yield upstream("socks5", behind.port, username="v", password="w")


PROXIES = [dante, v2ray, another_node]


@pytest.mark.parametrize("proxy", PROXIES)
def test_through_a_socks5_proxy(start, tmp_path, proxy):
    with proxy(tmp_path) as egress, UdpServer() as echo, UdpServer("127.0.0.2") as other:
        node = start(doc=snapshot(policies={"default": policy(default="up")}, egresses={"up": egress}))
        with Association(node) as a:
            for i in range(20):
                assert a.ask(b"%d" % i, echo.addr) == (b"%d" % i, echo.addr)
            assert a.ask(b"other", other.addr) == (b"other", other.addr)
            # V2Ray carries neither empty datagrams nor those beyond its buffer.
            for size in (1400,) if proxy is v2ray else (0, 1400, 8000):
                assert a.ask(b"x" * size, echo.addr)[0] == b"x" * size
            # The proxy resolves names.
            assert a.ask(b"name", ("localhost", echo.port), as_name=True)[0] == b"name"
            # None of it came from this node.
            session = node.sessions()[0]
            assert session["egress"].startswith("upstream:")
        record = node.wait_records(protocol="socks5-udp")[0]
        assert record["result"] == "ok" and record["egress"] == record["decision"]
        assert record["datagrams_up"] == record["datagrams_down"] == (23 if proxy is v2ray else 25)
        label = record["egress"]
        metrics = node.metrics()
        assert metrics[f'culvert_egress_bytes_total{{egress="{label}",direction="up"}}'] == record["bytes_up"]
        assert metrics[f'culvert_egress_active{{egress="{label}"}}'] == 0


@pytest.mark.threads
def test_many_through_two_nodes(start, tmp_path):
    """Two hops of UDP; what a chain of proxies would see."""
    with another_node(tmp_path) as egress, UdpServer() as echo:
        node = start(doc=snapshot(policies={"default": policy(default="up")}, egresses={"up": egress}))
        many = [Association(node) for _ in range(20)]
        for i, a in enumerate(many):
            for j in range(20):
                a.send(b"%d %d" % (i, j), echo.addr)
        for i, a in enumerate(many):
            assert [a.recv()[0] for _ in range(20)] == [b"%d %d" % (i, j) for j in range(20)]
            a.close()


def test_the_proxy_goes_and_comes_back(start, tmp_path):
    """The control connection's end is the way's end, not the association's; the next one opens a second later."""
    with Node(tmp_path / "behind", users={"v": "w"}) as behind, UdpServer() as echo:
        egress = upstream("socks5", behind.port, username="v", password="w")
        node = start(doc=snapshot(policies={"default": policy(default="up")}, egresses={"up": egress}))
        with Association(node) as a:
            assert a.ask(b"1", echo.addr)[0] == b"1"
            assert behind.http("DELETE", "/sessions/" + behind.sessions()[0]["id"])[0] in (200, 202, 204)
            wait_for(lambda: node.metrics()['culvert_egress_active{egress="%s"}' % node.sessions()[0]["egress"]] == 0)
            a.udp.settimeout(0.3)

            def through():
                a.send(b"2", echo.addr)
                try:
                    return a.recv()[0] == b"2"
                except TimeoutError:
                    return False
            wait_for(through, what="the second way")
        assert node.wait_records(protocol="socks5-udp")[0]["result"] == "ok"


@pytest.mark.parametrize("broken,stage", [("closed", "dial"), ("password", "outbound"), ("no udp", "outbound"),
                                          ("http", "egress"), ("tls", "egress")])
def test_refused_with_its_stage(start, tmp_path, broken, stage):
    """A way that cannot be opened: dropped, counted, told at the end; never another way."""
    listeners = [{"name": "main", "protocol": "mixed", "listen": "127.0.0.1:0", "udp": "off"}]
    with Node(tmp_path / "behind", users={"v": "w"}, listeners=listeners) as behind, UdpServer() as echo:
        port = free_port() if broken == "closed" else behind.port
        egress = upstream("http" if broken == "http" else "socks5", port, username="v",
                          password="bad" if broken == "password" else "w", **({"tls": True} if broken == "tls" else {}))
        node = start(doc=snapshot(policies={"default": policy(default="up")}, egresses={"up": egress}))
        with Association(node) as a:
            for _ in range(3):
                a.send(b"x", echo.addr)
            wait_for(lambda: node.sessions()[0]["datagrams_dropped"] == 3)
        record = node.wait_records(protocol="socks5-udp")[0]
        assert record["result"] == "error" and record["failure_stage"] == stage, record
        assert record["datagrams_up"] == 0 and record["decision"].startswith("upstream:") and "egress" not in record
        assert echo.seen == []
        assert node.metrics()['culvert_udp_dropped_total{reason="egress"}'] == 3
