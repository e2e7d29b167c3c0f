"""Upstream proxies that are played by the test: odd replies, silence, death; what reaches them and what must not."""
import base64
import os
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time

import pytest

from node import (CULVERT, HttpOrigin, Node, Origin, SLOW, echo, policy, read_http, recv_all, recv_exact, snapshot, wait_for)
from peers import Certificates, upstream
from test_network import namespace

LOGIN = "up-user", "up-secret-word"


def through(egress, version=1, **more):
    return snapshot(policies={"default": policy(default="px")}, egresses={"px": egress, **more}, version=version)


def connect(node, target, login="u:p"):
    """CONNECT as a client: (head, socket)."""
    s = node.connect()
    s.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: x\r\nProxy-Authorization: Basic ".encode() +
              base64.b64encode(login.encode()) + b"\r\n\r\n")
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += recv_exact(s, 1)
    return head, s


def read_head(conn):
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += recv_exact(conn, 1)
    return head


def read_socks_request(conn):
    head = recv_exact(conn, 4)
    size = {1: 4, 4: 16}.get(head[3]) or recv_exact(conn, 1)[0]
    return head[3], recv_exact(conn, size), int.from_bytes(recv_exact(conn, 2), "big")


def socks_login(conn):
    """The proxy's part up to the request: what came as (user, password)."""
    method = recv_exact(conn, 3)[2:]
    conn.sendall(b"\x05" + method)
    if method == b"\x00":
        return None
    assert recv_exact(conn, 1) == b"\x01"
    user = recv_exact(conn, recv_exact(conn, 1)[0])
    password = recv_exact(conn, recv_exact(conn, 1)[0])
    conn.sendall(b"\x01\x00")
    return user, password


REPLIES = {
    "ip4": b"\x05\x00\x00\x01\x01\x02\x03\x04\x00\x50",
    "ip6": b"\x05\x00\x00\x04" + bytes(15) + b"\x01\x00\x50",
    "name": b"\x05\x00\x00\x03\x05proxy\x00\x50",
}


@pytest.mark.parametrize("bnd", REPLIES)
def test_socks_reply_in_pieces_with_a_banner(start, bnd):
    """The client sees exactly the banner, whatever the reply's own address is and wherever it is cut."""
    reply, cut = REPLIES[bnd] + b"BANNER", [0]

    def far(conn):
        socks_login(conn)
        read_socks_request(conn)
        conn.sendall(reply[:cut[0]])
        time.sleep(0.005)
        conn.sendall(reply[cut[0]:])
        echo(conn)

    with Origin(far) as o:
        node = start(doc=through(upstream("socks5", o.port)))
        for cut[0] in range(len(reply) + 1):
            for client in ("socks", "http"):
                if client == "socks":
                    rep, s = node.socks("198.51.100.1", 80)
                    assert rep == 0
                else:
                    head, s = connect(node, "198.51.100.1:80")
                    assert head.startswith(b"HTTP/1.1 200")
                assert recv_exact(s, 6) == b"BANNER"
                s.sendall(b"more")
                s.shutdown(socket.SHUT_WR)
                assert recv_all(s) == b"more"


def test_http_reply_in_pieces_with_a_banner(start):
    reply, cut = b"HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\nSSH-2.0-x\r\n", [0]

    def far(conn):
        read_head(conn)
        conn.sendall(reply[:cut[0]])
        time.sleep(0.005)
        conn.sendall(reply[cut[0]:])
        echo(conn)

    with Origin(far) as o:
        node = start(doc=through(upstream("http", o.port)))
        for cut[0] in range(0, len(reply) + 1, 3):
            rep, s = node.socks("ssh.test", 22)
            assert rep == 0
            assert recv_exact(s, 11) == b"SSH-2.0-x\r\n"
            s.sendall(b"more")
            s.shutdown(socket.SHUT_WR)
            assert recv_all(s) == b"more"


def test_early_data_of_the_client_follows_the_handshake(start):
    """What the client sent with its request reaches the origin once, behind the proxy's reply."""
    got = []

    def far(conn):
        got.append(read_head(conn))
        conn.settimeout(0.2)
        try:
            got.append(conn.recv(10))
        except TimeoutError:
            got.append(b"")
        conn.settimeout(10)
        conn.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        got.append(recv_exact(conn, 5))

    with Origin(far) as o:
        node = start(doc=through(upstream("http", o.port)))
        s = node.connect()
        s.sendall(b"CONNECT a.test:443 HTTP/1.1\r\nHost: x\r\nProxy-Authorization: Basic dTpw\r\n\r\nHELLO")
        wait_for(lambda: len(got) == 3, what="the early data")
        assert got[1:] == [b"", b"HELLO"]


