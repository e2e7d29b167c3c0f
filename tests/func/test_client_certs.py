"""Clients whose certificate is their login."""
import base64
import ssl
import subprocess

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from node import recv_exact, socks_auth, socks_reply, socks_request, wait_for
from pki import Authority, Tls, context

USERS = {
    "alice": {"password": "pa", "policy": "default"},
    "bob": {"password": "pb", "policy": "default"},
    "gone": {"password": "pg", "policy": "default", "expire": "2020-01-01"},
    "guest": {"password": "x", "policy": "default"},
    "dave@example.test": {"password": "pd", "policy": "default"},
    "host.example.test": {"password": "ph", "policy": "default"},
    "spiffe://example.test/erin": {"password": "pe", "policy": "default"},
}
NO_LOGIN, LOGIN, BOTH = b"\x05\x01\x00", b"\x05\x01\x02", b"\x05\x02\x00\x02"


@pytest.fixture
def server_ca(tmp_path):
    return Authority(tmp_path, "root")


@pytest.fixture
def ca(tmp_path):
    return Authority(tmp_path, "clients")


@pytest.fixture
def make(start, server_ca, ca):
    cert, key, _ = server_ca.issue("server", cn="server", dns=["proxy.test"])

    def make(protocol="mixed", listener=None, **tls):
        return start(users=USERS, listeners=[{"name": "main", "protocol": protocol, "listen": "127.0.0.1:0", **(listener or {}),
                                              "tls": {"cert": cert, "key": key, "client_ca": ca.file, **tls}}])
    return make


def client(ca, cn, **options):
    cert, key, x = ca.issue("client-" + str(ca.serial), cn=cn, client=True, **options)
    return (cert, key), x


def refused(node, cert, **ctx):
    """The handshake, or the first read of TLS 1.3, fails."""
    with pytest.raises((ssl.SSLError, ConnectionResetError)) as e:
        with Tls(node.port, context(cert=cert, **ctx)) as s:
            s.sendall(NO_LOGIN)
            s.recv(1)
            raise AssertionError("was served")
    return str(e.value).lower()


def ask(node, cert, greeting, login=None, port=None):
    """What the node answers to a greeting: method, login status, reply."""
    with Tls(node.port, context(cert=cert)) as s:
        s.sendall(greeting)
        try:
            method = recv_exact(s, 2)[1]
        except EOFError:
            return ["closed"]
        said = [method]
        if method == 2:
            s.sendall(socks_auth(*login))
            said.append(recv_exact(s, 2)[1])
        if said[-1] == 0 and port is not None:
            s.sendall(socks_request("127.0.0.1", port))
            said.append(socks_reply(s)[0])
        return said


