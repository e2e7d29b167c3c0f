"""TLS towards clients: certificates by name, versions, ALPN, reload, ends, bounds."""
import datetime
import os
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import threading
import time
import warnings

import pytest

from node import Node, Origin, echo, recv_all, recv_exact, socks_auth, socks_greeting, socks_reply, socks_request, wait_for
from pki import Authority, Tls, context, replace


@pytest.fixture
def ca(tmp_path):
    return Authority(tmp_path)


def listeners(ca, protocol="mixed", **tls):
    cert, key, _ = ca.issue("server", cn="default", dns=["proxy.test"])
    return [{"name": "main", "protocol": protocol, "listen": "127.0.0.1:0", "tls": {"cert": cert, "key": key, **tls}}]


def socks_open(s, port, user="u", password="p"):
    """SOCKS5 over anything that sends and receives; everything at once."""
    s.sendall(socks_greeting(user) + socks_auth(user, password) + socks_request("127.0.0.1", port))
    assert recv_exact(s, 4) == b"\x05\x02\x01\x00"
    return socks_reply(s)[0]


# --- protocols ---

def test_curl_https_proxy(start, ca, web):
    node = start(listeners=listeners(ca, "http"))
    for more in ([], ["-p"]):
        r = subprocess.run(["curl", "-sS", "--proxy", f"https://u:p@127.0.0.1:{node.port}", "--proxy-cacert", ca.file, "--noproxy", "",
                            *more, f"http://127.0.0.1:{web.port}/x"], capture_output=True, text=True, timeout=60)
        assert r.returncode == 0 and r.stdout == "origin GET /x", r
    r = subprocess.run(["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "--proxy", f"https://u:wrong@127.0.0.1:{node.port}",
                        "--proxy-cacert", ca.file, "--noproxy", "", f"http://127.0.0.1:{web.port}/"], capture_output=True, text=True,
                       timeout=60)
    assert r.stdout == "407"
    # Without the authority the client is not fooled, and the node says where it failed.
    r = subprocess.run(["curl", "-sS", "--proxy", f"https://u:p@127.0.0.1:{node.port}", "--noproxy", "",
                        f"http://127.0.0.1:{web.port}/"], capture_output=True, text=True, timeout=60)
    assert r.returncode != 0
    node.wait_records(1, failure_stage="tls")
    assert len(web.requests) == 2


@pytest.mark.parametrize("protocol", ["socks5", "mixed"])
@pytest.mark.parametrize("split", [None, 1, 7])
def test_socks_over_tls(start, ca, echo_origin, protocol, split):
    node = start(listeners=listeners(ca, protocol))
    with Tls(node.port, context(ca.file), sni="proxy.test", split=split) as s:
        assert socks_open(s, echo_origin.port) == 0
        s.sendall(b"hello")
        assert recv_exact(s, 5) == b"hello"
    assert node.wait_records(1)[0]["protocol"] == "socks5"


def test_one_byte_per_record(start, ca, echo_origin):
    node = start(listeners=listeners(ca))
    with Tls(node.port, split=1) as s:
        for b in socks_greeting("u") + socks_auth("u", "p") + socks_request("127.0.0.1", echo_origin.port) + b"early":
            s.sendall(bytes([b]))
        assert recv_exact(s, 4) == b"\x05\x02\x01\x00"
        assert socks_reply(s)[0] == 0
        assert recv_exact(s, 5) == b"early"
    with Tls(node.port, split=3) as s:
        for b in b"CONNECT 127.0.0.1:%d HTTP/1.1\r\nHost: x\r\nProxy-Authorization: Basic dTpw\r\n\r\n" % echo_origin.port:
            s.sendall(bytes([b]))
        assert recv_exact(s, 12) == b"HTTP/1.1 200"


def test_four_protocols_on_one_port(start, ca, echo_origin):
    node = start(listeners=listeners(ca))
    connect = (b"CONNECT 127.0.0.1:%d HTTP/1.1\r\nHost: x\r\nProxy-Authorization: Basic dTpw\r\n\r\n" % echo_origin.port)
    for make in (node.connect, lambda: Tls(node.port)):
        s = make()
        assert socks_open(s, echo_origin.port) == 0
        s.sendall(b"1")
        assert recv_exact(s, 1) == b"1"
        s.close()
        s = make()
        s.sendall(connect)
        assert recv_exact(s, 12) == b"HTTP/1.1 200"
        s.close()
    found = sorted(r["protocol"] for r in node.wait_records(4))
    assert found == ["http", "http", "socks5", "socks5"]