def test_targets_as_the_proxy_sees_them(start):
    """Names stay names, addresses are addresses, IPv6 is in brackets; nothing is resolved here."""
    heads, requests = [], []

    def http(conn):
        heads.append(read_head(conn).decode())
        conn.sendall(b"HTTP/1.1 200 OK\r\n\r\n")

    def socks(conn):
        socks_login(conn)
        requests.append(read_socks_request(conn))
        conn.sendall(REPLIES["ip4"])

    targets = ["2001:db8::1", "192.0.2.7", "No-Such-Name.invalid"]
    with Origin(http) as h, Origin(socks) as k:
        node = start(doc=snapshot(users={u: {"password": "p", "policy": u} for u in ("h", "k")},
                                  policies={u: policy(default=u) for u in ("h", "k")},
                                  egresses={"h": upstream("http", h.port), "k": upstream("socks5", k.port)}),
                     dns={"servers": ["127.0.0.1:1"]})
        for target in targets:
            assert node.socks(target, 443, "h")[0] == 0
            assert node.socks(target, 443, "k")[0] == 0
        head, s = connect(node, "[2001:db8::1]:443", "h:p")
        assert head.startswith(b"HTTP/1.1 200")
    for head, name in zip(heads, ["[2001:db8::1]", "192.0.2.7", "no-such-name.invalid", "[2001:db8::1]"]):
        assert head.startswith(f"CONNECT {name}:443 HTTP/1.1\r\n"), head
        assert f"\r\nHost: {name}:443\r\n" in head
    assert requests == [(4, socket.inet_pton(socket.AF_INET6, "2001:db8::1"), 443), (1, bytes([192, 0, 2, 7]), 443),
                        (3, b"no-such-name.invalid", 443)]


def test_the_proxy_gets_only_its_own_login(start):
    """The client's Proxy-Authorization ends here, in each way of asking; the upstream's own is sent once."""
    seen, inner = [], []

    def far(conn):
        stream = conn.makefile("rb")
        seen.append(read_http(stream))
        conn.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        request = read_http(stream)
        inner.append(request)
        conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    with Origin(far) as o:
        node = start(doc=through(upstream("http", o.port, *LOGIN)))
        own = "Basic " + base64.b64encode(":".join(LOGIN).encode()).decode()
        for extra in ("Proxy-Authorization: Basic dTpw\r\n", "pRoXy-AuThOrIzAtIoN: Basic dTpw\r\nProxy-Foo: x\r\n"):
            s = node.connect()
            s.sendall(f"GET http://a.test/x HTTP/1.1\r\nHost: a.test\r\n{extra}\r\n".encode())
            assert s.recv(100).startswith(b"HTTP/1.1 200")
            head, t = connect(node, "b.test:80")
            assert head.startswith(b"HTTP/1.1 200")
            t.sendall(b"GET / HTTP/1.1\r\nHost: b.test\r\n\r\n")
            assert t.recv(100).startswith(b"HTTP/1.1 200")
    assert len(seen) == 4
    for request in seen:
        assert request["method"] == "CONNECT"
        assert [v for k, v in request["headers"] if k.lower() == "proxy-authorization"] == [own]
        assert b"dTpw" not in request["head"]
    for request in inner:
        assert "proxy-authorization" not in request["low"] and "proxy-foo" not in request["low"]


def test_forwarded_requests_keep_their_connection(start):
    """Two requests of one client to one host share a tunnel; another host gets another."""
    def far(conn):
        stream = conn.makefile("rb")
        name = read_http(stream)["path"]
        conn.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while read_http(stream):
            conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(name), name.encode()))

    with Origin(far) as o:
        node = start(doc=through(upstream("http", o.port)))
        s = node.connect()
        stream = s.makefile("rb")
        for host in ("a.test", "a.test", "b.test", "b.test"):
            s.sendall(f"GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\nProxy-Authorization: Basic dTpw\r\n\r\n".encode())
            while stream.readline() != b"\r\n":
                pass
            assert stream.read(len(host) + 3) == f"{host}:80".encode()
        assert o.accepted == 2


