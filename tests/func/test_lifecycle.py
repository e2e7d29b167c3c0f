"""Start, drain, reload of the config, faults at start."""
import json
import os
import shutil
import signal
import socket
import subprocess

import pytest

from node import CULVERT, Node, recv_all, recv_exact, snapshot, wait_for


def test_drain_waits_for_sessions(node, echo_origin):
    rep, s = node.socks("127.0.0.1", echo_origin.port)
    assert rep == 0
    port = node.port
    node.process.send_signal(signal.SIGTERM)

    def refused():
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return False
        except ConnectionRefusedError:
            return True

    wait_for(refused, what="the listener to close")
    assert node.http("GET", "/readyz")[0] == 503
    s.sendall(b"still")
    assert recv_exact(s, 5) == b"still"
    s.close()
    assert node.process.wait(10) == 0
    assert node.records()[-1]["bytes_up"] == 5
    node.process = None


def test_drain_ends_the_rest_after_the_grace(start, echo_origin):
    node = start(limits={"drain_grace": "500ms"})
    rep, s = node.socks("127.0.0.1", echo_origin.port)
    node.process.send_signal(signal.SIGTERM)
    try:
        assert recv_all(s) == b""
    except ConnectionResetError:
        pass
    assert node.process.wait(10) == 0
    assert len(node.records()) == 1
    node.process = None


def test_kill_leaves_no_mess(tmp_path, echo_origin):
    node = Node(tmp_path)
    node.socks("127.0.0.1", echo_origin.port)
    node.process.kill()
    node.process.wait()
    node.process = None
    left = set(os.listdir(node.dir)) - {"snapshot.json", "culvert.yaml", "access.log", "culvert.log", "cache.json",
                                      "takeover.sock"}
    assert not left
    with Node(tmp_path) as node:
        assert node.socks("127.0.0.1", echo_origin.port)[0] == 0


def test_config_reload(node, echo_origin):
    rep, s = node.socks("127.0.0.1", echo_origin.port)
    assert rep == 0
    node.config["direct"]["allow"] = []
    node.config["listeners"].append({"name": "second", "protocol": "http", "listen": "127.0.0.1:0"})
    node.write_config()
    wait_for(lambda: "config reloaded" in node.log(), what="the reload by the changed file")
    wait_for(lambda: node._find_ports() and "second" in node.ports)
    assert node.socks("127.0.0.1", echo_origin.port)[0] == 2
    s.sendall(b"x")
    assert recv_exact(s, 1) == b"x"
    c = node.connect("second")
    c.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    assert c.recv(100).startswith(b"HTTP/1.1 400")
    old = node.ports["second"]
    node.config["listeners"].pop()
    node.write_config()

    def gone():
        try:
            socket.create_connection(("127.0.0.1", old)).close()
            return False
        except ConnectionRefusedError:
            return True
    wait_for(gone, what="the second listener to go")


def test_a_bad_config_keeps_the_old_one(node, echo_origin):
    with open(node.config_path, "w") as out:
        out.write("node_id: x\nlistenerz: []\n")
    node.process.send_signal(signal.SIGHUP)
    wait_for(lambda: "listenerz" in node.log(), what="the complaint")
    assert node.socks("127.0.0.1", echo_origin.port)[0] == 0


def start_fails(path, text):
    config = path / "c.yaml"
    config.write_text(text)
    from node import CULVERT
    r = subprocess.run([CULVERT, "run", "-c", str(config)], capture_output=True, text=True, timeout=30)
    assert r.returncode == 1, r
    return r.stderr + r.stdout


@pytest.mark.parametrize("text,words", [
    ("node_id: a\nworkerz: 3\n", ["c.yaml:2", "workerz"]),
    ("node_id: a\nlisteners:\n  - { name: m, protocol: socks6, listen: '127.0.0.1:0' }\n", ["socks6", "c.yaml:3"]),
    ("node_id: a\nlisteners:\n  - { name: m, protocol: mixed, listen: 'nowhere' }\n", ["nowhere", "c.yaml:3"]),
    ("node_id: a\nlisteners: []\n", ["listener"]),
    ("node_id: a\nlisteners:\n  - { name: m, protocol: mixed, listen: '127.0.0.1:0' }\nlimits: { connect_timeout: 5 parsecs }\n",
     ["5 parsecs", "c.yaml:4"]),
    ("node_id: a\nlisteners:\n  - { name: m, protocol: mixed, listen: '127.0.0.1:0' }\nadmin: { listen: '0.0.0.0:0' }\n",
     ["token"]),
    ("node_id: [", ["c.yaml"])])
def test_config_errors_name_place_and_remedy(tmp_path, text, words):
    said = start_fails(tmp_path, text)
    for word in words:
        assert word in said, said


def test_port_in_use(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = start_fails(tmp_path, f"node_id: a\nlisteners:\n  - {{ name: m, protocol: mixed, listen: '127.0.0.1:{port}' }}\n")
        assert str(port) in said and "in use" in said


def test_second_node_on_the_same_port_is_refused(node, tmp_path):
    said = start_fails(tmp_path, f"node_id: a\nlisteners:\n  - {{ name: m, protocol: mixed, listen: '127.0.0.1:{node.port}' }}\n")
    assert str(node.port) in said and "in use" in said


def test_runs_as_an_ordinary_user(start, echo_origin, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("is one already")
    os.chmod(tmp_path, 0o777)
    for parent in list(tmp_path.parents)[:2]:
        os.chmod(parent, 0o755)
    # The build may lie where only root may look.
    binary = shutil.copy(CULVERT, tmp_path / "culvert-copy")
    node = start(start=False, binary=str(binary), preexec=lambda: (os.setgid(65534), os.setuid(65534)))
    os.chmod(node.dir, 0o777)
    os.chmod(node.config_path, 0o644)
    os.chmod(node.snapshot_path, 0o644)
    node.start()
    assert node.socks("127.0.0.1", echo_origin.port)[0] == 0


def test_access_log_stats_and_order(node, echo_origin):
    rep, s = node.socks("127.0.0.1", echo_origin.port)
    s.sendall(b"abc")
    recv_exact(s, 3)
    s.close()
    record = node.wait_records(1)[0]
    keys = list(record)
    order = ["timestamp", "node_id", "kind", "session_id", "listener", "protocol", "client_addr", "username", "target_host",
             "target_port", "policy_id", "decision", "egress", "result", "snapshot_version", "duration_ms", "bytes_up",
             "bytes_down"]
    assert [k for k in keys if k in order] == order
    assert None not in record.values()
    stats = wait_for(lambda: [r for r in node.records("stats") if r["bytes_up_total"] >= 3], what="stats lines")
    assert stats[-1]["listener"] == "main"
    wait_for(lambda: [r for r in node.records("egress_stats") if r["egress"] == "direct"])


def test_log_as_json(start):
    node = start(log={"format": "json", "level": "info"})
    assert all(json.loads(line)["level"] for line in node.log().splitlines())