# --- certificates, versions, ALPN ---

def test_certificate_by_name(start, ca):
    more = []
    for file, names in (("exact", ["a.test"]), ("wild", ["*.wild.test"]), ("inner", ["b.wild.test"])):
        cert, key, _ = ca.issue(file, cn=file, dns=names)
        more.append({"server_names": names, "cert": cert, "key": key})
    node = start(listeners=listeners(ca, certificates=more))
    for sni, want in ((None, "default"), ("proxy.test", "default"), ("a.test", "exact"), ("A.TEST", "exact"), ("x.wild.test", "wild"),
                      ("b.wild.test", "inner"), ("x.y.wild.test", "default"), ("wild.test", "default"), ("unknown.test", "default")):
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            with Tls(node.port, context(ca.file, low=version, high=version), sni=sni) as s:
                assert s.peer_cn() == want, sni


def test_versions(start, ca):
    v12, v13 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
    node = start(listeners=listeners(ca))
    for version, name in ((v12, "TLSv1.2"), (v13, "TLSv1.3")):
        with Tls(node.port, context(low=version, high=version)) as s:
            assert s.tls.version() == name
    with pytest.raises(ssl.SSLError):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            old = context(low=ssl.TLSVersion.TLSv1, high=ssl.TLSVersion.TLSv1_1)
        old.set_ciphers("ALL:@SECLEVEL=0")
        Tls(node.port, old)
    new = start(listeners=listeners(ca, min_version="1.3"))
    with Tls(new.port) as s:
        assert s.tls.version() == "TLSv1.3"
    with pytest.raises(ssl.SSLError, match="(?i)version"):
        Tls(new.port, context(low=v12, high=v12))
    new.wait_records(1, failure_stage="tls")


def test_alpn(start, ca):
    lists = []
    for protocol in ("http", "mixed", "socks5"):
        lists += [{**listeners(ca, protocol)[0], "name": protocol}]
    node = start(listeners=lists)

    def chosen(listener, *offer):
        with Tls(node.ports[listener], context(alpn=offer)) as s:
            return s.tls.selected_alpn_protocol()

    assert chosen("http") is None
    assert chosen("http", "h2", "http/1.1") == "http/1.1"
    assert chosen("mixed", "h2", "http/1.1") == "http/1.1"
    assert chosen("mixed", "h2") is None
    assert chosen("socks5", "http/1.1") is None
    with pytest.raises(ssl.SSLError, match="(?i)application.protocol"):
        chosen("http", "h2")


# --- reload ---

def shown_cn(node, listener="main"):
    with Tls(node.ports[listener]) as s:
        return s.peer_cn()


@pytest.mark.threads
@pytest.mark.parametrize("how", ["watch", "hangup"])
def test_reload_keeps_sessions(start, ca, echo_origin, how):
    node = start(listeners=listeners(ca))
    with Tls(node.port) as s:
        assert socks_open(s, echo_origin.port) == 0
        for i in range(3):
            ca.issue("server", cn=f"new{i}", dns=["proxy.test"])
            if how == "hangup":
                node.process.send_signal(signal.SIGHUP)
            wait_for(lambda: shown_cn(node) == f"new{i}", what="the new certificate")
            s.sendall(b"x" * 100000)
            assert recv_exact(s, 100000) == b"x" * 100000
        assert s.peer_cn() == "default"
        s.close_notify()
        assert recv_all(s) == b""
    assert node.wait_records(1, result="ok")[0]["bytes_up"] == 300000


