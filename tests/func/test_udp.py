"""SOCKS5 UDP ASSOCIATE over the direct egress."""
import os
import signal
import socket
import struct
import threading
import time

import pytest

from node import (SLOW, block, policy, recv_all, recv_exact, snapshot, socks_auth, socks_greeting, socks_reply, wait_for)
from test_network import Dns
from udp import Association, UdpServer, dropped, header, parse, wire_address

ANY = {"direct": {"allow": ["127.0.0.0/8", "::1/128"]}}


@pytest.fixture
def echo():
    with UdpServer() as server:
        yield server


def test_echo(node, echo):
    with Association(node) as a:
        assert a.bound[0] == "127.0.0.1" and a.port != 0
        assert a.ask(b"hello", echo.addr) == (b"hello", echo.addr)
        assert a.ask(b"", echo.addr) == (b"", echo.addr)
        big = os.urandom(60000)
        assert a.ask(big, echo.addr) == (big, echo.addr)
        session = wait_for(lambda: [s for s in node.sessions() if s["bytes_down"] == 60005])[0]
        assert session["protocol"] == "socks5-udp" and session["state"] == "relay" and session["user"] == "u"
        assert session["datagrams_up"] == 3 and session["datagrams_down"] == 3
        assert session["bytes_up"] == 60005
        assert node.metrics()["culvert_udp_associations"] == 1
    record = node.wait_records(protocol="socks5-udp")[0]
    assert record["result"] == "ok" and record["message"] == "udp association"
    assert record["bytes_up"] == 60005 and record["bytes_down"] == 60005
    assert record["datagrams_up"] == 3 and record["datagrams_down"] == 3 and record["datagrams_dropped"] == 0
    assert record["decision"] == "direct" and record["egress"] == "direct" and record["policy_id"] == "default"
    assert "target_host" not in record
    metrics = node.metrics()
    assert metrics["culvert_udp_associations"] == 0
    assert metrics['culvert_udp_datagrams_total{direction="up"}'] == 3
    assert metrics['culvert_udp_datagrams_total{direction="down"}'] == 3
    for name in ("culvert_bytes_total{listener=\"main\"", "culvert_user_bytes_total{user=\"u\"",
                 "culvert_egress_bytes_total{egress=\"direct\""):
        assert metrics[name + ',direction="up"}'] == 60005 and metrics[name + ',direction="down"}'] == 60005
    assert metrics['culvert_egress_active{egress="direct"}'] == 0
    assert metrics["culvert_bugs_total"] == 0


@pytest.mark.parametrize("stated", [
    wire_address("0.0.0.0", 0), wire_address("::", 0), wire_address("x", 65535, as_name=True),
    wire_address("127.0.0.1", 0), wire_address("198.51.100.7", 4000), lambda a: wire_address("0.0.0.0", a.udp.getsockname()[1]),
    lambda a: wire_address("127.0.0.1", a.udp.getsockname()[1])],
    ids=["any4", "any6", "name", "address", "foreign", "port", "both"])
def test_what_the_request_states(node, echo, stated):
    with Association(node, stated=stated) as a:
        assert a.ask(b"x", echo.addr) == (b"x", echo.addr)


@pytest.mark.parametrize("request_bytes,rep", [
    (b"\5\3\0\1\0\0\0\0\0", None), (b"\5\3\0\2\0\0\0\0\0\0", 8), (b"\5\3\0\x09", 8)])
def test_odd_requests(node, request_bytes, rep):
    s = node.connect()
    s.sendall(socks_greeting("u") + socks_auth("u", "p") + request_bytes)
    assert recv_exact(s, 4) == b"\5\2\1\0"
    if rep is None:
        s.shutdown(socket.SHUT_WR)
        assert recv_all(s) == b""
    else:
        assert socks_reply(s)[0] == rep and recv_all(s) == b""
        node.wait_records(result="error", failure_stage="parse")
    assert node.metrics()["culvert_udp_associations"] == 0


