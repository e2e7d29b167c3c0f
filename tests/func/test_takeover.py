"""A running node is replaced by a new process: nothing is refused or reset, and a failure changes nothing."""
import ctypes
import json
import os
import pathlib
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time

import pytest

from node import SLOW, HttpOrigin, Node, recv_exact, snapshot, socks_auth, socks_greeting, socks_reply, socks_request, \
    wait_for
from takeover import ABORT, ADDRESS, ADMIN, COMMIT, CONTROL, HELLO, ITEM, NEXT, OFFER, PASSED, PREPARED, SERVING, UNIX, \
    Peer, Taker, ended, item, kill, message, spawn, take_over, text
import struct

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def works(node, origin, listener="main", times=4):
    """Connect often enough to meet each worker."""
    for _ in range(times):
        rep, s = node.socks("127.0.0.1", origin.port, listener=listener)
        assert rep == 0
        s.sendall(b"ping")
        assert recv_exact(s, 4) == b"ping"
        s.close()


def workers_of(pid):
    names = [open(f"/proc/{pid}/task/{t}/comm").read() for t in os.listdir(f"/proc/{pid}/task")]
    return sum(name.startswith("cv-worker") for name in names)


def listening(port):
    """Number of sockets that listen on a port of 127.0.0.1."""
    with open("/proc/net/tcp") as f:
        return sum(f" 0100007F:{port:04X} 00000000:0000 0A " in line for line in f)


# --- the ordinary way ---------------------------------------------------------------------------

@pytest.mark.threads
def test_sessions_of_the_old_one_go_on(node, echo_origin):
    rep, s = node.socks("127.0.0.1", echo_origin.port)
    assert rep == 0
    port, admin = node.port, node.admin_port
    old = take_over(node)
    assert node.port == port and node.http("GET", "/readyz")[0] == 200
    works(node, echo_origin)
    assert node.admin_port == admin and old.poll() is None
    s.sendall(b"still here")
    assert recv_exact(s, 10) == b"still here"
    s.close()
    assert ended(old) == 0
    node.wait_records(5, result="ok")
    assert {r["bytes_up"] for r in node.records()} == {10, 4}
    works(node, echo_origin)
    assert node.http("GET", "/readyz")[0] == 200


def test_the_admin_port_never_refuses(node):
    faults, stop = [], threading.Event()

    def ask():
        while not stop.is_set():
            try:
                if node.http("GET", "/healthz")[0] != 200:
                    faults.append("status")
            except OSError as e:
                faults.append(repr(e))
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for t in threads:
        t.start()
    try:
        for _ in range(4):
            assert ended(take_over(node)) == 0
    finally:
        stop.set()
        for t in threads:
            t.join()
    assert not faults


def test_drain_ends_the_rest_after_the_grace(start, echo_origin):
    node = start(limits={"drain_grace": "500ms"})
    rep, s = node.socks("127.0.0.1", echo_origin.port)
    assert rep == 0
    old = take_over(node)
    assert ended(old) == 0
    assert node.wait_records(1, result="error")[0]["failure_stage"] == "splice"
    s.close()


def build_load(folder):
    program = str(folder / "load")
    subprocess.run([os.environ.get("CC", "cc").split()[-1], "-O2", "-std=gnu17", "-D_GNU_SOURCE", "-o", program,
                    str(ROOT / "bench" / "load.c")], check=True)
    return program


