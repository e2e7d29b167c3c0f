"""Failover chains over real proxies that die, stop answering, refuse and come back."""
import base64
import os
import signal
import socket
import subprocess
import threading
import time

import pytest

from node import Node, Origin, SLOW, echo, policy, recv_all, recv_exact, snapshot, wait_for
from peers import Certificates, Dante, Haproxy, Microsocks, Squid, free_port, upstream
from test_network import Dns, namespace
from udp import Association, UdpServer, dropped

FAST = {"attempt_timeout": "500ms", "total_timeout": "2s", "backoff": "300ms", "backoff_max": "2s"}
LOGIN = "up-user", "up-secret-word"


def chain(*members):
    """An egress of (id, backend) by priority; what comes out of peers.upstream() is taken, too."""
    return {"type": "chain", "members": [
        {"id": name, "priority": 10 * (i + 1), "backend": one.get("backend", one)} for i, (name, one) in enumerate(members)]}


def through(egress, version=1, **more):
    return snapshot(policies={"default": policy(default="fo")}, egresses={"fo": egress}, version=version, **more)


def member(node, name, egress="fo"):
    return next(m for m in node.status()["members"] if m["egress"] == egress and m.get("member") == name)


def wait_state(node, name, state, timeout=10):
    return wait_for(lambda: member(node, name)["state"] == state, timeout, f"member {name} to be {state}")


def talk(node, port, host="127.0.0.1"):
    """One SOCKS session that echoes; returns its record."""
    before = len(node.records())
    rep, s = node.socks(host, port)
    assert rep == 0, rep
    with s:
        s.sendall(b"hello")
        assert recv_exact(s, 5) == b"hello"
    return node.wait_records(before + 1)[-1]


def refused(node, port, host="127.0.0.1"):
    before = len(node.records())
    rep, s = node.socks(host, port)
    s.close()
    assert rep != 0
    return rep, node.wait_records(before + 1)[-1]