def test_stated_port_is_enforced(node, echo):
    with Association(node, stated=lambda a: wire_address("0.0.0.0", a.udp.getsockname()[1])) as a:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
            other.bind(("127.0.0.1", 0))
            other.sendto(header(*echo.addr) + b"other", a.relay)
            assert a.ask(b"mine", echo.addr)[0] == b"mine"
        assert [d for d, _ in echo.seen] == [b"mine"]


def test_first_datagram_fixes_the_port(node, echo):
    with Association(node) as a, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        # Another host of this machine comes first: it is not the control connection's.
        other_host = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        other_host.bind(("127.0.0.9", 0))
        other_host.sendto(header(*echo.addr) + b"foreign", a.relay)
        wait_for(lambda: dropped(node, "source") == 1)
        assert a.ask(b"mine", echo.addr)[0] == b"mine"
        # The kernel turns them away from now on.
        for s in (other, other_host):
            s.sendto(header(*echo.addr) + b"late", a.relay)
        assert a.ask(b"again", echo.addr)[0] == b"again"
        assert [d for d, _ in echo.seen] == [b"mine", b"again"]
        other_host.close()


def test_relay_without_login(node, echo):
    """Datagrams to the TCP port's number, and to a relay whose client has not spoken, from someone else."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s, Association(node) as a:
        s.bind(("127.0.0.77", 0))
        s.settimeout(0.2)
        for port in (node.port, a.port):
            s.sendto(header(*echo.addr) + b"open relay?", ("127.0.0.1", port))
        wait_for(lambda: dropped(node, "source") == 1)
        assert a.ask(b"mine", echo.addr)[0] == b"mine"
        with pytest.raises((TimeoutError, ConnectionRefusedError)):
            s.recv(100)
        assert [d for d, _ in echo.seen] == [b"mine"]


def test_no_association_without_login(node):
    s = node.connect()
    s.sendall(socks_greeting("u") + socks_auth("u", "wrong") + b"\5\3\0\1\0\0\0\0\0\0")
    assert recv_exact(s, 4) == b"\5\2\1\1" and recv_all(s) == b""
    assert node.metrics()["culvert_udp_associations"] == 0


def test_sender_in_the_reply_header(node):
    with UdpServer("127.0.0.1") as one, UdpServer("127.0.0.2") as two, UdpServer("::1") as three, \
            Association(node) as a:
        for server in (one, two, three):
            a.send(b"to " + str(server.port).encode(), server.addr)
        got = {a.recv() for _ in range(3)}
        assert got == {(b"to " + str(s.port).encode(), s.addr) for s in (one, two, three)}
        # Written as an IPv4-mapped address it is the same server, and answers as IPv4.
        a.send(b"mapped", ("::ffff:127.0.0.1", one.port))
        assert a.recv() == (b"mapped", one.addr)


def test_full_cone(node):
    """One outside port for all destinations, and whoever knows it may send to the client."""
    with UdpServer() as one, UdpServer() as two, Association(node) as a, \
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        a.ask(b"1", one.addr)
        a.ask(b"2", two.addr)
        outside = one.seen[0][1][1]
        assert two.seen[0][1][1] == outside
        stranger.bind(("127.0.0.1", 0))
        stranger.sendto(b"hi", ("127.0.0.1", outside))
        assert a.recv() == (b"hi", stranger.getsockname())


@pytest.mark.parametrize("datagram,reason", [
    (b"", "malformed"), (b"\0\0\0", "malformed"), (b"\0\0\0\1\x7f\0\0\1\0", "malformed"),
    (b"\0\0\0\x09" + b"a" * 20, "malformed"), (b"\0\0\0\3\xff" + b"a" * 20, "malformed"),
    (b"\0\0\0\3\0\0\x50x", "malformed"), (header("127.0.0.1", 0) + b"x", "malformed"),
    (header("a b", 9, as_name=True), "malformed"),
    (header("127.0.0.1", 9, frag=1) + b"x", "fragment"), (header("127.0.0.1", 9, frag=0x80) + b"x", "fragment"),
    (header("10.0.0.1", 9) + b"x", "guard"), (header("64:ff9b::7f00:1", 9) + b"x", "guard"),
    (header("2002:7f00:1::", 9) + b"x", "guard"), (header("0.0.0.0", 9) + b"x", "guard"),
    (header("nothing.invalid", 9, as_name=True) + b"x", "dns"),
    (header("BLOCKED.test.", 9, as_name=True) + b"x", "policy"), (header("192.0.2.1", 9) + b"x", "policy"),
    (header("::ffff:192.0.2.1", 9) + b"x", "policy"), (header("0xc0.0.2.1", 9, as_name=True) + b"x", "policy")])
def test_dropped_and_counted(start, echo, datagram, reason):
    doc = snapshot(policies={"default": policy(block("blocked.test", "192.0.2.0/24"))})
    node = start(doc=doc, dns={"servers": ["127.0.0.1:1"], "timeout": "200ms", "attempts": 1}, **ANY)
    with Association(node) as a:
        a.send_raw(datagram)
        wait_for(lambda: dropped(node, reason) == 1)
        assert a.ask(b"still here", echo.addr)[0] == b"still here"
    record = node.wait_records(protocol="socks5-udp")[0]
    assert record["result"] == "ok" and record["datagrams_dropped"] == 1
    assert sum(v for k, v in node.metrics().items() if k.startswith("culvert_udp_dropped_total")) == 1


@pytest.mark.parametrize("target,stage", [("192.0.2.1", "policy"), ("10.0.0.1", "policy"), ("nothing.invalid", "dns")])
def test_nothing_got_through(start, target, stage):
    doc = snapshot(policies={"default": policy(block("192.0.2.0/24"))})
    node = start(doc=doc, dns={"servers": ["127.0.0.1:1"], "timeout": "200ms", "attempts": 1}, **ANY)
    with Association(node) as a:
        a.send(b"x", (target, 9))
        wait_for(lambda: node.sessions()[0]["datagrams_dropped"] == 1)
    record = node.wait_records(protocol="socks5-udp")[0]
    assert record["result"] == "error" and record["failure_stage"] == stage


def test_each_datagram_is_decided_anew_after_a_swap(start, echo):
    node = start()
    with Association(node) as a:
        assert a.ask(b"1", echo.addr)[0] == b"1"
        outside = echo.seen[0][1]
        node.apply(snapshot(version=2, policies={"default": policy(block("127.0.0.1"))}))
        a.send(b"2", echo.addr)
        wait_for(lambda: dropped(node, "policy") == 1)
        node.apply(snapshot(version=3))
        assert a.ask(b"3", echo.addr)[0] == b"3"
        # The way out has outlived two snapshots, its port with it.
        assert echo.seen[-1][1] == outside
        assert [d for d, _ in echo.seen] == [b"1", b"3"]


def test_names(start, echo):
    dns = Dns({("a.test", 1): ["127.0.0.1"], ("b.test", 28): ["::1"], ("c.test", 1): ["10.0.0.1"],
               ("mixed.test", 1): ["10.0.0.1", "127.0.0.1"]})
    node = start(dns={"servers": [f"127.0.0.1:{dns.port}"]}, **ANY)
    with UdpServer("::1") as six, Association(node) as a:
        for i in range(5):
            a.send(b"%d" % i, ("A.test.", echo.port), as_name=True)
        assert sorted(a.recv() for _ in range(5)) == [(b"%d" % i, echo.addr) for i in range(5)]
        assert a.ask(b"six", ("b.test", six.port)) == (b"six", six.addr)
        a.send(b"no", ("c.test", echo.port))
        wait_for(lambda: dropped(node, "guard") == 1)
        assert a.ask(b"mixed", ("mixed.test", echo.port)) == (b"mixed", echo.addr)
        assert a.ask(b"localhost", ("localhost", echo.port)) == (b"localhost", echo.addr)
    # Once per name and association, whatever the case and the dot.
    assert len([q for q in dns.queries if q == ("a.test", 1)]) == 1


def test_a_name_stays_where_it_is(start, echo):
    """The second answer would be private; the first one is what the association goes on with."""
    answers = iter([["127.0.0.1"], ["10.0.0.1"]])
    dns = Dns({("r.test", 1): lambda: next(answers, ["10.0.0.1"])})
    node = start(dns={"servers": [f"127.0.0.1:{dns.port}"], "cache_size": 0}, **ANY)
    with Association(node) as a:
        for _ in range(3):
            assert a.ask(b"x", ("r.test", echo.port)) == (b"x", echo.addr)
        with Association(node) as b:
            b.send(b"x", ("r.test", echo.port))
            wait_for(lambda: dropped(node, "guard") == 1)
    assert len(echo.seen) == 3


def test_what_waits_for_a_name_is_bounded(start):
    dns = Dns({("slow.test", 1): "silent", ("slow.test", 28): "silent"})
    node = start(dns={"servers": [f"127.0.0.1:{dns.port}"], "timeout": "2s", "attempts": 1}, **ANY)
    with Association(node) as a:
        for _ in range(100):
            a.send(b"x", ("slow.test", 9))  # small: all of them fit into the socket's buffer
        wait_for(lambda: dropped(node, "limit") == 84)
        wait_for(lambda: dropped(node, "dns") == 16)


def test_closed_port_does_not_end_it(node, echo):
    """ICMP port unreachable, from a destination and from the client itself."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind(("127.0.0.1", 0))
        closed = s.getsockname()
    with Association(node) as a:
        for _ in range(20):
            a.send(b"x", closed)
            assert a.ask(b"y", echo.addr)[0] == b"y"
        # The client's own port is closed while answers come, and opens again.
        mine = a.udp.getsockname()
        outside = echo.seen[0][1]
        a.udp.close()
        for _ in range(20):
            echo.socket.sendto(b"nobody home", outside)
        a.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        a.udp.bind(mine)
        a.udp.settimeout(10 * SLOW)
        def through():
            a.send(b"back", echo.addr)
            a.udp.settimeout(0.3 * SLOW)
            try:
                while a.recv()[0] != b"back":
                    pass
                return True
            except TimeoutError:
                return False
        wait_for(through)
    assert node.wait_records(protocol="socks5-udp")[0]["result"] == "ok"