def test_longest_credentials(start, tmp_path):
    """255 bytes each go over the wire as they are; 256 are refused with their path when the snapshot is loaded."""
    seen = []

    def far(conn):
        first = conn.recv(1, socket.MSG_PEEK)
        if first == b"\x05":
            seen.append(socks_login(conn))
            read_socks_request(conn)
            conn.sendall(REPLIES["ip4"])
        else:
            head = read_head(conn)
            user, password = base64.b64decode(re.search(rb"Basic (\S+)", head)[1]).split(b":")
            seen.append((user, password))
            conn.sendall(b"HTTP/1.1 200 OK\r\n\r\n")

    with Origin(far) as o:
        node = start(doc=through(upstream("socks5", o.port, "A" * 255, "B" * 255)))
        assert node.socks("a.test", 1)[0] == 0
        node.apply(through(upstream("http", o.port, "A" * 255, "B" * 255), version=2))
        assert node.socks("a.test", 1)[0] == 0
        assert seen == [(b"A" * 255, b"B" * 255)] * 2
        for version, (kind, user, password, member) in enumerate((("socks5", 256, 1, "username"), ("socks5", 1, 256, "password"),
                                                                  ("http", 256, 256, "username")), 3):
            node.write_snapshot(through(upstream(kind, o.port, "A" * user, "B" * password), version=version))
            wait_for(lambda: node.log().count("refused, version 2 stays in force") >= version - 2, what="the refusal")
            assert f"egresses.px.backend.{member}" in node.log()
            check = subprocess.run([CULVERT, "check", "--snapshot", node.snapshot_path], capture_output=True, text=True)
            assert check.returncode != 0 and f"egresses.px.backend.{member}" in check.stdout + check.stderr
            assert "AAAA" not in check.stdout + check.stderr + node.log() and "BBBB" not in node.log()
        assert node.status()["snapshot"]["version"] == 2


@pytest.mark.parametrize("kind", ["socks5", "http"])
@pytest.mark.parametrize("how", ["silent", "drip", "silent-tls"])
def test_set_up_has_one_deadline(start, kind, how):
    """A proxy that takes the connection and then says nothing, or a byte now and then."""
    drip = {"socks5": b"\x05\x00\x05\x00\x00\x03\xff" + b"x" * 300, "http": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 300}[kind]

    def far(conn):
        if how == "drip":
            for byte in drip:
                conn.sendall(bytes([byte]))
                time.sleep(0.1)
        recv_all(conn)

    with Origin(far) as o:
        node = start(doc=through(upstream(kind, o.port, tls=how == "silent-tls")), limits={"connect_timeout": "1s"})
        for rep_of in (lambda: node.socks("a.test", 80)[0], lambda: int(connect(node, "a.test:80")[0].split()[1])):
            began = time.monotonic()
            assert rep_of() in (6, 504)
            assert 0.9 < time.monotonic() - began < 1.6 * SLOW
        record, *_ = node.wait_records(2)
        assert record["failure_stage"] == ("tls" if how == "silent-tls" else "outbound")
        assert record["message"] == "connection timed out"
        wait_for(lambda: not o.open, what="the connections to the proxy to be gone")


@pytest.mark.threads
def test_many_silent_proxies_cost_nothing_in_the_end(start):
    """Hundreds of connections that the proxy accepts and never answers: gone after the limit, descriptors flat."""
    with Origin(recv_all) as o:
        node = start(doc=through(upstream("socks5", o.port)), limits={"connect_timeout": "1s"})
        node.socks("a.test", 80)
        before = node.fds()
        clients = []
        for i in range(200):
            s = node.connect()
            s.sendall(b"\x05\x01\x02\x01\x01u\x01p\x05\x01\x00\x03\x06a.test\x00\x50")
            clients.append(s)
        for i, s in enumerate(clients):
            if i % 3 == 0:
                s.close()  # gives up while we wait
            else:
                assert recv_exact(s, 6)[5] == 6
                s.close()
        wait_for(lambda: node.fds() <= before and not node.sessions(), what="the descriptors to be given back")


