"""Snapshots in a running node: start, reload, faults, race."""
import json
import os
import signal
import threading

import pytest

from node import Node, SLOW, Origin, block, direct, echo, policy, recv_exact, snapshot, wait_for


def logins(node, *users):
    """Which of the users can log in and are then allowed or not: {name: rep}."""
    return {u: node.socks("127.0.0.1", 9, u, "p")[0] for u in users}


def test_no_snapshot_refuses_every_login(start):
    node = start(doc=False)
    assert node.http("GET", "/readyz")[0] == 503
    assert node.http("GET", "/healthz")[0] == 200
    rep, s = node.socks("127.0.0.1", 1)
    assert rep == -1
    assert node.socks("127.0.0.1", 1, user=None)[0] == 0xFF
    node.write_snapshot(snapshot())
    wait_for(lambda: node.http("GET", "/readyz")[0] == 200, what="readiness")
    assert node.socks("127.0.0.1", 1)[0] == 5


@pytest.mark.parametrize("text,fault", [
    ("", "line 1"), ("{", "line 1"), ("[]", "object"), ('{"schema_version": 1}', "version"),
    ('{"schema_version": 2, "version": 1}', "schema_version 2"),
    (json.dumps({**snapshot(), "extra": 1}), "extra"),
    (json.dumps(snapshot(users={"u": {"password": "secret-pw", "policy": "nope"}})), "nope"),
    (json.dumps(snapshot(policies={"default": policy(default="gone")})), "gone")])
def test_a_bad_snapshot_at_start_and_later(start, text, fault):
    node = start(doc=text)
    assert node.http("GET", "/readyz")[0] == 503
    error = node.status()["snapshot"]["last_error"]
    assert fault in json.dumps(error), error
    assert node.socks("127.0.0.1", 1)[0] == -1
    node.apply(snapshot(version=5))
    assert node.socks("127.0.0.1", 1)[0] == 5
    node.write_snapshot(text)
    wait_for(lambda: node.status()["snapshot"]["last_error"], what="the refusal")
    assert node.status()["snapshot"]["version"] == 5
    assert node.socks("127.0.0.1", 1)[0] == 5
    assert "secret-pw" not in node.log()


def test_cache_serves_when_the_file_is_gone(tmp_path):
    with Node(tmp_path, users={"u": "p"}) as node:
        cache = os.path.join(node.dir, "cache.json")
        wait_for(lambda: os.path.exists(cache))
        assert os.stat(cache).st_mode & 0o777 == 0o600
        node.write_snapshot("{")
        wait_for(lambda: node.status()["snapshot"]["last_error"])
        with open(cache) as f:
            assert json.load(f)["version"] == 1
    os.unlink(node.snapshot_path)
    with Node(tmp_path, doc=False) as node:
        assert node.socks("127.0.0.1", 1)[0] == 5
        assert node.status()["snapshot"]["from_cache"] is True


def test_user_gone_and_added(node):
    assert logins(node, "u", "v") == {"u": 5, "v": -1}
    node.apply(snapshot(version=2, users={"v": "p"}))
    assert logins(node, "u", "v") == {"u": -1, "v": 5}
    node.apply(snapshot(version=3, users={}))
    assert logins(node, "u", "v") == {"u": -1, "v": -1}


def test_expired_user(start):
    node = start(users={"old": {"password": "p", "policy": "default", "expire": "2020-01-31"},
                        "new": {"password": "p", "policy": "default", "expire": "2999-12-31"}})
    assert logins(node, "old", "new") == {"old": -1, "new": 5}
    assert node.wait_records(username="old")[0]["message"] == "user expired"


def test_hashed_passwords(start):
    import hashlib
    import subprocess
    salt = bytes(range(16))
    sha = f"sha256:{salt.hex()}:{hashlib.sha256(salt + b'p').hexdigest()}"
    node = start(doc=False)
    argon = subprocess.run([node.binary, "passwd"], input="p\n", capture_output=True, text=True, check=True).stdout.strip()
    assert argon.startswith("$argon2id$")
    node.write_snapshot(snapshot(users={"s": sha, "a": argon}))
    wait_for(lambda: node.http("GET", "/readyz")[0] == 200)
    assert logins(node, "s", "a") == {"s": 5, "a": 5}
    for user in ("s", "a"):
        assert node.socks("127.0.0.1", 1, user, "wrong")[0] == -1
    before = node.metrics()["culvert_auth_cached_total"]
    assert logins(node, "a") == {"a": 5}
    assert node.metrics()["culvert_auth_cached_total"] == before + 1


