"""Going out through real proxies: plain, behind TLS, and through another node."""
import contextlib
import os
import socket
import threading

import pytest

from node import HttpOrigin, Node, Origin, echo, policy, read_http, recv_all, recv_exact, snapshot, wait_for
from peers import (Certificates, Dante, Haproxy, Microsocks, Squid, Stunnel, Tinyproxy, V2ray, upstream)

MIB = 1 << 20
LOGIN = "up-user", "up-secret-word"


def through(egress, users=None, **more):
    return snapshot(users=users, policies={"default": policy(default="px")}, egresses={"px": egress, **more})


@contextlib.contextmanager
def peer(kind, folder):
    """Yield the egress that leads through a proxy of this kind, and the same with a wrong password (or None)."""
    scheme = "http" if kind in ("squid", "tinyproxy", "v2ray-http", "culvert-http") else "socks5"
    if kind.startswith("culvert"):
        with Node(folder / "far", users={LOGIN[0]: LOGIN[1]}) as far:
            yield upstream(scheme, far.port, *LOGIN), upstream(scheme, far.port, LOGIN[0], "wrong")
        return
    make = {"microsocks": lambda: Microsocks(folder, *LOGIN), "dante": lambda: Dante(folder),
            "squid": lambda: Squid(folder, *LOGIN), "tinyproxy": lambda: Tinyproxy(folder, *LOGIN),
            "v2ray-socks": lambda: V2ray(folder, "socks", *LOGIN), "v2ray-http": lambda: V2ray(folder, "http", *LOGIN)}
    with make[kind]() as p:
        if kind == "dante":
            yield upstream(scheme, p.port), None
        else:
            yield upstream(scheme, p.port, *LOGIN), upstream(scheme, p.port, LOGIN[0], "wrong")


KINDS = ["microsocks", "dante", "squid", "tinyproxy", "v2ray-socks", "v2ray-http", "culvert-socks", "culvert-http"]