def test_refusals_are_told_as_they_are(start):
    answer = [b""]

    def socks(conn):
        socks_login(conn)
        read_socks_request(conn)
        conn.sendall(answer[0])

    def http(conn):
        read_head(conn)
        conn.sendall(answer[0])

    with Origin(socks) as k, Origin(http) as h:
        node = start(doc=snapshot(users={u: {"password": "p", "policy": u} for u in ("h", "k")},
                                  policies={u: policy(default=u) for u in ("h", "k")},
                                  egresses={"h": upstream("http", h.port), "k": upstream("socks5", k.port)}))
        for code, status in ((1, 502), (2, 403), (3, 502), (4, 502), (5, 502), (6, 504), (7, 502), (8, 502)):
            answer[0] = bytes([5, code, 0, 1, 0, 0, 0, 0, 0, 0])
            assert node.socks("a.test", 80, "k")[0] == code
            assert connect(node, "a.test:80", "k:p")[0].split()[1] == str(status).encode(), code
        for code, rep, status in ((407, 1, 502), (401, 1, 502), (403, 2, 403), (502, 1, 502), (503, 1, 502), (504, 6, 504),
                                  (302, 1, 502)):
            answer[0] = b"HTTP/1.1 %d No\r\nProxy-Authenticate: Basic realm=\"far\"\r\nContent-Length: 4\r\n\r\nbody" % code
            assert node.socks("a.test", 80, "h")[0] == rep, code
            head, s = connect(node, "a.test:80", "h:p")
            assert head.split()[1] == str(status).encode(), code
            assert b"far" not in head and b"Proxy-Authenticate" not in head
        for odd in (b"\x05\x00\x00\x02", b"\x04", b"HTTP/1.1 200 OK\r\n\r\n"):
            answer[0] = odd
            assert node.socks("a.test", 80, "k")[0] == 1
        for odd in (b"\x05\x00\r\n\r\n", b"HTTP/1.1 200 OK\n\n", b"HTTP/1.1 200 OK\r\n", b"", b"HTTP/1.1 101 X\r\n\r\n",
                    b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 2000):
            answer[0] = odd
            assert node.socks("a.test", 80, "h")[0] == 1
        for record in node.wait_records(30):
            assert record["result"] == "error" and record["failure_stage"] == "outbound", record
        metrics = node.metrics()
        label = f'culvert_egress_refused_total{{egress="upstream:127.0.0.1:{k.port}",stage="outbound"}}'
        assert metrics[label] == 19, {k: v for k, v in metrics.items() if "refused" in k and v}


def test_addresses_that_cannot_be_dialled(start):
    node = start(doc=through({"type": "upstream", "backend": {"kind": "http", "addr": "no-port.test"}}))
    assert node.socks("a.test", 80)[0] == 1
    record, = node.wait_records(1)
    assert (record["failure_stage"], record["message"]) == ("dial", "upstream address is not host:port")
    assert "which is not host:port" in node.log()
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        node.apply(through(upstream("http", closed.getsockname()[1]), version=2))
        assert node.socks("a.test", 80)[0] == 5
        assert node.wait_records(2)[1]["failure_stage"] == "dial"
    node.apply(through(upstream("http", 80, host="no-such-proxy.invalid"), version=3))
    assert node.socks("a.test", 80)[0] == 4
    assert node.wait_records(3)[2]["failure_stage"] == "dns"


def test_death_in_the_middle(start):
    """A reset of the proxy's connection is a reset for the client, and the next connection is a new attempt."""
    def far(conn):
        socks_login(conn)
        read_socks_request(conn)
        conn.sendall(REPLIES["ip4"] + b"hello")
        recv_exact(conn, 2)
        conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")

    with Origin(far) as o:
        node = start(doc=through(upstream("socks5", o.port)))
        for _ in range(2):
            rep, s = node.socks("a.test", 80)
            assert rep == 0
            assert recv_exact(s, 5) == b"hello"
            s.sendall(b"hi")
            with pytest.raises(ConnectionResetError):
                s.recv(1)
        assert node.wait_records(2, failure_stage="splice")[0]["bytes_down"] == 5