class Load:
    """bench/load.c against the node: its origin, and runs of "conn"."""

    def __init__(self, folder):
        self.program = build_load(folder)
        self.origin = subprocess.Popen([self.program, "origin", "-a", "8"], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, text=True)
        self.port = int(self.origin.stdout.readline().split("=")[1])

    def start(self, node, seconds, scheme="socks5", listener="main"):
        return subprocess.Popen([self.program, "conn", "-x", f"127.0.0.1:{node.ports[listener]}", "-t",
                                 f"127.0.0.1:{self.port}", "-a", "8", "-u", "u:p", "-c", "64", "-w", "0", "-T",
                                 str(seconds), "-s", scheme], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.origin.stdin.close()
        self.origin.wait(10)
        self.origin.stdout.close()


def result_of(load):
    out, err = load.communicate(timeout=60 * SLOW)
    assert out, err
    return json.loads(out)


@pytest.mark.threads
def test_under_load_with_other_numbers_of_workers(start, tmp_path):
    """As many connections a second as the machine gives, five takeovers, not one fault."""
    node = start(log={"level": "info"})
    most = 2
    with Load(tmp_path) as load:
        run = load.start(node, 8)
        for workers in (4, 1, 3, 2, 2):
            node.config["workers"] = workers
            node.write_config()
            old = take_over(node)
            most = max(most, workers)
            assert workers_of(node.pid) == workers
            wait_for(lambda: listening(node.port) == most, what="a socket for each worker")
            assert ended(old) == 0
        result = result_of(run)
        assert result["errors"] == 0, result
        assert result["done"] > 1000 / SLOW
        print(f"{result['per_s']} connections a second")
        # Those that were open when the load ended were cut off by it.
        wait_for(lambda: len(node.sessions()) == 0)
    wait_for(lambda: sum(r["result"] == "ok" for r in node.records()) >= result["done"], what="a record for each")


@pytest.mark.threads
def test_unix_listener_under_load(start, echo_origin):
    node = start(listeners=[{"name": "main", "protocol": "socks5", "listen": "127.0.0.1:0"},
                            {"name": "local", "protocol": "mixed", "listen": "unix:local.sock", "unix_mode": "0600"}])
    path = os.path.join(node.dir, "local.sock")
    faults, done, stop = [], [], threading.Event()

    def use():
        while not stop.is_set():
            try:
                with socket.socket(socket.AF_UNIX) as s:
                    s.settimeout(20 * SLOW)
                    s.connect(path)
                    s.sendall(socks_greeting("u") + socks_auth("u", "p"))
                    recv_exact(s, 4)
                    s.sendall(socks_request("127.0.0.1", echo_origin.port))
                    assert socks_reply(s)[0] == 0
                    s.sendall(b"x")
                    recv_exact(s, 1)
                    done.append(1)
            except (OSError, EOFError, AssertionError) as e:
                faults.append(repr(e))
    threads = [threading.Thread(target=use) for _ in range(8)]
    for t in threads:
        t.start()
    try:
        for mode in ("0600", "0660", "0600"):
            node.config["listeners"][1]["unix_mode"] = mode
            node.write_config()
            old = take_over(node)
            wait_for(lambda: stat.S_IMODE(os.stat(path).st_mode) == int(mode, 8), what="the new mode")
            assert ended(old) == 0
            assert os.path.exists(path)
    finally:
        stop.set()
        for t in threads:
            t.join()
    assert not faults and len(done) > 50
    assert node.stop() == 0
    assert not os.path.exists(path) and not os.path.exists(os.path.join(node.dir, "takeover.sock"))


def test_three_hundred_listeners(start, echo_origin):
    names = [f"l{i}" for i in range(300)]
    node = start(listeners=[{"name": n, "protocol": "mixed", "listen": "127.0.0.1:0"} for n in names],
                 log={"level": "info"})
    ports = dict(node.ports)
    old = take_over(node)
    assert node.ports == ports
    assert ended(old) == 0
    assert "sockets=302" in node.log()
    for name in names:
        works(node, echo_origin, name, times=1)


def test_another_set_of_listeners(start, echo_origin):
    node = start(listeners=[{"name": n, "protocol": "mixed", "listen": "127.0.0.1:0"} for n in ("main", "going")]
                 + [{"name": "u-going", "listen": "unix:going.sock"}])
    going, kept = node.ports["going"], node.ports["main"]
    node.config["listeners"] = [{"name": "main", "protocol": "socks5", "listen": "127.0.0.1:0"},
                                {"name": "coming", "protocol": "http", "listen": "127.0.0.1:0"}]
    node.config_path = os.path.join(node.dir, "next.yaml")  # the running one must not reload it
    node.write_config()
    old = take_over(node)
    assert ended(old) == 0
    assert node.ports["main"] == kept
    works(node, echo_origin)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", going))
    assert not os.path.exists(os.path.join(node.dir, "going.sock"))
    c = node.connect("coming")
    c.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    assert c.recv(100).startswith(b"HTTP/1.1 400")


def test_kept_alive_connections(node, web):
    """A kept-alive HTTP connection of the old node is served on."""
    c = node.connect()
    request = (f"GET http://127.0.0.1:{web.port}/ HTTP/1.1\r\nHost: h\r\n"
               "Proxy-Authorization: Basic dTpw\r\n\r\n").encode()
    c.sendall(request)
    assert c.recv(4096).startswith(b"HTTP/1.1 200")
    old = take_over(node)
    c.sendall(request)
    assert c.recv(4096).startswith(b"HTTP/1.1 200")
    c.close()
    assert ended(old) == 0


# --- the new one fails --------------------------------------------------------------------------

def goes_on(node, origin, what, before=0):
    wait_for(lambda: re.search(r"takeover by pid=\d+ has failed, this node goes on: .*" + what, node.log()[before:]),
             timeout=30, what=f"the complaint '{what}'")
    works(node, origin)
    assert node.process.poll() is None
    assert node.http("GET", "/readyz")[0] == 200


@pytest.mark.threads
@pytest.mark.parametrize("stage", Taker.STAGES)
def test_the_new_one_dies(node, echo_origin, stage):
    fds = node.fds()
    with Taker(node).upto(stage):
        works(node, echo_origin)
    goes_on(node, echo_origin, "it has ended")
    wait_for(lambda: node.fds() <= fds, what="descriptors to be closed")
    # The next one is welcome.
    assert ended(take_over(node)) == 0
    works(node, echo_origin)


def test_what_is_handed_over(node, echo_origin):
    node.config["listeners"].append({"name": "u", "listen": "unix:u.sock"})
    node.write_config()
    wait_for(lambda: "config reloaded" in node.log())
    with Taker(node).upto("all items") as taker:
        assert taker.items == [(ADDRESS, 2, "127.0.0.1:0"), (UNIX, 1, f"unix:{node.dir}/u.sock"),
                               (ADMIN, 1, "127.0.0.1:0"), (CONTROL, 1, f"unix:{node.dir}/takeover.sock")]
        assert len(taker.fds) == 5
    goes_on(node, echo_origin, "it has ended")


def test_it_dies_as_soon_as_it_serves(node, echo_origin):
    with Taker(node).upto("prepared") as taker:
        taker.send(message(SERVING))
    # Either it was seen in time, or the old one has stopped: whoever kills a node that said it serves
    # has killed the service. Nothing else may happen.
    wait_for(lambda: "goes on: it ended as soon as it served" in node.log() or node.process.poll() is not None)
    if node.process.poll() is None:
        works(node, echo_origin)
    else:
        assert node.process.returncode == 0
        node.process = None


@pytest.mark.parametrize("stage", Taker.STAGES)
@pytest.mark.parametrize("data,what", [
    (b"GET / HTTP/1.1\r\n\r\n", "something else"),
    (b"CVTO" + b"\xff" * 900, "another version"),
    (b"CVTO\0\1\0\x0c", "something else"),
    (b"x" * 4000, "something else"),
    (message(HELLO, text("1"), version=2), "another version"),
    (message(ABORT, text("no thanks")), "it says: no thanks"),
    (message(PREPARED, b"\0\1\2"), "something else"),
    (message(NEXT, b"\0\x63"), "does not belong here|wrong item"),
    (message(PREPARED, b"\x00\x00"), "does not belong here|number of sockets"),
    (message(COMMIT), "does not belong here")])
def test_garbage(node, echo_origin, stage, data, what):
    with Taker(node).upto(stage) as taker:
        taker.send(data)
        goes_on(node, echo_origin, what)
        while True:
            got = taker.recv()
            if got is None or got[0] == ABORT:
                break
        assert got is None or got[0] == ABORT


def test_descriptors_from_the_other_side_are_closed(node, echo_origin):
    fds = node.fds()
    with Taker(node) as taker:
        taker.send(message(HELLO, text("1")), [0, 1, 2])
        goes_on(node, echo_origin, "something else")
    wait_for(lambda: node.fds() <= fds)


def test_a_silent_one_is_given_up(node, echo_origin):
    with Taker(node).upto("prepared") as taker:
        with Taker(node) as second:
            assert second.recv()[0] == ABORT
        assert "another takeover" not in node.log()
        deadline = time.monotonic() + 12 * SLOW
        while "was silent for too long" not in node.log() and time.monotonic() < deadline:
            works(node, echo_origin, times=2)
            time.sleep(0.2)
        goes_on(node, echo_origin, "silent")
        assert taker.recv()[0] == ABORT


def test_a_reload_waits_for_the_end(node, echo_origin):
    with Taker(node).upto("all items"):
        node.config["listeners"].append({"name": "second", "protocol": "http", "listen": "127.0.0.1:0"})
        node.write_config()
        wait_for(lambda: "the reload waits" in node.log())
        assert "second" not in node.log()
    wait_for(lambda: "config reloaded" in node.log())
    assert "listening name='second'" in node.log()


def test_sigterm_meanwhile(node):
    with Taker(node).upto("all items") as taker:
        node.process.send_signal(signal.SIGTERM)
        assert b"shutting down" in taker.expect(ABORT)
        assert ended(node.process) == 0
        node.process = None


def other_log(node):
    return os.path.join(node.dir, "new.log")


def fails(node, words, args=("--takeover",)):
    """A new process that leaves with 1 and this sentence."""
    open(other_log(node), "w").close()
    new = spawn(node, other_log(node), args)
    code = ended(new, 30)
    said = open(other_log(node)).read()
    assert code == 1 and re.search(words, said), (code, said)


def test_the_new_one_cannot_start(start, echo_origin, tmp_path):
    node = start(listeners=[{"name": "main", "listen": "127.0.0.1:0"}, {"name": "u", "listen": "unix:u.sock"}],
                 admin={"listen": "unix:admin.sock"}, start=False)
    node.http = lambda *_: (200, "")
    node.start(ready=False)
    good = json.dumps(node.config)
    with open(node.config_path, "w") as out:
        out.write("node_id: x\nlistenerz: []\n")
    fails(node, "listenerz")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        node.config = json.loads(good)
        node.config["listeners"].append({"name": "taken", "listen": f"127.0.0.1:{taken.getsockname()[1]}"})
        node.write_config()
        fails(node, "listener 'taken' cannot listen")
        goes_on(node, echo_origin, "cannot start|listener 'taken'|it says")
    node.config = json.loads(good)
    node.config["snapshot"] = {"file": "missing.json", "cache": "missing-too.json"}
    node.write_config()
    fails(node, "no snapshot")
    node.config = json.loads(good)
    node.config["takeover"] = {"socket": "elsewhere.sock"}
    node.write_config()
    fails(node, "no running node answers")
    node.config["takeover"] = {"socket": ""}
    node.write_config()
    fails(node, "takeover.socket is off")
    node.config = json.loads(good)
    node.write_config()
    for name in ("u.sock", "admin.sock", "takeover.sock"):
        assert os.path.exists(os.path.join(node.dir, name)), name
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(os.path.join(node.dir, "admin.sock"))
        s.sendall(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert s.recv(100).startswith(b"HTTP/1.1 200")
    assert ended(take_over(node)) == 0
    for name in ("u.sock", "admin.sock", "takeover.sock"):
        assert os.path.exists(os.path.join(node.dir, name)), name
    works(node, echo_origin)


def test_too_few_descriptors_for_the_new_one(start, echo_origin):
    node = start(listeners=[{"name": f"l{i}", "listen": "127.0.0.1:0"} for i in range(40)] +
                 [{"name": "main", "listen": "127.0.0.1:0"}], log={"level": "info"})
    with open(other_log(node), "wb") as log:
        new = subprocess.Popen(["sh", "-c", 'ulimit -n 50; exec "$@"', "sh", node.binary, "run", "-c", node.config_path,
                                "--takeover"], stdout=log, stderr=log, cwd=node.dir)
    assert ended(new) == 1
    assert "raise LimitNOFILE" in open(other_log(node)).read()
    goes_on(node, echo_origin, "")


@pytest.mark.threads
def test_killed_at_any_moment(start, tmp_path):
    """kill -9 of the real new node after every few milliseconds of its start. What it had accepted in the moment
    before it could say so is lost with it; the service is not."""
    node = start(log={"level": "info"}, limits={"drain_grace": "1s"})
    took_over = 0
    with Load(tmp_path) as load:
        run = load.start(node, 8)
        for step in range(24):
            before = len(node.log())
            new = spawn(node)
            time.sleep(step * 0.002 * SLOW)
            if step % 3 == 2:
                wait_for(lambda: "a takeover begins" in node.log()[before:] or new.poll() is not None)
            kill(new)
            wait_for(lambda: node.process.poll() is not None or f"takeover by pid={new.pid} has failed" in node.log()
                     or f"replaced by pid={new.pid}" in node.log()
                     or f"a takeover begins pid={new.pid} " not in node.log())
            if f"replaced by pid={new.pid}" in node.log():
                # It had confirmed: the old one drains, and the service has to be started anew.
                took_over += 1
                assert ended(node.process) == 0
                run.kill()
                run.communicate()
                node.start()
                run = load.start(node, 4)
                continue
            conn = node.connect()
            conn.sendall(b"\x05\x01\x02")
            assert recv_exact(conn, 2) == b"\x05\x02"
            conn.close()
        result = result_of(run)
    assert took_over < 24
    # One burst per worker and kill at most.
    assert result["errors"] < 64 * 24, result


@pytest.mark.threads
def test_stopped_at_any_moment(start, echo_origin):
    """SIGSTOP: the old one serves on and gives up after a while; the new one, when it is woken, ends."""
    node = start(listeners=[{"name": "main", "listen": "127.0.0.1:0"}] +
                 [{"name": f"l{i}", "listen": "127.0.0.1:0"} for i in range(100)], log={"level": "info"})
    for _ in range(10):
        before = len(node.log())
        open(other_log(node), "w").close()
        new = spawn(node, other_log(node))
        wait_for(lambda: "a takeover begins" in node.log()[before:])
        new.send_signal(signal.SIGSTOP)
        try:
            time.sleep(0.05)
            if "replaced by" in node.log()[before:]:
                new.send_signal(signal.SIGCONT)
                assert ended(node.process) == 0
                node.process = new
                continue
            works(node, echo_origin, times=10)
            wait_for(lambda: "was silent for too long" in node.log()[before:], timeout=140)
        finally:
            new.send_signal(signal.SIGCONT)
        works(node, echo_origin, times=10)
        assert ended(new) == 1
        assert "silent for too long" in open(other_log(node)).read()
        works(node, echo_origin, times=10)
        return
    pytest.skip("it was too quick to be stopped in the middle")


# --- the old one fails --------------------------------------------------------------------------

class Giver:
    """The old node, played by hand: one TCP listener with two sockets, and the control socket."""

    def __init__(self, node):
        self.path = os.path.join(node.dir, "takeover.sock")
        self.control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.bind(self.path)
        self.control.listen(8)
        self.control.settimeout(20 * SLOW)
        self.sockets = []
        for _ in range(2):
            s = socket.socket()
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            s.bind(("127.0.0.1", self.sockets[0].getsockname()[1] if self.sockets else 0))
            s.listen(64)
            s.setblocking(False)
            self.sockets.append(s)
        self.port = self.sockets[0].getsockname()[1]

    def accept(self):
        peer = Peer(self.control.accept()[0])
        peer.expect(HELLO)
        return peer

    def offer(self, peer, n=2):
        peer.send(message(OFFER, text("0.0") + struct.pack(">IHI", os.getpid(), n, 0) + text("")))

    def items(self, peer):
        st = os.stat(self.path)
        peer.send(item(0, ADDRESS, "127.0.0.1:0", "main", 2), [s.fileno() for s in self.sockets])
        assert peer.expect(NEXT) == b"\0\0"
        peer.send(item(1, CONTROL, f"unix:{self.path}", "", dev=st.st_dev, ino=st.st_ino), [self.control.fileno()])
        assert peer.expect(NEXT) == b"\0\1"

    def close(self):
        for s in [*self.sockets, self.control]:
            s.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


@pytest.fixture
def idle_node(start):
    return start(start=False)


def said_by(node):
    return open(other_log(node)).read()


@pytest.mark.parametrize("stage,words", [
    ("hello", "has ended before"), ("offer", "has ended before"), ("silent", "does not answer"),
    ("garbage", "does not follow"), ("version", "another version"), ("abort", "refuses: not today"),
    ("no fds", "does not follow"), ("order", "does not follow")])
def test_the_old_one_fails_early(idle_node, stage, words):
    node = idle_node
    with Giver(node) as giver:
        new = spawn(node, other_log(node))
        with giver.accept() as peer:
            if stage == "garbage":
                peer.send(b"\x16\x03\x01" * 40)
            elif stage == "version":
                peer.send(message(OFFER, b"", version=7))
            elif stage == "abort":
                peer.send(message(ABORT, text("not today"), version=7))
            elif stage != "hello":
                giver.offer(peer)
            if stage == "no fds":
                peer.send(item(0, ADDRESS, "127.0.0.1:0", "main", 2), [giver.sockets[0].fileno()])
            elif stage == "order":
                peer.send(item(1, ADDRESS, "127.0.0.1:0", "main", 1), [giver.sockets[0].fileno()])
            if stage == "silent":
                assert ended(new, 30) == 1
            elif stage in ("hello", "offer"):
                peer.close()
            assert ended(new, 30) == 1
        assert re.search(words, said_by(node)), said_by(node)
        assert "listening name=" not in said_by(node)
        assert os.path.exists(giver.path)


@pytest.mark.parametrize("stage", ["before commit", "after commit", "after serving"])
def test_the_old_one_dies_late(idle_node, echo_origin, stage):
    """All sockets are there, so the new one serves them all, and can be replaced in turn."""
    node = idle_node
    giver = Giver(node)
    waiting = socket.create_connection(("127.0.0.1", giver.port))  # in the backlog all the while
    node.process = spawn(node)
    peer = giver.accept()
    giver.offer(peer)
    giver.items(peer)
    assert peer.expect(PREPARED) == b"\0\2\3"
    if stage != "before commit":
        peer.send(message(COMMIT))
    if stage == "after serving":
        peer.expect(SERVING)
    peer.close()
    giver.close()
    wait_for(lambda: "this node has taken over" in node.log())
    node.log_start = 0
    node._find_ports()
    assert node.ports["main"] == giver.port
    waiting.sendall(b"\x05\x01\x02")
    assert recv_exact(waiting, 2) == b"\x05\x02"
    works(node, echo_origin)
    waiting.close()
    assert ended(take_over(node)) == 0
    works(node, echo_origin)


def test_the_old_one_goes_on_after_all(idle_node):
    """It did not hear in time that the new one serves: the new one ends, and leaves files and backlogs alone."""
    node = idle_node
    with Giver(node) as giver:
        new = spawn(node, other_log(node))
        with giver.accept() as peer:
            giver.offer(peer)
            giver.items(peer)
            peer.expect(PREPARED)
            peer.send(message(COMMIT))
            peer.expect(SERVING)
            peer.send(message(ABORT, text("too late")))
            assert ended(new) == 1
        assert "too late" in said_by(node) and os.path.exists(giver.path)
        with socket.create_connection(("127.0.0.1", giver.port)):
            def accepted():
                for s in giver.sockets:
                    try:
                        s.accept()[0].close()
                        return True
                    except BlockingIOError:
                        pass
                return False
            wait_for(accepted, what="the connection in one of the old backlogs")


# --- who may ask --------------------------------------------------------------------------------

def test_the_socket_is_the_owners(node, echo_origin):
    path = os.path.join(node.dir, "takeover.sock")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    if os.geteuid() != 0:
        pytest.skip("needs root to be somebody else")
    os.chmod(path, 0o666)
    folder = pathlib.Path(node.dir)
    for parent in [folder, *list(folder.parents)[:3]]:
        os.chmod(parent, 0o755)
    code = ("import socket,sys\ns=socket.socket(socket.AF_UNIX,socket.SOCK_SEQPACKET)\ns.connect(sys.argv[1])\n"
            "try:\n s.send(bytes.fromhex('4356544f00010001') + b'\\x01x')\n print(s.recv(99))\n"
            "except (BrokenPipeError, ConnectionResetError):\n print(b'')\n")
    r = subprocess.run(["/usr/bin/python3", "-c", code, path], capture_output=True, text=True, timeout=20,
                       preexec_fn=lambda: (os.setgid(65534), os.setuid(65534)))
    assert r.stdout == "b''\n", r
    assert "a process of another user was refused" in node.log()
    works(node, echo_origin)


def test_no_place_for_the_socket(start, echo_origin):
    node = start(takeover={"socket": "x" * 120})
    assert "this node cannot be replaced while it runs" in node.log()
    works(node, echo_origin)
    fails(node, "no running node answers")


# --- systemd ------------------------------------------------------------------------------------

class Systemd:
    """The notify socket of a service, with who sent what."""

    def __init__(self, folder):
        self.path = str(folder / "notify")
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.sock.bind(self.path)
        self.sock.setblocking(False)
        self.messages = []

    def read(self):
        while True:
            try:
                data, ancillary, _, _ = self.sock.recvmsg(4096, 1024)
            except BlockingIOError:
                return self.messages
            pid = struct.unpack("iii", ancillary[0][2][:12])[0]
            self.messages.append((pid, data.decode()))


def test_sigusr2_and_the_main_process_of_systemd(tmp_path, echo_origin):
    """The node starts its successor itself; only messages that NotifyAccess=main takes are needed."""
    systemd = Systemd(tmp_path)
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: the successor becomes our child
    node = Node(tmp_path / "n", env={"NOTIFY_SOCKET": systemd.path, "WATCHDOG_USEC": "400000"})
    first = node.pid
    try:
        rep, s = node.socks("127.0.0.1", echo_origin.port)
        assert rep == 0
        node.process.send_signal(signal.SIGUSR2)
        wait_for(lambda: "this node has taken over" in node.log(), timeout=30)
        second = int(re.search(r"started the new node file='[^']+' pid=(\d+)", node.log()).group(1))
        works(node, echo_origin)
        wait_for(lambda: (second, "WATCHDOG=1") in systemd.read(), what="the watchdog to be fed by the new one")
        s.close()
        assert ended(node.process) == 0
        works(node, echo_origin)
        main, state = first, []
        for pid, said in systemd.read():
            if pid == main and not said.startswith("WATCHDOG"):
                state.append((pid, said.splitlines()[0]))
            if pid == main and said.startswith("MAINPID="):
                main = int(said[8:])
        assert state == [(first, "READY=1"), (first, f"MAINPID={second}"), (second, "READY=1")]
        # And once more, by the successor of the successor.
        os.kill(second, signal.SIGUSR2)
        wait_for(lambda: f"replaced by pid=" in node.log().split(f"replaced by pid={second}")[1], timeout=30)
        assert os.waitstatus_to_exitcode(os.waitpid(second, 0)[1]) == 0
        third = int(re.findall(r"replaced by pid=(\d+)", node.log())[-1])
        works(node, echo_origin)
        os.kill(third, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(third, 0)[1]) == 0
        assert (third, "STOPPING=1\nSTATUS=draining") in systemd.read()
        node.process = None
    finally:
        ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)
        if node.process is not None:
            for pid in re.findall(r"starts config=.* pid=(\d+)", node.log()):
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except ProcessLookupError:
                    pass


def test_sigusr2_with_a_bad_config(node, echo_origin):
    with open(node.config_path, "w") as out:
        out.write("node_id: x\nlistenerz: []\n")
    node.process.send_signal(signal.SIGUSR2)
    wait_for(lambda: re.search(r"the new node has ended pid=\d+ exit_code=1", node.log()))
    works(node, echo_origin)


PASS_SOCKET = """
import os, socket, sys
if sys.argv[1] != "-":
    s = socket.create_server(("127.0.0.1", int(sys.argv[1])))
    t = socket.create_server(("127.0.0.1", 0))
    a, b = os.dup(s.fileno()), os.dup(t.fileno())
    os.dup2(a, 3), os.dup2(b, 4)
    os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="2", LISTEN_FDNAMES="web:spare")
os.execv(sys.argv[2], sys.argv[2:])
"""


def test_sockets_of_systemd(start, echo_origin):
    """They go from node to node, those that no listener uses as well."""
    node = start(listeners=[{"name": "main", "listen": "fd:web"}], prefix=[sys.executable, "-c", PASS_SOCKET, "0"])
    port = node.port
    for listener in ("fd:web", "fd:4", "fd:spare", "fd:3"):
        node.config["listeners"][0]["listen"] = listener
        node.write_config()
        if listener in ("fd:4", "fd:spare"):
            wait_for(lambda: "config reloaded" in node.log())
        old = take_over(node)
        assert ended(old) == 0
        works(node, echo_origin)
        assert (node.port == port) == (listener in ("fd:web", "fd:3"))