def connect(node, host, port, user="u", password="p"):
    """CONNECT as a client: (status, socket)."""
    import base64
    s = node.connect()
    login = base64.b64encode(f"{user}:{password}".encode()).decode()
    s.sendall(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: x\r\nProxy-Authorization: Basic {login}\r\n\r\n".encode())
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += recv_exact(s, 1)
    return int(head.split()[1]), s


@pytest.mark.parametrize("kind", KINDS)
def test_tunnels_and_requests(tmp_path, kind):
    """Bytes both ways with half-close, by name and by address, from SOCKS and HTTP clients; then refusals."""
    payload, answer = os.urandom(MIB), os.urandom(MIB)

    def origin(conn):
        if recv_exact(conn, 4) == b"half":
            assert recv_all(conn) == payload
        conn.sendall(answer)

    with peer(kind, tmp_path) as (good, wrong), Origin(origin) as o, HttpOrigin("far") as web, \
            Node(tmp_path / "node", doc=through(good)) as node:
        half = kind == "dante" or kind.startswith("culvert")  # the others end both directions at once
        for host in ("127.0.0.1", "localhost"):
            rep, s = node.socks(host, o.port)
            assert rep == 0, rep
            s.sendall(b"half" + payload if half else b"full")
            if half:
                s.shutdown(socket.SHUT_WR)
            assert recv_all(s) == answer
            status, s = connect(node, host, o.port)
            assert status == 200
            s.sendall(b"full")
            assert recv_all(s) == answer
        record, = node.wait_records(1, target_host="localhost", protocol="socks5")
        label = f"upstream:{good['backend']['addr']}"
        assert (record["decision"], record["egress"], record["result"]) == (label, label, "ok"), record
        assert record["bytes_down"] == MIB

        # A forwarded request goes by CONNECT, too, and the connection is kept.
        s = node.connect()
        stream = s.makefile("rb")
        for i in range(2):
            s.sendall(f"GET http://localhost:{web.port}/{i} HTTP/1.1\r\nHost: x\r\nProxy-Authorization: Basic dTpw\r\n\r\n".encode())
            assert stream.readline().startswith(b"HTTP/1.1 200")
            while stream.readline() != b"\r\n":
                pass
            assert stream.read(len(f"far GET /{i}")) == f"far GET /{i}".encode()
        assert web.accepted == 1
        assert all("proxy-authorization" not in r["low"] for r in web.requests)
        assert not any(b"up-secret" in r["head"] or b"dTpw" in r["head"] for r in web.requests)

        # A port where nobody listens: what the proxy says of it reaches the client.
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            rep, s = node.socks("127.0.0.1", closed.getsockname()[1])
            if kind.startswith("v2ray"):
                assert rep == 0 and recv_all(s) == b""  # it says yes before it dials
            else:
                assert rep in ((5,) if good["backend"]["kind"] == "socks5" else (1,)), rep
                assert connect(node, "127.0.0.1", closed.getsockname()[1])[0] == 502
                record = node.wait_records(1, failure_stage="outbound")[0]
                assert record["result"] == "error"
        if kind in ("dante", "squid"):
            rep, s = node.socks("127.0.0.9", o.port)
            assert rep == 2, rep
            assert connect(node, "127.0.0.9", o.port)[0] == 403

        if wrong:
            node.apply({**through(wrong), "version": 2})
            rep, s = node.socks("127.0.0.1", o.port)
            assert rep == 1
            status, s = connect(node, "127.0.0.1", o.port)
            assert status == 502, "the client's own login was right: no 407 for it"
            record = node.wait_records(1, message="upstream refused the node's login")[0]
            assert record["failure_stage"] == "outbound"
        assert "up-secret-word" not in node.log()


@pytest.fixture
def certs(tmp_path):
    return Certificates(tmp_path)


@pytest.mark.parametrize("kind,front", [("socks5", "haproxy"), ("socks5", "stunnel"), ("http", "haproxy"), ("https", "stunnel"),
                                        ("socks5", "culvert"), ("https", "culvert")])
def test_tls(tmp_path, certs, echo_origin, kind, front):
    """Verified by the name in 'addr', refused otherwise, accepted where it says so; sessions are resumed, also after
    a new snapshot."""
    pem = certs.make("good", "DNS:localhost")
    trust = {"SSL_CERT_FILE": certs.ca}
    with contextlib.ExitStack() as stack:
        if front == "culvert":
            far = stack.enter_context(Node(tmp_path / "far", users={LOGIN[0]: LOGIN[1]}, listeners=[
                {"name": "main", "listen": "127.0.0.1:0", "tls": {"cert": certs.crt, "key": certs.key}}]))
        else:
            inner = stack.enter_context(Microsocks(tmp_path, *LOGIN) if kind == "socks5" else Tinyproxy(tmp_path, *LOGIN))
            far = stack.enter_context((Haproxy if front == "haproxy" else Stunnel)(tmp_path, inner.port, pem))
        egress = {name: upstream(kind, far.port, *LOGIN, host=host, tls=True, skip_cert_verify=skip)
                  for name, host, skip in (("px", "localhost", False), ("numbered", "127.0.0.1", False), ("any", "127.0.0.1", True))}
        users = {u: {"password": "p", "policy": u} for u in egress}
        doc = snapshot(users=users, policies={u: policy(default=u) for u in egress}, egresses=egress)
        node = stack.enter_context(Node(tmp_path / "node", doc=doc, env=trust))

        def trip(user):
            rep, s = node.socks("127.0.0.1", echo_origin.port, user)
            if rep == 0:
                s.sendall(b"x" * MIB)
                assert recv_exact(s, MIB) == b"x" * MIB
            s.close()
            return rep

        assert trip("px") == 0
        assert trip("any") == 0
        assert trip("numbered") == 1
        record, = node.wait_records(1, username="numbered")
        assert (record["failure_stage"], record["message"]) == ("tls", "tls handshake failed")
        if front == "haproxy":
            assert trip("px") == 0
            wait_for(lambda: far.text().count("resumed 1") == 1, what="a resumed session")
            node.apply({**doc, "version": 2})
            assert trip("px") == 0
            wait_for(lambda: far.text().count("resumed 1") == 2, what="a resumed session after the swap")
        # Whom the system does not trust is not trusted.
        with Node(tmp_path / "other", doc=doc) as other:
            assert other.socks("127.0.0.1", echo_origin.port, "px")[0] == 1
            assert other.wait_records(1)[0]["failure_stage"] == "tls"
            assert other.socks("127.0.0.1", echo_origin.port, "any")[0] == 0


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_proxy_protocol_to_haproxy(tmp_path, certs, echo_origin, version):
    """HAProxy takes the client's address from the header, before TLS; other egresses get none."""
    pem = certs.make("good", "DNS:localhost")
    with Microsocks(tmp_path, *LOGIN) as inner, Haproxy(tmp_path, inner.port, pem, accept_proxy=True) as far:
        doc = through(upstream("socks5", far.port, *LOGIN, host="localhost", tls=True))
        with Node(tmp_path / "node", doc=doc, env={"SSL_CERT_FILE": certs.ca},
                  egresses=[{"id": "px", "proxy_protocol": version}]) as node:
            rep, s = node.socks("127.0.0.1", echo_origin.port)
            assert rep == 0
            name = s.getsockname()
            s.close()
            wait_for(lambda: f"from 127.0.0.1:{name[1]} " in far.text(), what=f"HAProxy to name the client: {far.text()}")
            # Turned off by a reload: HAProxy refuses what has no header.
            node.config["egresses"] = []
            node.write_config()
            node.process.send_signal(1)
            wait_for(lambda: "config reloaded" in node.log(), what="the reload")
            assert node.socks("127.0.0.1", echo_origin.port)[0] == 1


def test_proxy_protocol_to_squid(tmp_path, echo_origin):
    with Squid(tmp_path, *LOGIN, option="require-proxy-header") as far:
        doc = through(upstream("http", far.port, *LOGIN))
        with Node(tmp_path / "node", doc=doc, egresses=[{"id": "px", "proxy_protocol": "v2"}],
                  listeners=[{"name": "main", "listen": "127.0.0.1:0"}]) as node:
            s = socket.socket()
            s.bind(("127.0.0.77", 0))
            s.connect(("127.0.0.1", node.port))
            s.sendall(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\nHost: x\r\nProxy-Authorization: Basic dTpw\r\n\r\n" % echo_origin.port)
            assert s.recv(100).startswith(b"HTTP/1.1 200")
            s.close()
            wait_for(lambda: " 127.0.0.77 TCP_TUNNEL/200" in open(far.path("access.log")).read(), what="Squid to log it")