def test_sessions_of_tls_are_resumed(start, tmp_path):
    """As the far side sees it, with TLS 1.2 and 1.3; and SNI is the host of 'addr'."""
    certs = Certificates(tmp_path)
    pem = certs.make("good", "DNS:localhost")
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
        context.minimum_version = context.maximum_version = version
        names, reused = [], []
        context.sni_callback = lambda sock, name, ctx: names.append(name)

        def far(conn):
            with context.wrap_socket(conn, server_side=True) as tls:
                reused.append(tls.session_reused)
                read_head(tls)
                tls.sendall(b"HTTP/1.1 200 OK\r\n\r\nBANNER")
                tls.recv(1)

        with Origin(far) as o:
            node = start(doc=through(upstream("https", o.port, host="localhost", tls=True)), env={"SSL_CERT_FILE": certs.ca},
                         workers=1)
            for _ in range(3):
                rep, s = node.socks("a.test", 80)
                assert rep == 0
                assert recv_exact(s, 6) == b"BANNER"
                s.close()
                wait_for(lambda: not o.open, what="the end")
            node.process.send_signal(1)
            wait_for(lambda: "config reloaded" in node.log(), what="the reload")
            assert node.socks("a.test", 80)[0] == 0
            assert reused == [False, True, True, False], (version, reused)
            assert names == ["localhost"] * 4


def test_authorities_of_one_upstream(start, tmp_path):
    """tls_ca of the config holds for its egress and replaces the system's; it is read again on SIGHUP."""
    (tmp_path / "one").mkdir(), (tmp_path / "two").mkdir()
    one, two = Certificates(tmp_path / "one"), Certificates(tmp_path / "two")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(one.make("good", "DNS:localhost"))

    def far(conn):
        with context.wrap_socket(conn, server_side=True) as tls:
            read_head(tls)
            tls.sendall(b"HTTP/1.1 200 OK\r\n\r\nBANNER")
            tls.recv(1)

    ca = tmp_path / "ca.pem"
    shutil.copy(one.ca, ca)
    with Origin(far) as o:
        doc = through(upstream("https", o.port, host="localhost", tls=True))
        name, = doc["egresses"]
        node = start(doc=doc, env={"SSL_CERT_FILE": two.ca}, egresses=[{"id": name, "tls_ca": str(ca)}])
        assert node.socks("a.test", 80)[0] == 0
        told = subprocess.run([CULVERT, "explain", "--snapshot", node.snapshot_path, "-c", node.config_path, "--user", "u",
                               "--target", "a.test:80"], capture_output=True, text=True).stdout
        assert f"certificates are checked against {ca}" in told
        shutil.copy(two.ca, ca)
        node.process.send_signal(1)
        wait_for(lambda: "config reloaded" in node.log(), what="the reload")
        assert node.socks("a.test", 80)[0] != 0
        assert node.wait_records(1, failure_stage="tls")
        # One that cannot be read: refused, and never another way.
        ca.write_text("nothing")
        node.process.send_signal(1)
        wait_for(lambda: node.log().count("config reloaded") == 2, what="the second reload")
        assert f"egress '{name}' is not available" in node.log()
        assert node.socks("a.test", 80)[0] != 0
        check = subprocess.run([CULVERT, "check", "-c", node.config_path], capture_output=True, text=True)
        assert check.returncode == 1 and "egresses[0].tls_ca: " in check.stderr and str(ca) in check.stderr


@pytest.mark.threads
def test_swaps_under_load(start):
    """Snapshots that change their upstream back and forth while connections are opened: each goes to a proxy that one
    of them names, and live ones go on."""
    def far_of(name):
        def far(conn):
            socks_login(conn)
            read_socks_request(conn)
            conn.sendall(REPLIES["ip4"] + name)
            echo(conn)
        return far

    with Origin(far_of(b"A")) as a, Origin(far_of(b"B")) as b:
        node = start(doc=through(upstream("socks5", a.port)))
        rep, live = node.socks("a.test", 80)
        assert rep == 0 and recv_exact(live, 1) == b"A"
        stop, failures, seen = threading.Event(), [], set()

        def client():
            while not stop.is_set():
                try:
                    rep, s = node.socks("a.test", 80)
                    if rep != 0:
                        failures.append(rep)
                    seen.add(recv_exact(s, 1))
                    s.close()
                except (OSError, EOFError) as e:
                    failures.append(e)

        threads = [threading.Thread(target=client) for _ in range(4)]
        for t in threads:
            t.start()
        for version in range(2, 12):
            node.apply(through(upstream("socks5", (a, b)[version % 2].port), version=version))
        stop.set()
        for t in threads:
            t.join()
        assert not failures and seen == {b"A", b"B"}
        live.sendall(b"still")
        assert recv_exact(live, 5) == b"still"


