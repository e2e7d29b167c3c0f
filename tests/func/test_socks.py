"""SOCKS5 as clients speak it: replies, splitting, gluing, odd addresses."""
import socket
import struct

import pytest

from node import (Origin, block, echo, policy, recv_all, recv_exact, snapshot, socks_auth, socks_greeting, socks_reply,
                  socks_request, wait_for)


def whole_handshake(port, host="127.0.0.1"):
    return socks_greeting("u") + socks_auth("u", "p") + socks_request(host, port)


def test_echo(node, echo_origin):
    rep, s = node.socks("127.0.0.1", echo_origin.port)
    assert rep == 0
    s.sendall(b"hello")
    assert recv_exact(s, 5) == b"hello"
    s.shutdown(socket.SHUT_WR)
    assert recv_all(s) == b""
    record = node.wait_records(username="u", result="ok")[0]
    assert record["bytes_up"] == 5 and record["bytes_down"] == 5
    assert record["protocol"] == "socks5" and record["decision"] == "direct" and record["egress"] == "direct"
    assert record["target_host"] == "127.0.0.1" and record["target_port"] == echo_origin.port
    assert record["policy_id"] == "default" and record["snapshot_version"] == 1


def test_reply_carries_the_real_bound_address(node):
    seen = []
    with Origin(lambda c: (seen.append(c.getpeername()), echo(c))) as origin:
        s = node.connect()
        s.sendall(whole_handshake(origin.port))
        recv_exact(s, 4)
        rep, host, port = socks_reply(s)
        assert rep == 0
        wait_for(lambda: seen)
        assert (host, port) == seen[0]


def test_every_split(node, echo_origin):
    data = whole_handshake(echo_origin.port) + b"early"
    for cut in range(1, len(data)):
        s = node.connect()
        s.sendall(data[:cut])
        # The second part is sent only when the node has answered what it can answer.
        got = recv_exact(s, 2) if cut >= 3 else b""
        got += recv_exact(s, 2) if cut >= 3 + 5 else b""
        s.sendall(data[cut:])
        want = 4 + 10 + 5
        got += recv_exact(s, want - len(got))
        assert got[:4] == b"\x05\x02\x01\x00" and got[4:6] == b"\x05\x00" and got[-5:] == b"early", cut
        s.close()


def test_one_byte_at_a_time(node, echo_origin):
    s = node.connect()
    for byte in whole_handshake(echo_origin.port):
        s.sendall(bytes([byte]))
    assert recv_exact(s, 4) == b"\x05\x02\x01\x00"
    assert socks_reply(s)[0] == 0


def test_glued_with_early_data(node, echo_origin):
    s = node.connect()
    s.sendall(whole_handshake(echo_origin.port) + b"x" * 3000)
    assert recv_exact(s, 4) == b"\x05\x02\x01\x00"
    assert socks_reply(s)[0] == 0
    assert recv_exact(s, 3000) == b"x" * 3000


def closed_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.mark.parametrize("host,rep,stage", [
    ("closed", 5, "dial"), ("nothing.invalid", 4, "dns"), ("blocked.test", 2, "policy"), ("10.0.0.1", 2, "policy")])
def test_failures_have_their_reply(start, host, rep, stage):
    doc = snapshot(policies={"default": policy(block("blocked.test"))})
    node = start(doc=doc, dns={"servers": ["127.0.0.1:1"], "timeout": "200ms", "attempts": 1})
    port = closed_port() if host == "closed" else 80
    got, s = node.socks("127.0.0.1" if host == "closed" else host, port)
    assert got == rep
    assert recv_all(s) == b""
    record = node.wait_records(result="error")[0]
    assert record["failure_stage"] == stage


@pytest.mark.parametrize("user,password", [("u", "wrong"), ("nobody", "p"), ("", ""), ("u", ""), ("", "p")])
def test_wrong_login(node, user, password):
    rep, s = node.socks("127.0.0.1", 1, user, password)
    assert rep == -1
    assert recv_all(s) == b""
    record = node.wait_records(result="error", failure_stage="auth")[0]
    assert "target_host" not in record


def test_no_method_without_login(node):
    rep, s = node.socks("127.0.0.1", 1, user=None)
    assert rep == 0xFF and recv_all(s) == b""


def test_no_auth_user(start, echo_origin):
    node = start(listeners=[{"name": "main", "protocol": "socks5", "listen": "127.0.0.1:0", "no_auth_user": "u"}])
    rep, s = node.socks("127.0.0.1", echo_origin.port, user=None)
    assert rep == 0
    assert node.sessions()[0]["user"] == "u"
    rep, s = node.socks("127.0.0.1", echo_origin.port)
    assert rep == 0


@pytest.mark.parametrize("request_bytes,rep", [
    (b"\x05\x02\x00\x01\x7f\x00\x00\x01\x00\x50", 7), (b"\x05\x09\x00\x01\x7f\x00\x00\x01\x00\x50", 7),
    (b"\x05\x01\x00\x02\x7f\x00\x00\x01\x00\x50", 8), (b"\x04\x01\x00\x01\x7f\x00\x00\x01\x00\x50", None)])