def http_status(node, cert, port, login=None):
    with Tls(node.port, context(cert=cert)) as s:
        auth = b""
        if login:
            auth = b"Proxy-Authorization: Basic " + base64.b64encode(":".join(login).encode()) + b"\r\n"
        s.sendall(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\nHost: x\r\n" % port + auth + b"\r\n")
        head = b""
        while b"\r\n\r\n" not in head:
            part = s.recv()
            if not part:
                break
            head += part
        return int(head.split()[1]) if head else None


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_certificate_is_the_login(make, ca, echo_origin, version):
    node = make()
    alice, _ = client(ca, "alice")
    ctx = context(cert=alice, low=version, high=version)
    with Tls(node.port, ctx) as s:
        s.sendall(NO_LOGIN + socks_request("127.0.0.1", echo_origin.port) + b"hello")
        assert recv_exact(s, 2) == b"\x05\x00" and socks_reply(s)[0] == 0
        assert recv_exact(s, 5) == b"hello"
        assert node.sessions()[0]["user"] == "alice"
    assert node.wait_records(1)[0]["username"] == "alice"
    assert ask(node, alice, BOTH, port=echo_origin.port) == [0, 0]
    assert http_status(node, alice, echo_origin.port) == 200


def test_curl_with_certificate(make, ca, server_ca, web):
    node = make("http")
    (cert, key), _ = client(ca, "alice")
    r = subprocess.run(["curl", "-sS", "--proxy", f"https://127.0.0.1:{node.port}", "--proxy-cacert", server_ca.file, "--proxy-cert", cert,
                        "--proxy-key", key, "--noproxy", "", f"http://127.0.0.1:{web.port}/c"], capture_output=True, text=True, timeout=60)
    assert r.stdout == "origin GET /c", r
    assert node.wait_records(1, result="ok")[0]["username"] == "alice"


def test_password_beside_the_certificate(make, ca, echo_origin):
    node = make()
    alice, _ = client(ca, "alice")
    port = echo_origin.port
    assert ask(node, alice, LOGIN, ("alice", "pa"), port) == [2, 0, 0]
    assert ask(node, alice, LOGIN, ("alice", "wrong")) == [2, 1]
    assert ask(node, alice, LOGIN, ("bob", "pb")) == [2, 1]  # right, but somebody else's
    assert http_status(node, alice, port, ("alice", "pa")) == 200
    assert http_status(node, alice, port, ("alice", "wrong")) == 407
    assert http_status(node, alice, port, ("bob", "pb")) == 407
    assert http_status(node, alice, port, ("alic", "pa")) == 407


@pytest.mark.parametrize("auth", ["require", "request"])
def test_unknown_and_expired_users(make, ca, echo_origin, auth):
    """They are refused, and never become the user of those without a certificate."""
    node = make(client_auth=auth, listener={"no_auth_user": "guest"} if auth == "request" else {})
    for cn in ("nobody", "gone", "Alice", "alice ", "guest2"):
        cert, _ = client(ca, cn)
        assert ask(node, cert, NO_LOGIN) == [0xFF], cn
        assert ask(node, cert, BOTH) == [0xFF], cn
        assert ask(node, cert, LOGIN, ("alice", "pa")) == [2, 1], cn
        assert http_status(node, cert, echo_origin.port) == 403, cn
        assert http_status(node, cert, echo_origin.port, ("alice", "pa")) == 407, cn
    assert echo_origin.accepted == 0
    records = node.wait_records(3, failure_stage="auth", username="gone")
    assert any("expired" in r["message"] for r in records)
    assert not [r for r in node.records() if r["result"] == "ok" or r.get("username") == "guest"]


def test_no_certificate(make, ca, echo_origin):
    node = make(client_auth="require")
    refused(node, None, high=ssl.TLSVersion.TLSv1_2)
    assert "certificate" in refused(node, None)
    node.wait_records(2, failure_stage="tls")
    # The plain half of "mixed" is closed as well.
    s = node.connect()
    s.sendall(LOGIN)
    assert s.recv(1) == b""
    request = make(client_auth="request")
    assert ask(request, None, NO_LOGIN) == [0xFF]
    assert ask(request, None, LOGIN, ("bob", "pb"), echo_origin.port) == [2, 0, 0]
    assert request.socks("127.0.0.1", echo_origin.port, "bob", "pb")[0] == 0
    guest = make(client_auth="request", listener={"no_auth_user": "guest"})
    assert ask(guest, None, NO_LOGIN, port=echo_origin.port) == [0, 0]
    assert guest.wait_records(1)[0]["username"] == "guest"


@pytest.mark.parametrize("auth", ["require", "request"])
def test_certificates_that_do_not_verify(make, ca, server_ca, tmp_path, auth):
    node = make(client_auth=auth)
    folder = tmp_path / "other"
    folder.mkdir()
    impostor = Authority(folder, "clients")  # the same name, another key
    stranger = Authority(folder, "stranger")
    cases = [client(impostor, "alice")[0], client(stranger, "alice")[0], client(ca, "alice", days=-1)[0],
             ca.issue("as-server", cn="alice", client=False)[:2], client(server_ca, "alice")[0]]
    for cert in cases:
        refused(node, cert)
        refused(node, cert, high=ssl.TLSVersion.TLSv1_2)
    assert len(node.wait_records(10, failure_stage="tls")) == 10
    assert "expired" in node.log()


def subject(*names):
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, n) for n in names])


def test_names_that_are_no_user(make, ca):
    """More than one name, none, or one that hides something: closed after the handshake."""
    node = make(client_auth="request", listener={"no_auth_user": "guest"})
    cases = [
        subject("alice", "bob"), subject("alice", "alice"),
        x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "alice")]),
        x509.Name([]),
        subject("alice\0.evil"), subject("alice\n"),
        x509.Name([x509.RelativeDistinguishedName([x509.NameAttribute(NameOID.COMMON_NAME, "alice"),
                                                   x509.NameAttribute(NameOID.COMMON_NAME, "bob")])]),
    ]
    for i, name in enumerate(cases):
        cert, _ = client(ca, "x", subject=name)
        assert ask(node, cert, NO_LOGIN) == ["closed"], name
        assert len(node.wait_records(i + 1, failure_stage="auth")) == i + 1


@pytest.mark.parametrize("kind,good,others", [
    ("san-email", {"emails": ["dave@example.test"]},
     [{"emails": ["dave@example.test", "x@example.test"]}, {"dns": ["dave@example.test"]}, {}]),
    ("san-dns", {"dns": ["host.example.test"]}, [{"dns": ["host.example.test", "b.test"]}, {"uris": ["host.example.test"]}, {}]),
    ("san-uri", {"uris": ["spiffe://example.test/erin"], "dns": ["a.test", "b.test"]},
     [{"uris": ["spiffe://example.test/erin", "spiffe://example.test/x"]}, {"emails": ["spiffe@example.test"]}]),
])
def test_alternative_names(make, ca, echo_origin, kind, good, others):
    node = make(user_from=kind)
    cert, _ = client(ca, "alice", **good)
    assert ask(node, cert, NO_LOGIN, port=echo_origin.port) == [0, 0]
    assert node.wait_records(1)[0]["username"] == list(good.values())[0][0]
    for options in others:
        cert, _ = client(ca, "alice", **options)
        assert ask(node, cert, NO_LOGIN) == ["closed"], options