def udp_sockets(node):
    """Descriptors of the node that are UDP sockets."""
    inodes = set()
    for name in ("udp", "udp6"):
        with open(f"/proc/{node.pid}/net/{name}") as f:
            inodes |= {line.split()[9] for line in f.readlines()[1:]}
    found = 0
    for fd in os.listdir(f"/proc/{node.pid}/fd"):
        try:
            target = os.readlink(f"/proc/{node.pid}/fd/{fd}")
        except OSError:
            continue
        found += target.startswith("socket:[") and target[8:-1] in inodes
    return found


@pytest.mark.threads
@pytest.mark.parametrize("how", ["fin", "rst"])
def test_many_associations_end_with_their_connections(node, echo, how):
    base = udp_sockets(node)
    count = 500 // SLOW
    many = [Association(node) for _ in range(count)]
    for a in many:
        a.send(b"x", echo.addr)
    for a in many:
        assert a.recv()[0] == b"x"
    assert udp_sockets(node) == base + 2 * count
    assert node.metrics()["culvert_udp_associations"] == count
    start = time.monotonic()
    for a in many:
        if how == "rst":
            a.control.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        a.control.close()
    wait_for(lambda: udp_sockets(node) == base, timeout=5)
    assert time.monotonic() - start < 5 * SLOW
    records = node.wait_records(count, protocol="socks5-udp")
    assert {r["result"] for r in records} == ({"ok"} if how == "fin" else {"error"})
    for a in many:
        a.udp.close()
    assert node.metrics()["culvert_udp_associations"] == 0