def test_egresses_of_the_config(start, tmp_path):
    node = start(egresses=[{"id": "nobody", "proxy_protocol": "v1"}])
    assert "config option 'egresses[0]': the snapshot has no egress 'nobody'" in node.log()
    for bad, text in (([{"id": "a"}, {"id": "a"}], "egresses[1].id: is the id of egresses[0] already"),
                      ([{"id": "a", "proxy_protocol": "v3"}], "egresses[0].proxy_protocol: 'v3' is not accepted"),
                      ([{"proxy_protocol": "v1"}], "id"), ([{"id": "a", "proxy_protocl": "v1"}], "did you mean 'proxy_protocol'")):
        node.config["egresses"] = bad
        node.write_config()
        check = subprocess.run([CULVERT, "check", "-c", node.config_path], capture_output=True, text=True)
        assert check.returncode != 0 and text in check.stdout + check.stderr, check


def test_the_example():
    path = os.path.join(os.path.dirname(__file__), "../../examples/upstream.json")
    check = subprocess.run([CULVERT, "check", "--snapshot", path], capture_output=True, text=True)
    assert check.returncode == 0, check
    told = subprocess.run([CULVERT, "explain", "--snapshot", path, "--user", "alice", "--target", "example.org:443"],
                          capture_output=True, text=True).stdout
    assert "upstream:proxy.example.com:443" in told


@pytest.mark.netns
def test_nothing_leaves_directly(tmp_path):
    """Every upstream is dead, silent or hostile, and a direct route to everywhere is open: not one packet of those users
    takes it, the resolver's included. A user of the direct egress shows that the counter counts."""
    with namespace():
        subprocess.run(["ip", "route", "add", "default", "via", "192.0.2.2"], check=True)
        subprocess.run(["ip", "-6", "route", "add", "default", "via", "2001:db8::2"], check=True)
        subprocess.run(["nft", "-f", "-"], check=True, text=True, input="""
            table inet leak { chain out { type filter hook output priority 0;
                oifname != "lo" meta l4proto { tcp, udp } counter
            }
            }""")

        def leaked():
            text = subprocess.run(["nft", "list", "table", "inet", "leak"], check=True, capture_output=True, text=True).stdout
            return int(re.search(r"counter packets (\d+)", text)[1])

        def hostile(conn):
            conn.recv(100)
            conn.sendall(b"HTTP/1.1 305 Use Proxy\r\nLocation: http://192.0.2.99:80/\r\n\r\n")

        with Origin(recv_all) as silent, Origin(lambda conn: None) as closing, Origin(hostile) as odd:
            closed = socket.create_server(("127.0.0.1", 0))
            dead = closed.getsockname()[1]
            closed.close()
            egresses = {}
            for kind in ("http", "socks5"):
                for name, port in (("silent", silent.port), ("closing", closing.port), ("odd", odd.port), ("dead", dead)):
                    egresses[f"{kind}-{name}"] = upstream(kind, port)
                    egresses[f"{kind}-{name}-tls"] = upstream(kind, port, tls=True)
                egresses[f"{kind}-bad"] = {"type": "upstream", "backend": {"kind": kind, "addr": "nonsense"}}
            users = {name: {"password": "p", "policy": name} for name in egresses}
            users["free"] = {"password": "p", "policy": "free"}
            policies = {name: policy(default=name) for name in egresses}
            policies["free"] = policy()
            doc = snapshot(users=users, policies=policies, egresses=egresses)
            with Node(tmp_path, doc=doc, limits={"connect_timeout": "300ms"}, dns={"servers": ["192.0.2.53"]},
                      direct={"allow": ["0.0.0.0/0", "::/0"]}) as node:
                before = leaked()
                for user in egresses:
                    for host in ("203.0.113.5", "2001:db8:1::5", "leak.test"):
                        assert node.socks(host, 80, user)[0] not in (0, 0xFF), (user, host)
                    head, _ = connect(node, "leak.test:443", f"{user}:p")
                    assert head.split()[1] in (b"502", b"503", b"504", b"403"), (user, head)
                    s = node.connect()
                    login = base64.b64encode(f"{user}:p".encode()).decode()
                    s.sendall(f"GET http://leak.test/ HTTP/1.1\r\nHost: x\r\nProxy-Authorization: Basic {login}\r\n\r\n".encode())
                    assert s.recv(100).split()[1] in (b"502", b"503", b"504")
                assert leaked() == before
                node.socks("leak.test", 80, "free")
                assert leaked() > before