def test_revocation(make, ca, echo_origin):
    alice, alice_cert = client(ca, "alice")
    bob, bob_cert = client(ca, "bob")
    crl = ca.crl("clients.crl", [alice_cert.serial_number])
    node = make(client_crl=crl)
    refused(node, alice)
    assert ask(node, bob, NO_LOGIN, port=echo_origin.port) == [0, 0]
    node.wait_records(1, failure_stage="tls")
    assert "revoked" in node.log()
    # The list is watched like the certificates.
    ca.crl("clients.crl", [bob_cert.serial_number])

    def is_refused(cert):
        try:
            return ask(node, cert, NO_LOGIN) != [0]
        except (ssl.SSLError, ConnectionResetError):
            return True
    wait_for(lambda: is_refused(bob), what="the new list")
    assert ask(node, alice, NO_LOGIN) == [0]
    # One that is out of date revokes everybody.
    ca.crl("clients.crl", [], days=-1)
    wait_for(lambda: is_refused(alice), what="the stale list")
    assert is_refused(bob)


def test_nothing_is_resumed(make, ca, echo_origin):
    """A session would outlive the certificate's verdict."""
    node = make()
    alice, _ = client(ca, "alice")
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        ctx = context(cert=alice, low=version, high=version)
        with Tls(node.port, ctx) as s:
            s.sendall(NO_LOGIN)
            assert recv_exact(s, 2) == b"\x05\x00"
            session = s.tls.session
        if session is None or not session.has_ticket:
            continue
        with Tls(node.port, ctx, session=session) as s:
            assert not s.tls.session_reused


def test_removed_user_is_refused_on_a_kept_connection(make, ca, web):
    """Each request of a connection is judged by the policy of its moment."""
    node = make("http")
    alice, _ = client(ca, "alice")
    request = b"GET http://127.0.0.1:%d/ HTTP/1.1\r\nHost: x\r\n\r\n" % web.port
    with Tls(node.port, context(cert=alice)) as s:
        s.sendall(request)
        assert recv_exact(s, 12) == b"HTTP/1.1 200"
        doc = {"schema_version": 1, "version": 2, "users": {"bob": USERS["bob"]},
               "routing_policies": {"default": {"routes": [], "default_action": {"type": "direct"}}}, "egresses": {}}
        node.apply(doc)
        try:
            s.sendall(request)
            rest = b""
            while True:
                part = s.recv()
                if not part:
                    break
                rest += part
                assert b"HTTP/1.1 200" not in rest.split(b"\r\n\r\n", 1)[1]
                if b" 403 " in rest:
                    break
        except (ssl.SSLError, ConnectionResetError):
            pass
    assert len(web.requests) == 1


def test_config_rules(ca, server_ca, start):
    cert, key, _ = server_ca.issue("server2", cn="server", dns=["proxy.test"])
    base = start(users=USERS)

    def check(tls, **listener):
        base.config["listeners"] = [{"name": "main", "protocol": "mixed", "listen": "127.0.0.1:0", **listener,
                                     "tls": {"cert": cert, "key": key, **tls}}]
        base.write_config()
        r = subprocess.run([base.binary, "check", "-c", base.config_path], capture_output=True, text=True, timeout=60)
        return r.returncode, r.stdout + r.stderr
    assert check({"client_ca": ca.file})[0] == 0
    for tls, listener, text in (
            ({"client_auth": "request"}, {}, "client_auth: has no use without 'client_ca'"),
            ({"user_from": "cn"}, {}, "user_from: has no use without 'client_ca'"),
            ({"client_crl": ca.file}, {}, "client_crl: has no use without 'client_ca'"),
            ({"client_ca": ca.file}, {"no_auth_user": "guest"}, "no_auth_user: has no use where every client needs a certificate"),
            ({"client_ca": key}, {}, "must hold certificates and nothing else"),
            ({"client_ca": "/nonexistent"}, {}, "/nonexistent"),
            ({"client_ca": ca.file, "client_crl": ca.file}, {}, "must hold revocation lists and nothing else"),
            ({"min_version": "1.1"}, {}, "min_version"), ({"client_ca": ca.file, "user_from": "mail"}, {}, "user_from")):
        code, out = check(tls, **listener)
        assert code != 0 and text in out, (tls, out)