def test_half_close_ends_it(node, echo):
    with Association(node) as a:
        a.ask(b"x", echo.addr)
        a.control.shutdown(socket.SHUT_WR)
        assert recv_all(a.control) == b""
        wait_for(lambda: node.metrics()["culvert_udp_associations"] == 0)


def test_half_close_glued_to_the_request(node):
    """The client's end is there when its request is read: one event tells of both."""
    many = [node.connect() for _ in range(5)]
    os.kill(node.pid, signal.SIGSTOP)
    try:
        for s in many:
            s.sendall(socks_greeting("u") + socks_auth("u", "p") + b"\5\3\0\1\0\0\0\0\0\0")
            s.shutdown(socket.SHUT_WR)
    finally:
        os.kill(node.pid, signal.SIGCONT)
    for s in many:
        assert recv_exact(s, 4) == b"\5\2\1\0"
        assert socks_reply(s)[0] == 0
        assert recv_all(s) == b""
    wait_for(lambda: node.metrics()["culvert_udp_associations"] == 0)


def test_words_on_the_control_connection(node, echo):
    with Association(node) as a:
        a.control.sendall(b"x" * 30000)
        assert a.ask(b"1", echo.addr)[0] == b"1"
        with pytest.raises(OSError):
            for _ in range(1000):
                a.control.sendall(b"x" * 10000)
                time.sleep(0.001)
    assert node.wait_records(protocol="socks5-udp")[0]["failure_stage"] == "splice"