@pytest.mark.threads
def test_reload_under_load(start, ca, echo_origin):
    """Handshakes go on while certificates change."""
    node = start(listeners=listeners(ca), workers=2)
    stop = threading.Event()
    counts, errors = [0] * 4, []

    def run(i):
        while not stop.is_set():
            try:
                with Tls(node.port) as s:
                    assert socks_open(s, echo_origin.port) == 0
                    s.sendall(b"ping")
                    assert recv_exact(s, 4) == b"ping"
                counts[i] += 1
            except Exception as e:  # noqa: BLE001
                errors.append(repr(e))
                return

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for i in range(8):
        ca.issue("server", cn=f"load{i}", dns=["proxy.test"])
        node.process.send_signal(signal.SIGHUP)
        before = list(counts)
        wait_for(lambda: errors or (shown_cn(node) == f"load{i}" and min(a - b for a, b in zip(counts, before)) > 0), timeout=30)
    stop.set()
    for t in threads:
        t.join()
    assert not errors


def certificate_of(node):
    listener = [x for x in node.status()["listeners"] if x["name"] == "main"][0]
    return listener["certificates"][0], listener["tls_error"]


def test_bad_files_keep_the_old(start, ca):
    node = start(listeners=listeners(ca))
    cert_path, key_path = os.path.join(ca.dir, "server.pem"), os.path.join(ca.dir, "server.key")
    cert, error = certificate_of(node)
    assert cert["file"] == cert_path and error is None
    metric = 'culvert_tls_certificate_reload_error{listener="main"}'
    assert node.metrics()[metric] == 0

    # A certificate without its key: nothing changes but what is told.
    _, cert_pem, key_pem = ca.make(cn="next", dns=["proxy.test"], days=9)
    replace(cert_path, cert_pem)
    wait_for(lambda: certificate_of(node)[1], what="the refusal")
    _, error = certificate_of(node)
    assert key_path in error and cert_path in error and "does not belong" in error
    assert error in node.log()
    assert node.metrics()[metric] == 1
    assert shown_cn(node) == "default"
    replace(key_path, key_pem)
    wait_for(lambda: shown_cn(node) == "next", what="the pair")
    assert certificate_of(node)[1] is None and node.metrics()[metric] == 0

    # Garbage, and then a file that is gone.
    replace(cert_path, b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    wait_for(lambda: certificate_of(node)[1], what="the refusal")
    assert cert_path in certificate_of(node)[1]
    os.unlink(key_path)
    replace(cert_path, cert_pem)
    wait_for(lambda: key_path in (certificate_of(node)[1] or ""), what="the refusal")
    assert shown_cn(node) == "next"
    # As it was: no error any more.
    replace(key_path, key_pem)
    wait_for(lambda: certificate_of(node)[1] is None, what="the good files")
    assert shown_cn(node) == "next"
    # By signal the whole config is refused, with the same sentence.
    replace(key_path, b"nothing")
    node.process.send_signal(signal.SIGHUP)
    wait_for(lambda: "config refused, the old one stays in force: listener 'main'" in node.log(), what="the refusal")
    assert shown_cn(node) == "next"


def test_expiry_is_told(start, ca):
    node = start(listeners=listeners(ca))
    with Tls(node.port) as s:
        want = s.peer().not_valid_after
    cert, _ = certificate_of(node)
    assert cert["not_after"].startswith(want.isoformat())
    path = os.path.join(ca.dir, "server.pem")
    value = node.metrics()[f'culvert_tls_certificate_expiry_timestamp_seconds{{listener="main",file="{path}"}}']
    assert value == (want - datetime.datetime(1970, 1, 1)).total_seconds()
    ca.issue("server", cn="old", dns=["proxy.test"], days=-3)
    wait_for(lambda: f"the certificate in '{path}' has expired" in node.log(), what="the warning")


def test_bad_files_at_start(tmp_path, ca):
    lists = listeners(ca)
    replace(os.path.join(ca.dir, "server.key"), b"nothing")
    node = Node(tmp_path / "n", listeners=lists, start=False)
    r = subprocess.run([node.binary, "run", "-c", node.config_path], capture_output=True, text=True, timeout=60)
    assert r.returncode == 1 and os.path.join(ca.dir, "server.key") in r.stderr


def test_resumption(start, ca):
    """Any worker opens any worker's tickets, also after a reload; another listener does not."""
    one = listeners(ca)[0]
    node = start(listeners=[one, {**one, "name": "other"}], workers=4)
    ctx = context(ca.file, high=ssl.TLSVersion.TLSv1_2)

    def resumed(listener, session):
        with Tls(node.ports[listener], ctx, sni="proxy.test", session=session) as s:
            return s.tls.session_reused

    with Tls(node.port, ctx, sni="proxy.test") as s:
        session = s.tls.session
    assert all(resumed("main", session) for _ in range(20))
    assert not any(resumed("other", session) for _ in range(5))
    ca.issue("server", cn="new", dns=["proxy.test"])
    node.process.send_signal(signal.SIGHUP)
    wait_for(lambda: shown_cn(node) == "new", what="the new certificate")
    assert all(resumed("main", session) for _ in range(20))


# --- ends ---

def test_half_close_from_the_client(start, ca):
    """close_notify becomes a FIN, and the answer that comes later still arrives."""
    got = threading.Event()

    def origin(conn):
        data = recv_all(conn)
        got.set()
        conn.sendall(b"%d" % len(data) + b"y" * 200000)

    with Origin(origin) as o:
        node = start(listeners=listeners(ca))
        with Tls(node.port) as s:
            assert socks_open(s, o.port) == 0
            s.sendall(b"x" * 300000)
            s.close_notify()
            assert got.wait(20)
            assert recv_all(s) == b"300000" + b"y" * 200000  # and close_notify from the node
        record = node.wait_records(1)[0]
        assert record["result"] == "ok" and record["bytes_up"] == 300000 and record["bytes_down"] == 200006


def test_half_close_from_the_origin(start, ca):
    got = []
    done = threading.Event()

    def origin(conn):
        conn.sendall(b"y" * 200000)
        conn.shutdown(socket.SHUT_WR)
        got.append(recv_all(conn))
        done.set()

    with Origin(origin) as o:
        node = start(listeners=listeners(ca))
        with Tls(node.port) as s:
            assert socks_open(s, o.port) == 0
            assert recv_all(s) == b"y" * 200000  # then close_notify
            s.sendall(b"x" * 300000)
            s.close_notify()
            assert done.wait(20)
        assert got == [b"x" * 300000]
        assert node.wait_records(1)[0]["result"] == "ok"


def test_truncation_is_a_reset(start, ca):
    """A FIN without close_notify may be forged: the origin must not take it for the end."""
    seen = []
    done = threading.Event()

    def origin(conn):
        try:
            seen.append(recv_all(conn))
        except ConnectionResetError:
            seen.append("reset")
        done.set()

    with Origin(origin) as o:
        node = start(listeners=listeners(ca))
        s = Tls(node.port)
        assert socks_open(s, o.port) == 0
        s.sendall(b"x" * 1000)
        s.sock.shutdown(socket.SHUT_WR)
        assert done.wait(20)
        assert seen == ["reset"]
        record = node.wait_records(1)[0]
        assert record["result"] == "error" and record["failure_stage"] == "splice"
        s.close()


def test_reset_of_the_origin_is_no_proper_end(start, ca):
    def origin(conn):
        conn.sendall(b"part")
        recv_exact(conn, 2)
        conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with Origin(origin) as o:
        node = start(listeners=listeners(ca))
        with Tls(node.port) as s:
            assert socks_open(s, o.port) == 0
            assert recv_exact(s, 4) == b"part"
            s.sendall(b"go")
            with pytest.raises((ssl.SSLError, ConnectionResetError)):
                while s.recv() != b"":
                    pass
                raise AssertionError("close_notify after a reset")


# --- bounds ---

def test_slow_and_silent_hello(start, ca):
    """Neither silence nor dripping outlasts the deadline, which counts from the accept."""
    node = start(listeners=listeners(ca), limits={"handshake_timeout": "1s"})
    hello = ssl.MemoryBIO()
    tls = context().wrap_bio(ssl.MemoryBIO(), hello)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    data = hello.read()
    begin = time.monotonic()
    silent, part, whole, drip = (node.connect() for _ in range(4))
    part.sendall(data[:40])
    whole.sendall(data)  # and then nothing

    def dripping():
        for b in data:
            try:
                drip.sendall(bytes([b]))
            except OSError:
                return
            if ended.wait(0.05):
                return

    ended = threading.Event()
    thread = threading.Thread(target=dripping)
    thread.start()
    for s in (silent, part, whole, drip):
        s.settimeout(30)
        try:
            recv_all(s)
        except ConnectionResetError:
            pass
    took = time.monotonic() - begin
    ended.set()
    thread.join()
    assert took > 0.9
    # The silent one leaves no line, the others say where.
    records = node.wait_records(3)
    assert {r["result"] for r in records} == {"error"} and len(records) == 3
    assert node.metrics()["culvert_tls_handshakes_active"] == 0


def test_handshakes_are_bounded(start, ca, echo_origin):
    node = start(listeners=listeners(ca), workers=1, limits={"max_tls_handshakes": 3})
    stuck = []
    for i in range(3):
        s = node.connect()
        s.sendall(b"\x16\x03\x01")
        stuck.append(s)
        wait_for(lambda: node.metrics()["culvert_tls_handshakes_active"] == i + 1)
    for _ in range(5):
        s = node.connect()
        s.sendall(b"\x16\x03\x01")
        assert s.recv(1) == b""
    assert node.metrics()['culvert_listener_rejected_handshakes_total{listener="main"}'] == 5
    # Plain clients of the same port are none of them, and a place that is free is given away.
    assert node.socks("127.0.0.1", echo_origin.port)[0] == 0
    stuck.pop().close()
    wait_for(lambda: node.metrics()["culvert_tls_handshakes_active"] == 2)
    sessions = [Tls(node.port) for _ in range(5)]
    for s in sessions:
        assert socks_open(s, echo_origin.port) == 0
        s.close()


def test_garbage_after_the_record_head(start, ca, web):
    node = start(listeners=listeners(ca, "http"))
    for data in (b"\x16\x03\x01\xff\xff" + b"x" * 100, b"\x16\x03\x01\x00\x05hello", b"\x16" * 3000, b"GET / HTTP/1.1\r\n\r\n", b"\x05\x01\x02"):
        s = node.connect()
        s.sendall(data)
        try:
            s.shutdown(socket.SHUT_WR)
            recv_all(s)
        except OSError:
            pass  # it was closed at once
        s.close()
    assert len(node.wait_records(5, failure_stage="tls")) == 5
    assert not web.requests


def test_no_secrets_in_logs(start, ca, echo_origin):
    node = start(listeners=listeners(ca), users={"u": "sesame-right"}, env={"CULVERT_TRACE": "all", "CV_TRACE": "all"}, log={"level": "trace"})
    with Tls(node.port) as s:
        assert socks_open(s, echo_origin.port, password="sesame-right") == 0
    with Tls(node.port) as s:
        s.sendall(socks_greeting("u") + socks_auth("u", "sesame-wrong"))
        assert recv_exact(s, 4) == b"\x05\x02\x01\x01"
    node.wait_records(2)
    with open(os.path.join(ca.dir, "server.key")) as f:
        key_line = f.read().splitlines()[1]
    for text in (node.log(), open(node.access_path).read(), str(node.status())):
        assert "sesame" not in text and key_line not in text


@pytest.mark.skipif(not shutil.which("stunnel4") and not shutil.which("stunnel"), reason="stunnel is not installed")
def test_stunnel(start, ca, tmp_path, web):
    """A plain SOCKS5 client behind somebody else's TLS."""
    node = start(listeners=listeners(ca, "socks5"))
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    config = tmp_path / "stunnel.conf"
    config.write_text(f"foreground = yes\npid =\n[socks]\nclient = yes\naccept = 127.0.0.1:{port}\nconnect = 127.0.0.1:{node.port}\n"
                      f"CAfile = {ca.file}\nverifyChain = yes\nsni = proxy.test\ncheckHost = proxy.test\n")
    stunnel = subprocess.Popen([shutil.which("stunnel4") or "stunnel", str(config)], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        def up():
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                return True
            except OSError:
                return False
        wait_for(up, what="stunnel")
        r = subprocess.run(["curl", "-sS", "-x", f"socks5h://u:p@127.0.0.1:{port}", "--noproxy", "", f"http://127.0.0.1:{web.port}/s"],
                           capture_output=True, text=True, timeout=60)
        assert r.stdout == "origin GET /s", r
    finally:
        stunnel.terminate()
        stunnel.wait()