def http_connect(node, host, port):
    s = node.connect()
    login = base64.b64encode(b"u:p").decode()
    s.sendall(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: x\r\nProxy-Authorization: Basic {login}\r\n\r\n".encode())
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += recv_exact(s, 1)
    return int(head.split()[1]), s


class Played(Origin):
    """A proxy that does with each connection what the test wants, and counts them."""

    def __init__(self, handler=lambda conn: conn.recv(1)):
        super().__init__(handler)

    def backend(self, kind="socks5"):
        return upstream(kind, self.port)


@pytest.fixture
def pair(tmp_path):
    """Two SOCKS proxies."""
    with Microsocks(tmp_path, *LOGIN) as a, Microsocks(tmp_path, *LOGIN) as b:
        yield a, b


def pair_chain(a, b):
    return chain(("first", upstream("socks5", a.port, *LOGIN)), ("second", upstream("socks5", b.port, *LOGIN)))


def test_dies_and_comes_back(start, pair, echo_origin):
    """kill -9: the next connection fails over, those after it do not try the dead one, and it is probed back in."""
    a, b = pair
    node = start(doc=through(pair_chain(a, b)), chain=FAST)
    label = {p: f"upstream:127.0.0.1:{p.port}" for p in pair}

    r = talk(node, echo_origin.port)
    assert (r["decision"], r["egress"], r["chain_member"], r["attempts"]) == ("chain:fo", label[a], "first", 1)
    assert r["result"] == "ok" and r["bytes_up"] == 5 and r["bytes_down"] == 5

    a.stop()
    r = talk(node, echo_origin.port)
    assert (r["egress"], r["chain_member"], r["attempts"]) == (label[b], "second", 2)
    m = member(node, "first")
    assert m["state"] == "down" and m["failed"] == 1 and m["downs"] == 1 and m["priority"] == 10
    assert m["last_failure"]["stage"] == "dial" and 0 <= m["retry_in_ms"] <= 300
    assert node.metrics()['culvert_member_up{egress="fo",member="first"}'] == 0

    # A minute of traffic in small: at most one connection for each back-off pays for it.
    begun, records = time.monotonic(), []
    while time.monotonic() - begun < 2:
        records.append(talk(node, echo_origin.port))
    assert all(r["chain_member"] == "second" for r in records)
    # 300, 600, 1200 ms ..., less a quarter at most.
    assert sum(r["attempts"] == 2 for r in records) <= 4 < len(records)

    a.start()
    wait_for(lambda: talk(node, echo_origin.port)["chain_member"] == "first", what="the first to be used again")
    assert member(node, "first")["state"] == "up"
    assert talk(node, echo_origin.port)["chain_member"] == "first"
    metrics = node.metrics()
    assert metrics['culvert_member_up{egress="fo",member="first"}'] == 1
    assert metrics['culvert_member_downs_total{egress="fo",member="first"}'] == 1
    assert metrics['culvert_member_failed_total{egress="fo",member="first",blame="egress"}'] >= 1
    # Sessions count under the proxy that carried them, not under the chain.
    assert metrics[f'culvert_egress_sessions_total{{egress="{label[b]}"}}'] >= len(records) + 1
    assert 'culvert_egress_sessions_total{egress="chain:fo"}' not in metrics
    assert "member does not work" in node.log() and "member works again" in node.log()
    assert LOGIN[1] not in node.log() + str(node.status())


def test_silent_member(start, pair, echo_origin):
    """SIGSTOP: the kernel still accepts. One connection waits for the time limit, the others do not."""
    a, b = pair
    node = start(doc=through(pair_chain(a, b)), chain=FAST)
    os.kill(a.process.pid, signal.SIGSTOP)
    begun = time.monotonic()
    r = talk(node, echo_origin.port)
    assert (r["chain_member"], r["attempts"]) == ("second", 2)
    assert time.monotonic() - begun >= 0.45
    begun = time.monotonic()
    assert talk(node, echo_origin.port)["attempts"] == 1
    assert time.monotonic() - begun < 0.4 * SLOW
    os.kill(a.process.pid, signal.SIGCONT)
    wait_for(lambda: talk(node, echo_origin.port)["chain_member"] == "first", what="the first to be used again")


def one_byte_a_second(conn):
    recv_exact(conn, 3)
    conn.sendall(b"\x05")
    for _ in range(20):
        time.sleep(1)
        conn.sendall(b"\x00")


@pytest.mark.parametrize("handler", [
    lambda c: c.recv(1),  # closes after the greeting
    lambda c: (recv_exact(c, 3), c.sendall(b"\x05\xff"), c.recv(1)),  # wants a login that we do not have
    lambda c: (recv_exact(c, 3), c.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"), c.recv(1)),
    lambda c: (recv_exact(c, 3), c.sendall(b"\x05\x00"), recv_exact(c, 4), c.sendall(b"\x05\x01\x00\x01" + bytes(6)), c.recv(1)),
    one_byte_a_second,
], ids=["closes", "no login", "http", "general failure", "drip"])
def test_bad_member(start, pair, echo_origin, handler):
    """Whatever the first does, each connection comes through, within its time."""
    a, _ = pair
    with Played(handler) as bad:
        node = start(doc=through(chain(("bad", bad.backend()), ("good", upstream("socks5", a.port, *LOGIN)))), chain=FAST)
        for _ in range(3):
            begun = time.monotonic()
            r = talk(node, echo_origin.port)
            assert r["chain_member"] == "good" and r["result"] == "ok"
            assert time.monotonic() - begun < 1.5 * SLOW
        assert not any(r["attempts"] > 2 for r in node.records())


def test_mixed_kinds(start, tmp_path, echo_origin):
    """HTTP within TLS that nobody trusts, HTTP, SOCKS5: each in its place."""
    certificates = Certificates(tmp_path)
    pem = certificates.make("px", "DNS:elsewhere.test")
    with Squid(tmp_path, *LOGIN) as squid, Dante(tmp_path) as dante, Haproxy(tmp_path, squid.port, pem=pem) as tls:
        node = start(doc=through(chain(("tls", upstream("https", tls.port, *LOGIN, tls=True)),
                                       ("http", upstream("http", squid.port, *LOGIN)),
                                       ("socks", upstream("socks5", dante.port)))), chain=FAST)
        r = talk(node, echo_origin.port)
        assert (r["chain_member"], r["attempts"]) == ("http", 2)
        assert member(node, "tls")["last_failure"]["stage"] == "tls"
        squid.stop()
        assert talk(node, echo_origin.port)["chain_member"] == "socks"


def test_all_dead(start, echo_origin, web):
    """Every member is dead and the direct way is open: refused, and nothing goes there."""
    doc = through(chain(("a", upstream("socks5", free_port())), ("b", upstream("http", free_port()))))
    node = start(doc=doc, chain=FAST)
    for _ in range(3):
        rep, r = refused(node, echo_origin.port)
        assert rep == 1
        assert r["failure_stage"] == "chain_exhausted" and r["message"] == "every member of the chain failed"
        assert r["decision"] == "chain:fo" and r["attempts"] == 2 and r["result"] == "error"
        assert "egress" not in r and "chain_member" not in r
    status, s = http_connect(node, "127.0.0.1", echo_origin.port)
    assert status == 502
    s.close()
    s = node.connect()
    login = base64.b64encode(b"u:p").decode()
    s.sendall(f"GET http://127.0.0.1:{web.port}/ HTTP/1.1\r\nHost: x\r\nProxy-Authorization: Basic {login}\r\n"
              "Connection: close\r\n\r\n".encode())
    assert recv_all(s).startswith(b"HTTP/1.1 502 ")
    assert echo_origin.accepted == 0 and web.accepted == 0
    assert node.metrics()['culvert_egress_refused_total{egress="chain:fo",stage="chain_exhausted"}'] == 5


def test_all_silent(start, echo_origin):
    """The total time limit holds, whatever the number of members, and is told as such."""
    with Played() as hole:
        hole.handler = lambda conn: recv_exact(conn, 1000)
        doc = through(chain(*[(f"m{i}", hole.backend()) for i in range(16)]))
        node = start(doc=doc, chain={**FAST, "total_timeout": "1200ms"})
        begun = time.monotonic()
        rep, r = refused(node, echo_origin.port)
        assert 1.1 <= time.monotonic() - begun < 3 * SLOW
        assert rep == 6 and r["failure_stage"] == "chain_exhausted" and r["attempts"] == 3
        assert hole.accepted == 3 and echo_origin.accepted == 0


def test_target_is_the_fault(start, pair):
    """A target that refuses is no reason to put a member back; the client is told what the proxies say."""
    a, b = pair
    node = start(doc=through(pair_chain(a, b)), chain=FAST)
    closed = free_port()
    for _ in range(5):
        rep, r = refused(node, closed)
        assert rep == 5 and r["failure_stage"] == "chain_exhausted" and r["attempts"] == 2
    for name in ("first", "second"):
        m = member(node, name)
        assert m["state"] == "up" and m["failed_target"] == 5 and m["downs"] == 0


def test_hanging_target(start, pair, echo_origin):
    """A target behind healthy proxies that never answers, wanted again and again, moves nothing either."""
    a, b = pair

    def hangs(conn):
        recv_exact(conn, 3)
        conn.sendall(b"\x05\x00")
        head = recv_exact(conn, 10)
        if int.from_bytes(head[8:10], "big") != echo_origin.port:
            conn.recv(1)  # never answers
            return
        conn.sendall(b"\x05\x00\x00\x01" + bytes(6))
        echo(conn)

    with Played(hangs) as p, Played(hangs) as q:
        doc = through(chain(("p", p.backend()), ("q", q.backend())))
        node = start(doc=doc, chain={**FAST, "attempt_timeout": "100ms"})
        for _ in range(4):
            rep, r = refused(node, 9)
            assert rep == 6 and r["attempts"] == 2
        assert talk(node, echo_origin.port)["chain_member"] == "p"
        assert member(node, "p")["downs"] == 0 and member(node, "q")["downs"] == 0
        assert member(node, "p")["failed_unsure"] == 4


def test_established_stay(start, pair, echo_origin):
    """A tunnel that was established does not move: it ends with its proxy."""
    a, b = pair
    node = start(doc=through(pair_chain(a, b)), chain=FAST)
    rep, s = node.socks("127.0.0.1", echo_origin.port)
    assert rep == 0
    s.sendall(b"x")
    assert recv_exact(s, 1) == b"x"
    a.stop()
    try:
        assert s.recv(1) == b""
    except ConnectionResetError:
        pass
    s.close()
    r = node.wait_records(1)[0]
    assert r["chain_member"] == "first" and r["attempts"] == 1
    assert echo_origin.accepted == 1


def test_swap_keeps_state(start, pair, echo_origin):
    """What is known of a member survives the swap of the snapshot, unless it now is another proxy."""
    a, b = pair
    node = start(doc=through(pair_chain(a, b)), chain={**FAST, "backoff": "1h", "backoff_max": "1h"})
    port = a.port
    a.stop()
    assert talk(node, echo_origin.port)["attempts"] == 2
    doc = through(pair_chain(a, b), version=2)
    doc["egresses"]["fo"]["members"][1]["priority"] = 99
    doc["egresses"]["more"] = upstream("socks5", b.port)
    node.apply(doc)
    assert member(node, "first")["state"] == "down" and member(node, "second")["priority"] == 99
    assert talk(node, echo_origin.port)["attempts"] == 1
    doc["version"] = 3
    doc["egresses"]["fo"]["members"][0]["backend"]["password"] = "another"
    node.apply(doc)
    assert member(node, "first")["state"] == "up" and member(node, "first")["attempts"] == 0
    r = talk(node, echo_origin.port)
    assert r["attempts"] == 2 and r["snapshot_version"] == 3
    # A reload of the config makes the egresses anew, which is no reason to forget either.
    node.config["chain"]["attempt_timeout"] = "1s"
    node.write_config()
    node.process.send_signal(signal.SIGHUP)
    wait_for(lambda: node.log().count("config reloaded") >= 1, what="the reload")
    assert member(node, "first")["state"] == "down"
    assert f"127.0.0.1:{port}" in member(node, "first")["label"]


def test_health_check(start, pair, echo_origin):
    """With an active check no client finds out the hard way, neither that a member died nor that it is back."""
    a, b = pair
    health = {"target": f"127.0.0.1:{echo_origin.port}", "interval": "100ms", "timeout": "1s"}
    doc = through(pair_chain(a, b))
    doc["egresses"]["single"] = upstream("socks5", b.port, *LOGIN)
    node = start(doc=doc, chain=FAST, egresses=[{"id": "fo", "health": health}, {"id": "single", "health": health},
                                                {"id": "nobody"}])
    assert "the snapshot has no egress 'nobody'" in node.log()
    wait_for(lambda: all(m["checks"] > 0 for m in node.status()["members"]), what="checks of all")
    assert [m.get("member") for m in node.status()["members"]] == ["first", "second", None]
    assert all(m["checked"] and m["attempts"] == 0 and m["state"] == "up" for m in node.status()["members"])

    a.stop()
    wait_state(node, "first", "down")
    for _ in range(5):
        r = talk(node, echo_origin.port)
        assert (r["chain_member"], r["attempts"]) == ("second", 1)
    a.start()
    wait_state(node, "first", "up")
    assert talk(node, echo_origin.port)["chain_member"] == "first"
    m = member(node, "first")
    assert m["probes"] == 0 and m["checks_failed"] >= 1 and m["failed"] == 0
    assert node.metrics()['culvert_member_checks_failed_total{egress="fo",member="first"}'] >= 1

    # Silent, and taken out of the config.
    os.kill(a.process.pid, signal.SIGSTOP)
    wait_state(node, "first", "down")
    os.kill(a.process.pid, signal.SIGCONT)
    node.config["egresses"] = []
    node.write_config()
    node.process.send_signal(signal.SIGHUP)
    wait_for(lambda: not member(node, "first")["checked"], what="the checks to end")
    assert len(node.status()["members"]) == 2
    wait_for(lambda: talk(node, echo_origin.port)["chain_member"] == "first", what="a probe by a client")


def test_health_check_ends_with_node(start):
    """Checks that are on their way do not hold up the end."""
    with Played(lambda conn: recv_exact(conn, 1000)) as hole:
        health = {"target": "192.0.2.1:443", "interval": "100ms", "timeout": "1h"}
        node = start(doc=through(chain(*[(f"m{i}", hole.backend()) for i in range(16)])), chain=FAST,
                     egresses=[{"id": "fo", "health": health}])
        wait_for(lambda: hole.accepted == 16, what="all checks to be on their way")
        begun = time.monotonic()
        assert node.stop() == 0
        assert time.monotonic() - begun < 5 * SLOW


@pytest.mark.threads
def test_many_at_once(start, pair, echo_origin):
    """A burst on a silent member: everyone gets through, nobody tries anything twice, fds come back."""
    a, b = pair
    node = start(doc=through(pair_chain(a, b)), chain=FAST)
    talk(node, echo_origin.port)
    base = node.fds()
    os.kill(a.process.pid, signal.SIGSTOP)
    errors = []

    def client():
        try:
            rep, s = node.socks("127.0.0.1", echo_origin.port)
            assert rep == 0, rep
            with s:
                s.sendall(b"abc")
                assert recv_exact(s, 3) == b"abc"
        except Exception as e:  # noqa: BLE001
            errors.append(e)

    for burst in range(3):
        threads = [threading.Thread(target=client) for _ in range(60)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        if burst == 1:
            os.kill(a.process.pid, signal.SIGCONT)
    assert not errors, errors[:3]
    records = node.wait_records(181)
    assert all(r["attempts"] <= 2 and r["result"] == "ok" for r in records)
    first, second = member(node, "first"), member(node, "second")
    assert first["attempts"] + second["attempts"] == sum(r["attempts"] for r in records) <= 2 * 181
    wait_for(lambda: node.fds() <= base + 4, what="descriptors to come back")


@pytest.mark.threads
def test_swaps_under_load(start, pair, echo_origin):
    """Members die, come back and are swapped while clients go on: each is served or refused, by one snapshot."""
    a, b = pair
    health = {"target": f"127.0.0.1:{echo_origin.port}", "interval": "100ms", "timeout": "500ms"}
    node = start(doc=through(pair_chain(a, b)), chain={**FAST, "backoff": "100ms"},
                 egresses=[{"id": "other", "health": health}])
    end = time.monotonic() + 5
    errors, served = [], [0]

    def client():
        while time.monotonic() < end:
            try:
                rep, s = node.socks("127.0.0.1", echo_origin.port)
                with s:
                    if rep == 0:
                        s.sendall(b"abc")
                        assert recv_exact(s, 3) == b"abc"
                        served[0] += 1
            except (OSError, EOFError):
                pass  # its proxy was killed under it
            except Exception as e:  # noqa: BLE001
                errors.append(e)

    threads = [threading.Thread(target=client) for _ in range(8)]
    for t in threads:
        t.start()
    version = 1
    while time.monotonic() < end:
        version += 1
        doc = through(pair_chain(*((a, b) if version % 2 else (b, a))), version=version)
        doc["egresses"]["other"] = pair_chain(a, b)
        node.write_snapshot(doc)
        time.sleep(0.2)  # the pace of the load, not a wait
        if version % 4 == 0:
            a.stop()
        elif version % 4 == 2 and a.process is None:
            a.start()
    for t in threads:
        t.join()
    assert not errors, errors[:3]
    assert served[0] > 20
    assert node.status()["totals"]["bugs"] == 0


class Wire(threading.Thread):
    """What is seen at the far end of the cable: (protocol, destination, port)."""

    def __init__(self, device):
        super().__init__(daemon=True)
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self.socket.bind((device, 0))
        self.seen = []
        self.arp = set()
        self.start()

    def run(self):
        while True:
            try:
                frame = self.socket.recv(2048)
            except OSError:
                return
            if frame[12:14] == b"\x08\x00":
                ip = frame[14:]
                head = (ip[0] & 15) * 4
                self.seen.append((ip[9], socket.inet_ntoa(ip[16:20]), int.from_bytes(ip[head + 2:head + 4], "big")))
            elif frame[12:14] == b"\x08\x06":
                self.arp.add(socket.inet_ntoa(frame[38:42]))


@pytest.mark.netns
def test_no_leak(tmp_path):
    """One member in a black hole, one dead, one stopped, and a direct way to the target wide open: no packet for it
    leaves, and its name is not asked for."""
    with namespace():
        # Neighbours are given by hand, so that packets would really be sent.
        for address in ("192.0.2.77", "192.0.2.50"):
            subprocess.run(["ip", "neigh", "add", address, "lladdr", "02:00:00:00:00:77", "dev", "d0"], check=True)
        wire = Wire("d1")
        dns = Dns({("target.test", 1): ["192.0.2.50"], ("target.test", 28): []})
        with Microsocks(tmp_path, *LOGIN) as stopped:
            os.kill(stopped.process.pid, signal.SIGSTOP)
            doc = through(chain(("hole", upstream("socks5", 1080, host="192.0.2.77")),
                                ("dead", upstream("http", free_port())),
                                ("stopped", upstream("socks5", stopped.port, *LOGIN))))
            health = {"target": "target.test:443", "interval": "100ms", "timeout": "300ms"}
            with Node(tmp_path / "node", doc=doc, chain=FAST, dns={"servers": [f"127.0.0.1:{dns.port}"]},
                      direct={"allow": ["192.0.2.0/24", "127.0.0.0/8"]},
                      egresses=[{"id": "fo", "health": health}]) as node:
                begun = time.monotonic()
                for host in ("target.test", "192.0.2.50"):
                    rep, r = refused(node, 443, host)
                    assert r["failure_stage"] == "chain_exhausted" and r["attempts"] == 3
                assert time.monotonic() - begun < 2 * 2 * 1.5 * SLOW
                status, s = http_connect(node, "target.test", 443)
                s.close()
                assert status in (502, 504)
                wait_for(lambda: all(m["checks"] >= 2 for m in node.status()["members"]), what="checks")
                wait_for(lambda: (6, "192.0.2.77", 1080) in wire.seen, what="packets to the black hole")
                os.kill(stopped.process.pid, signal.SIGCONT)
        assert not [p for p in wire.seen if p[1] == "192.0.2.50"], wire.seen
        assert "192.0.2.50" not in wire.arp
        assert not [q for q in dns.queries if "target" in q[0]]
        wire.socket.close()


@pytest.mark.netns
def test_black_hole_primary(tmp_path, echo_origin):
    """A primary in a black hole costs connections their time limit one at a time, not all of them."""
    with namespace():
        subprocess.run(["ip", "neigh", "add", "192.0.2.77", "lladdr", "02:00:00:00:00:77", "dev", "d0"], check=True)
        with Microsocks(tmp_path, *LOGIN) as good, Origin(echo) as origin:
            doc = through(chain(("hole", upstream("socks5", 1080, host="192.0.2.77")),
                                ("good", upstream("socks5", good.port, *LOGIN))))
            with Node(tmp_path / "node", doc=doc, chain={**FAST, "backoff": "5s", "backoff_max": "10s"}) as node:
                assert talk(node, origin.port)["attempts"] == 2
                begun = time.monotonic()
                for _ in range(20):
                    r = talk(node, origin.port)
                    assert (r["chain_member"], r["attempts"]) == ("good", 1)
                assert time.monotonic() - begun < 3 * SLOW


def test_impatient_clients(start, pair, echo_origin):
    """Clients that leave before the time limit of an attempt do not keep a dead member in its place."""
    a, b = pair
    node = start(doc=through(pair_chain(a, b)), chain={**FAST, "attempt_timeout": "20s", "total_timeout": "40s",
                                                       "backoff": "1h", "backoff_max": "1h"})
    os.kill(a.process.pid, signal.SIGSTOP)
    for _ in range(3):
        s = node.connect(timeout=1.5 / SLOW)
        s.sendall(b"\x05\x01\x02\x01\x01u\x01p\x05\x01\x00\x01\x7f\x00\x00\x01" + echo_origin.port.to_bytes(2, "big"))
        assert recv_exact(s, 4) == b"\x05\x02\x01\x00"
        with pytest.raises(TimeoutError):
            s.recv(1)
        s.close()
    wait_state(node, "first", "down")
    assert all(r["attempts"] == 1 and r["result"] == "error" for r in node.wait_records(3))
    assert talk(node, echo_origin.port)["attempts"] == 1
    os.kill(a.process.pid, signal.SIGCONT)


def test_bad_chains(start, pair):
    """A chain that is empty, doubled or nested refuses the whole snapshot; the old one goes on."""
    a, b = pair
    good = pair_chain(a, b)
    node = start(doc=through(good))
    bad = [
        {"type": "chain", "members": []},
        {"type": "chain", "members": [good["members"][0], good["members"][0]]},
        {"type": "chain", "members": [{**good["members"][0], "backend": {"kind": "chain", "addr": "fo"}}]},
        {"type": "chain", "members": [{"id": f"m{i}", "priority": i, "backend": good["members"][0]["backend"]}
                                      for i in range(17)]},
    ]
    for i, egress in enumerate(bad):
        node.write_snapshot(through(egress, version=2 + i))
        wait_for(lambda n=i: node.status()["snapshot"]["failures"] >= n + 1, what="the refusal")
        assert node.status()["snapshot"]["version"] == 1
        assert node.status()["snapshot"]["last_error"]["path"].startswith("egresses.fo")
    assert len(node.status()["members"]) == 2


class DanteUdp(Dante):
    """It wants 'udpreply' to let answers back in."""

    def command(self):
        conf = self.write("danted.conf", f"""\
logoutput: stderr
internal: 127.0.0.1 port = {self.port}
external: lo
clientmethod: none
socksmethod: none
client pass {{ from: 127.0.0.0/8 to: 0.0.0.0/0 }}
socks pass {{ from: 127.0.0.0/8 to: 0.0.0.0/0 command: connect udpassociate udpreply }}
""")
        return [self.find(), "-f", conf, "-p", self.path("pid")]


def test_udp(start, tmp_path, pair, echo_origin):
    """Datagrams go through the first member that carries them; one that does not is as good as before for TCP."""
    a, b = pair
    with DanteUdp(tmp_path) as dante, UdpServer() as echo_server:
        doc = through(chain(("dead", upstream("socks5", free_port())), ("http", upstream("http", b.port, *LOGIN)),
                            ("tcp", upstream("socks5", a.port, *LOGIN)), ("udp", upstream("socks5", dante.port))))
        node = start(doc=doc, chain={**FAST, "backoff": "1h", "backoff_max": "1h"})
        for attempts in (3, 2):  # without the one that speaks HTTP; then without the dead one
            with Association(node) as association:
                assert association.ask(b"ping", echo_server.addr) == (b"ping", echo_server.addr)
            r = node.wait_records(1, protocol="socks5-udp", attempts=attempts)[0]
            assert (r["chain_member"], r["egress"]) == ("udp", f"upstream:127.0.0.1:{dante.port}")
            assert r["decision"] == "chain:fo" and r["result"] == "ok"
        assert member(node, "dead")["state"] == "down"
        assert member(node, "tcp")["state"] == "up" and member(node, "http")["state"] == "up"
        b.stop()
        assert talk(node, echo_origin.port)["chain_member"] == "tcp"


def test_udp_fails_closed(start, pair):
    """No member carries datagrams: none leaves."""
    a, b = pair
    with UdpServer() as echo_server:
        doc = through(chain(("dead", upstream("socks5", free_port())), ("http", upstream("http", b.port, *LOGIN)),
                            ("tcp", upstream("socks5", a.port, *LOGIN))))
        node = start(doc=doc, chain=FAST)
        with Association(node) as association:
            association.send(b"ping", echo_server.addr)
            wait_for(lambda: dropped(node, "egress") == 1, what="the datagram to be dropped")
        r = node.wait_records(1, protocol="socks5-udp")[0]
        assert r["failure_stage"] == "chain_exhausted" and r["result"] == "error"
        node.apply(through(chain(("http", upstream("http", b.port, *LOGIN))), version=2))
        with Association(node) as association:
            association.send(b"ping", echo_server.addr)
            wait_for(lambda: dropped(node, "egress") == 2, what="the datagram to be dropped")
        r = node.wait_records(2, protocol="socks5-udp")[-1]
        assert r["failure_stage"] == "chain_exhausted" and r["message"] == "egress cannot carry udp"
        assert echo_server.seen == []