def test_glued_to_the_request(node, echo):
    """Everything in one write, with trailing bytes; the answers come in order."""
    s = node.connect()
    s.sendall(socks_greeting("u") + socks_auth("u", "p") + b"\5\3\0\1\0\0\0\0\0\0" + b"trailing")
    assert recv_exact(s, 4) == b"\5\2\1\0"
    rep, _, port = socks_reply(s)
    assert rep == 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as u:
        u.bind(("127.0.0.1", 0))
        u.settimeout(10 * SLOW)
        u.sendto(header(*echo.addr) + b"x", ("127.0.0.1", port))
        assert parse(u.recv(100)) == (b"x", echo.addr)


def test_idle_control_busy_udp(start, echo):
    """idle_timeout looks at datagrams; the connection says nothing all the time."""
    node = start(limits={"idle_timeout": "1s", "handshake_timeout": "500ms"})
    with Association(node) as a:
        end = time.monotonic() + 3
        while time.monotonic() < end:
            assert a.ask(b"x", echo.addr)[0] == b"x"
            time.sleep(0.2)
        # And without any it ends.
        assert recv_all(a.control) == b""
    record = node.wait_records(protocol="socks5-udp")[0]
    assert record["result"] == "error" and record["message"] == "no data for too long"


def test_way_out_times_out(start, echo):
    node = start(limits={"udp_timeout": "1s"})
    base = udp_sockets(node)
    with Association(node) as a:
        a.ask(b"1", echo.addr)
        assert udp_sockets(node) == base + 2
        wait_for(lambda: udp_sockets(node) == base + 1)
        assert a.ask(b"2", echo.addr)[0] == b"2"


def test_permit(start, echo):
    node = start(doc=snapshot({"u": {"password": "p", "policy": "default", "max_connections": 1}}))
    with Association(node) as a:
        second = Association(node)
        assert second.rep == 2
        second.close()
        assert node.wait_records(failure_stage="limit")[0]["protocol"] == "socks5-udp"
        a.ask(b"x", echo.addr)
    wait_for(lambda: node.metrics()["culvert_udp_associations"] == 0)
    with Association(node) as a:
        a.ask(b"x", echo.addr)


