"""The admin API."""
import json

import pytest

from node import recv_all, snapshot, wait_for


def test_health_and_status(node):
    assert node.http("GET", "/healthz")[0] == 200
    status, text = node.http("GET", "/readyz")
    ready = json.loads(text)
    assert status == 200 and ready["ready"] is True and ready["status"] == "ready"
    assert ready["snapshot"] == {**ready["snapshot"], "loaded": True, "version": 1}
    full = node.status()
    assert full["node_id"] == "test" and full["snapshot"]["users"] == 1
    assert full["listeners"][0]["name"] == "main"


@pytest.mark.parametrize("method,path,status", [
    ("GET", "/nothing", 404), ("POST", "/status", 405), ("DELETE", "/sessions/zzz", 400),
    ("DELETE", "/sessions/0123456789abcdef", 404), ("HEAD", "/healthz", 200)])
def test_odd_requests(node, method, path, status):
    assert node.http(method, path)[0] == status


def test_sessions_and_kill(node, echo_origin):
    streams = [node.socks("127.0.0.1", echo_origin.port)[1] for _ in range(6)]
    rows = node.sessions()
    assert len(rows) == 6 and len({r["id"] for r in rows}) == 6
    assert {r["user"] for r in rows} == {"u"} and {r["egress"] for r in rows} == {"direct"}
    assert all(r["age_ms"] >= 0 for r in rows)
    victim = rows[0]["id"]
    assert node.http("DELETE", f"/sessions/{victim}")[0] == 200
    wait_for(lambda: victim not in {r["id"] for r in node.sessions()})
    assert len(node.sessions()) == 5
    record = [r for r in node.wait_records(1) if r["session_id"] == victim][0]
    assert record["result"] == "error"
    ended = 0
    for s in streams:
        s.settimeout(0.05)
        try:
            ended += s.recv(1) == b""
        except ConnectionResetError:
            ended += 1
        except TimeoutError:
            pass
    assert ended == 1


def test_metrics(node, echo_origin):
    _, s = node.socks("127.0.0.1", echo_origin.port)
    s.sendall(b"12345")
    s.recv(5)
    m = node.metrics()
    assert m['culvert_sessions_active{listener="main"}'] == 1
    assert m['culvert_snapshot_version'] == 1
    assert m['culvert_user_bytes_total{user="u",direction="up"}'] == 5
    assert m['culvert_egress_bytes_total{egress="direct",direction="down"}'] == 5
    assert m['culvert_egress_dial_seconds_count{egress="direct"}'] == 1
    node.socks("127.0.0.1", 1, "u", "wrong")
    node.wait_records(1)
    assert node.metrics()['culvert_refused_total{listener="main",stage="auth"}'] == 1


def test_metric_names_are_well_formed(node):
    _, text = node.http("GET", "/metrics")
    types = {}
    for line in text.splitlines():
        if line.startswith("# TYPE"):
            _, _, name, kind = line.split()
            assert name not in types
            types[name] = kind
        elif line and not line.startswith("#"):
            name = line.split("{")[0].split(" ")[0]
            base = name
            for suffix in ("_bucket", "_sum", "_count"):
                if name.endswith(suffix) and types.get(name[:-len(suffix)]) == "histogram":
                    base = name[:-len(suffix)]
            assert base in types, line
            float(line.rsplit(" ", 1)[1])


def test_token(start):
    node = start(admin={"listen": "127.0.0.1:0", "token": "t0ken"}, start=False)
    node.start(ready=False)
    wait_for(lambda: node.admin_port)
    assert node.http("GET", "/healthz")[0] == 200
    assert node.http("GET", "/readyz")[0] == 200
    for path in ("/status", "/sessions", "/metrics"):
        assert node.http("GET", path)[0] == 401
        assert node.http("GET", path, {"Authorization": "Bearer wrong"})[0] == 401
        assert node.http("GET", path, {"Authorization": "Bearer t0ken"})[0] == 200


def test_hostile_names_are_escaped(start, echo_origin):
    name = 'q"uote\\back\nline'
    node = start(doc=snapshot(users={name: "p"}))
    rep, _ = node.socks("127.0.0.1", echo_origin.port, name, "p")
    assert rep == 0
    assert node.sessions()[0]["user"] == name
    assert any("q\\\"uote" in key for key in node.metrics())
    assert "back\nline" not in node.log()


def test_many_sessions_are_listed(node, echo_origin):
    streams = [node.socks("127.0.0.1", echo_origin.port)[1] for _ in range(300)]
    assert len(node.sessions()) == 300
    for s in streams:
        s.close()
    wait_for(lambda: not node.sessions())