def test_an_egress_that_does_not_exist_yet_is_refused_not_direct(start, echo_origin):
    doc = snapshot(policies={"default": policy(default="hop")},
                   egresses={"hop": {"type": "upstream", "backend": {"kind": "reverse", "addr": "h1"}}})
    node = start(doc=doc)
    rep, _ = node.socks("127.0.0.1", echo_origin.port)
    assert rep == 1
    record = node.wait_records()[0]
    assert record["failure_stage"] == "egress" and record["decision"] == "reverse:h1"
    assert echo_origin.accepted == 0


@pytest.mark.threads
def test_reload_race(start):
    """Two opposite snapshots swapped as fast as the node takes them, under load.

    Odd versions block 127.0.0.1 and allow 127.0.0.2, even ones the other way round: every session must
    agree with the version that its record carries, and none may see a mixture.
    """
    def doc(version):
        blocked, allowed = ("127.0.0.1", "127.0.0.2") if version % 2 else ("127.0.0.2", "127.0.0.1")
        return snapshot(version=version, policies={"default": policy(block(blocked), direct(allowed), default="block")})

    node = start(doc=doc(1), log={"level": "info"})
    stop = threading.Event()
    faults, done = [], [0]
    with Origin(echo, "127.0.0.1") as one, Origin(echo, "127.0.0.2") as two:
        def client():
            try:
                while not stop.is_set():
                    for host, origin in (("127.0.0.1", one), ("127.0.0.2", two)):
                        rep, s = node.socks(host, origin.port)
                        if rep not in (0, 2):
                            faults.append((host, rep))
                        s.close()
                        done[0] += 1
            except Exception as e:  # noqa: BLE001
                faults.append(e)

        threads = [threading.Thread(target=client) for _ in range(4)]
        for t in threads:
            t.start()
        version = 1
        for _ in range(300):
            version += 1
            node.write_snapshot(doc(version))
            stop.wait(0.01)
        wait_for(lambda: node.status()["snapshot"]["version"] == version, what="the last snapshot", timeout=30)
        stop.set()
        for t in threads:
            t.join()
    assert not faults, faults[:5]
    records = node.wait_records(done[0], timeout=20)
    versions = set()
    for r in records:
        odd = r["snapshot_version"] % 2 == 1
        want = "block" if (r["target_host"] == "127.0.0.1") == odd else "direct"
        assert r["decision"] == want, r
        versions.add(r["snapshot_version"])
    assert len(versions) > 10 / SLOW and done[0] > 100 / SLOW
    assert node.metrics()["culvert_snapshot_swaps_total"] > 50 / SLOW


def test_running_sessions_do_not_notice_a_swap(node, echo_origin):
    rep, s = node.socks("127.0.0.1", echo_origin.port)
    for version in range(2, 12):
        node.apply(snapshot(version=version))
        s.sendall(b"x" * 100)
        assert recv_exact(s, 100) == b"x" * 100


def test_sighup_reads_again(node):
    node.write_snapshot(snapshot(version=2))
    node.process.send_signal(signal.SIGHUP)
    wait_for(lambda: node.status()["snapshot"]["version"] == 2)


def test_no_secret_in_any_output(start, echo_origin):
    doc = snapshot(users={"u": "sEcReT-pAsS-1"}, policies={"default": policy()},
                   egresses={"x": {"type": "upstream", "backend": {"kind": "socks5", "addr": "x:1", "username": "n",
                                                                   "password": "sEcReT-pAsS-2"}}})
    node = start(doc=doc, log={"level": "trace"}, env={"CV_TRACE": "all,socks5,http,flow,auth,relay"})
    node.socks("127.0.0.1", echo_origin.port, "u", "sEcReT-pAsS-1")[1].close()
    node.socks("127.0.0.1", echo_origin.port, "u", "sEcReT-pAsS-3")[1].close()
    node.socks("127.0.0.1", echo_origin.port, "nobody", "sEcReT-pAsS-4")[1].close()
    import base64
    import socket
    basic = base64.b64encode(b"u:sEcReT-pAsS-5")
    s = node.connect()
    s.sendall(b"GET http://127.0.0.1:%d/ HTTP/1.1\r\nHost: h\r\nProxy-Authorization: Basic %s\r\n\r\n" % (echo_origin.port, basic))
    s.shutdown(socket.SHUT_WR)
    s.recv(4096)
    node.wait_records(4)
    text = node.log() + json.dumps(node.records()) + node.http("GET", "/status")[1] + node.http("GET", "/metrics")[1]
    text += node.http("GET", "/sessions")[1]
    assert "sEcReT" not in text and basic.decode() not in text