def test_operator_ends_it(node, echo):
    with Association(node) as a:
        a.ask(b"x", echo.addr)
        assert node.http("DELETE", "/sessions/" + node.sessions()[0]["id"])[0] in (200, 202, 204)
        with pytest.raises(ConnectionResetError):
            assert recv_all(a.control) == b"not an orderly end"
    record = node.wait_records(protocol="socks5-udp")[0]
    assert record["result"] == "error" and record["message"] == "ended by an operator"
    assert record["bytes_up"] == 1


@pytest.mark.threads
def test_revoked_by_a_new_snapshot(start, echo):
    node = start(users={"a": "p", "b": "p", "c": "p"})
    with Association(node, user="a") as a, Association(node, user="b") as b, Association(node, user="c") as c:
        for x in (a, b, c):
            x.ask(b"x", echo.addr)
        doc = snapshot({"b": {"password": "p", "policy": "default", "expire": "2001-01-01"}, "c": "p"}, version=2)
        node.apply(doc)
        for x in (a, b):
            with pytest.raises(ConnectionResetError):
                recv_all(x.control)
        assert c.ask(b"still", echo.addr)[0] == b"still"
    assert node.wait_records(username="a")[0]["message"] == "user no longer exists"
    assert node.wait_records(username="b")[0]["message"] == "user expired"


def test_drain(start, echo):
    node = start(limits={"drain_grace": "1s"})
    with Association(node) as a:
        a.ask(b"x", echo.addr)
        stopped = threading.Thread(target=node.stop)
        stopped.start()
        # It may go on until the grace is over, and is then ended.
        a.ask(b"y", echo.addr)
        stopped.join()
        with pytest.raises(OSError):
            assert recv_all(a.control) == b"not an orderly end"
    assert node.records()[0]["message"] == "node is shutting down"


def test_ipv6_client_and_dual_stack(start, echo):
    node = start(listeners=[{"name": "main", "protocol": "socks5", "listen": "[::]:0"}])
    with UdpServer("::1") as six:
        with Association(node, host="::1", stated=wire_address("::", 0)) as a:
            assert a.bound[0] == "::1"
            assert a.ask(b"4", echo.addr) == (b"4", echo.addr)
            assert a.ask(b"6", six.addr) == (b"6", six.addr)
        with Association(node, host="127.0.0.1") as a:
            assert a.bound[0] == "127.0.0.1"
            assert a.ask(b"4", echo.addr) == (b"4", echo.addr)
            assert a.ask(b"6", six.addr) == (b"6", six.addr)


def test_advertised_address(start, echo):
    node = start(listeners=[{"name": "main", "protocol": "socks5", "listen": "[::]:0", "udp_advertise": "203.0.113.5"}])
    with Association(node) as a:
        assert a.bound == ("203.0.113.5", a.port)
        assert a.ask(b"x", echo.addr)[0] == b"x"
    with Association(node, host="::1") as a:
        assert a.bound[0] == "::1"


def test_switched_off(start):
    node = start(listeners=[{"name": "main", "protocol": "mixed", "listen": "127.0.0.1:0", "udp": "off"}])
    a = Association(node)
    assert a.rep == 7 and recv_all(a.control) == b""
    record = node.wait_records(protocol="socks5-udp")[0]
    assert record["failure_stage"] == "listener" and record["message"] == "listener does not carry udp"


def test_unix_listener_refuses(start, tmp_path):
    node = start(listeners=[{"name": "main", "protocol": "socks5", "listen": "127.0.0.1:0"},
                            {"name": "local", "protocol": "socks5", "listen": f"unix:{tmp_path}/s"}])
    s = socket.socket(socket.AF_UNIX)
    s.connect(f"{tmp_path}/s")
    s.sendall(socks_greeting("u") + socks_auth("u", "p") + b"\5\3\0\1\0\0\0\0\0\0")
    assert recv_exact(s, 4) == b"\5\2\1\0"
    assert socks_reply(s)[0] == 7 and recv_all(s) == b""
    node.wait_records(failure_stage="listener")