def test_unsupported_requests_are_answered(node, request_bytes, rep):
    s = node.connect()
    s.sendall(socks_greeting("u") + socks_auth("u", "p") + request_bytes + b"trailing bytes that nobody reads")
    assert recv_exact(s, 4) == b"\x05\x02\x01\x00"
    if rep is None:
        assert recv_all(s) == b""
    else:
        assert socks_reply(s)[0] == rep
        assert recv_all(s) == b""


@pytest.mark.parametrize("name", ["127.0.0.1", "0x7f.1", "127.1", "017700000001", "2130706433", "127.0.0.1."])
def test_an_address_spelled_as_a_name_meets_the_address_rules(start, name, echo_origin):
    doc = snapshot(policies={"default": policy(block("127.0.0.0/8"))})
    node = start(doc=doc)
    s = node.connect()
    s.sendall(socks_greeting("u") + socks_auth("u", "p") + socks_request(name, echo_origin.port, as_name=True))
    recv_exact(s, 4)
    assert socks_reply(s)[0] == 2
    record = node.wait_records()[0]
    assert record["target_host"] == "127.0.0.1" and record["decision"] == "block"
    assert echo_origin.accepted == 0


@pytest.mark.parametrize("v6", ["::ffff:127.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "::1", "::",
                                "fe80::1", "fec0::1", "fc00::1", "ff02::1", "64:ff9b:1::",
                                "64:ff9b:1::7f00:1"])
def test_special_addresses_are_refused_by_default(start, v6):
    node = start(direct={"allow": []})
    rep, _ = node.socks(v6, 80)
    assert rep == 2
    node.wait_records(failure_stage="policy", decision="direct")


def test_a_selector_that_names_a_private_address_opens_it(start, echo_origin):
    doc = snapshot(policies={"default": {"routes": [{"selectors": ["127.0.0.1"], "action": {"type": "direct"}}],
                                         "default_action": {"type": "direct"}}})
    node = start(doc=doc, direct={"allow": []})
    assert node.socks("127.0.0.1", echo_origin.port)[0] == 0
    assert node.socks("127.0.0.2", echo_origin.port)[0] == 2


def test_slow_greeting_meets_the_total_deadline(start):
    node = start(limits={"handshake_timeout": "300ms"})
    before = node.fds()
    clients = [node.connect() for _ in range(20)]
    for s in clients:
        s.sendall(b"\x05")
    for s in clients:
        assert recv_all(s) == b""
    wait_for(lambda: node.fds() <= before + 1, what="the descriptors to go")


def test_mixed_tells_protocols_apart(node, web):
    s = node.connect()
    s.sendall(b"GET http://127.0.0.1:%d/x HTTP/1.1\r\nHost: h\r\nProxy-Authorization: Basic dTpw\r\n"
              b"Connection: close\r\n\r\n" % web.port)
    assert b"origin GET /x" in recv_all(s)
    s = node.connect()
    s.sendall(b"\x16\x03\x01\x00\x05hello")
    assert recv_all(s) == b""


def test_ipv6_listener_is_dual_stack(start, echo_origin):
    node = start(listeners=[{"name": "main", "protocol": "socks5", "listen": "[::]:0"}])
    rep, kept = node.socks("127.0.0.1", echo_origin.port)
    assert rep == 0
    s = socket.create_connection(("::1", node.port))
    s.sendall(whole_handshake(echo_origin.port))
    assert recv_exact(s, 4) == b"\x05\x02\x01\x00"
    assert socks_reply(s)[0] == 0
    clients = {x["client"] for x in node.sessions()}
    kept.close()
    assert any(c.startswith("127.0.0.1:") for c in clients) and any(c.startswith("[::1]:") for c in clients)


def test_unix_listener(start, echo_origin, tmp_path):
    path = str(tmp_path / "in.sock")
    start(listeners=[{"name": "main", "protocol": "socks5", "listen": f"unix:{path}"}])
    s = socket.socket(socket.AF_UNIX)
    s.connect(path)
    s.sendall(whole_handshake(echo_origin.port))
    assert recv_exact(s, 4) == b"\x05\x02\x01\x00"
    assert socks_reply(s)[0] == 0


def test_systemd_passed_socket(start, echo_origin):
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]

    def pass_fd():
        import os
        os.dup2(listener.fileno(), 3)
        os.environ["LISTEN_PID"] = str(os.getpid())

    # LISTEN_PID must be the pid after fork, so a shell sets it just before exec.
    node = start(listeners=[{"name": "main", "protocol": "socks5", "listen": "fd:proxy"}],
                 prefix=["sh", "-c", 'LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=proxy exec "$@"', "sh"],
                 preexec=pass_fd, start=False)
    import subprocess
    real = subprocess.Popen

    def popen(*args, **kw):
        return real(*args, **{**kw, "close_fds": False})

    subprocess.Popen = popen
    try:
        node.start()
    finally:
        subprocess.Popen = real
    s = socket.create_connection(("127.0.0.1", port))
    s.sendall(whole_handshake(echo_origin.port))
    assert recv_exact(s, 4) == b"\x05\x02\x01\x00"
    assert socks_reply(s)[0] == 0


def test_reset_is_passed_on_as_reset(node):
    def reset(conn):
        recv_exact(conn, 1)
        conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with Origin(reset) as origin:
        rep, s = node.socks("127.0.0.1", origin.port)
        assert rep == 0
        s.sendall(b"x")
        with pytest.raises(ConnectionResetError):
            recv_all(s)