def test_egress_that_cannot_carry_udp(start, echo):
    """Refused with its stage, never sent another way; other datagrams of the association go on."""
    doc = snapshot(policies={"default": {"routes": [{"selectors": ["127.0.0.2"],
                                                     "action": {"type": "egress", "egress": "up"}}],
                                         "default_action": {"type": "direct"}}},
                   egresses={"up": {"type": "upstream", "backend": {"kind": "http", "addr": "127.0.0.1:1"}}})
    node = start(doc=doc)
    with UdpServer("127.0.0.2") as far, Association(node) as a:
        a.send(b"x", far.addr)
        wait_for(lambda: dropped(node, "egress") == 1)
        with Association(node) as b:
            assert b.ask(b"y", echo.addr)[0] == b"y"
            b.send(b"x", far.addr)
            wait_for(lambda: dropped(node, "egress") == 2)
            assert b.ask(b"z", echo.addr)[0] == b"z"
        a.close()
        records = node.wait_records(2, protocol="socks5-udp")
        assert far.seen == []
    by_result = {r["result"]: r for r in records}
    assert by_result["error"]["failure_stage"] == "egress"
    assert by_result["ok"]["datagrams_dropped"] == 1


@pytest.mark.threads
def test_game_stream(node, echo):
    """50 packets a second on 20 associations for three seconds; nothing is lost, nothing mixed up."""
    many = [Association(node) for _ in range(20)]
    for tick in range(150):
        due = time.monotonic() + 0.02
        for i, a in enumerate(many):
            a.send(b"%d %d " % (i, tick) + b"s" * 100, echo.addr)
        time.sleep(max(0.0, due - time.monotonic()))
    for i, a in enumerate(many):
        got = [a.recv()[0] for _ in range(150)]
        assert got == [b"%d %d " % (i, tick) + b"s" * 100 for tick in range(150)]
        a.close()


@pytest.mark.rss
def test_burst_is_bounded_not_fatal(node):
    """A server that floods: what does not fit is lost, memory stays flat, other sessions live."""
    with UdpServer(answer=lambda d, p: None) as flood, Association(node) as a, Association(node) as b, \
            UdpServer() as other:
        a.send(b"start", flood.addr)
        outside = wait_for(lambda: flood.seen)[0][1]
        before = node.rss_kib()
        for _ in range(20000 // SLOW):
            flood.socket.sendto(b"f" * 1200, outside)
        assert b.ask(b"x", other.addr)[0] == b"x"
        assert node.rss_kib() - before < 8192

def test_rate(start):
    """Datagrams beyond the user's rate are dropped and counted, in both directions; associations share it."""
    rate = 200_000
    user = {"password": "p", "policy": "default", "up_rate": rate, "down_rate": rate}
    node = start(doc=snapshot({"u": user, "v": "p"}))
    with UdpServer(answer=lambda d, p: None) as sink, UdpServer() as echo, Association(node) as a, Association(node) as b, \
            Association(node, user="v") as free:
        started = time.monotonic()
        for i in range(1000):
            (a, b)[i % 2].send(b"x" * 1000, sink.addr)
            if i % 10 == 0:
                time.sleep(0.01)
        elapsed = time.monotonic() - started
        # Unlimited users are not held up.
        assert free.ask(b"free", echo.addr)[0] == b"free"
        got = sum(len(d) for d, _ in sink.seen)
        assert got <= rate * (elapsed + 0.3)
        assert got >= rate * min(elapsed, 4) * 0.5
        assert dropped(node, "rate") > 0
        # Downwards: a server that answers one datagram with two hundred.
        before = dropped(node, "rate")
        time.sleep(0.2)
        a.send(b"go", sink.addr)
        outside = wait_for(lambda: [p for d, p in sink.seen if d == b"go"])[0]
        for _ in range(400):
            sink.socket.sendto(b"y" * 1000, outside)
        wait_for(lambda: dropped(node, "rate") > before)
