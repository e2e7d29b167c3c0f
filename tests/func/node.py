"""Starting the real binary for a test, and looking at it from outside.

    with Node(tmp_path, users={"u": "p"}) as node:
        node.socks_port, node.get("/status"), node.records()

Ports are chosen by the kernel: the config says port 0 and the node reports what it got. Nothing
here sleeps for an event; wait_for() polls a condition with a deadline.
"""
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time

CULVERT = os.environ.get("CULVERT", os.path.join(os.path.dirname(__file__), "../../build/culvert"))


def _is_built_with(sanitizer):
    with open(CULVERT, "rb") as f:
        return f"__{sanitizer}_init".encode() in f.read()


SLOW = 4 if _is_built_with("tsan") else 1
# Sanitizers keep what was freed, so memory says little.
SANITIZED = SLOW > 1 or _is_built_with("asan")


def wait_for(condition, timeout=10.0, what="the condition", step=0.01):
    """Return the first true value of condition(), or fail after 'timeout' seconds."""
    end = time.monotonic() + timeout * SLOW
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"waited {timeout} s for {what}")
        time.sleep(step)


def snapshot(users=None, policies=None, egresses=None, version=1, **more):
    """A snapshot document; users are name -> password, or name -> the whole entry."""
    entries = {}
    for name, user in (users if users is not None else {"u": "p"}).items():
        entries[name] = user if isinstance(user, dict) else {"password": user, "policy": "default"}
    return {
        "schema_version": 1, "version": version, "users": entries,
        "routing_policies": policies if policies is not None
        else {"default": {"routes": [], "default_action": {"type": "direct"}}},
        "egresses": egresses or {}, **more,
    }


def block(*selectors):
    return {"selectors": list(selectors), "action": {"type": "block"}}


def direct(*selectors):
    return {"selectors": list(selectors), "action": {"type": "direct"}}


def policy(*routes, default="direct"):
    action = {"type": default} if default in ("direct", "block") else {"type": "egress", "egress": default}
    return {"routes": list(routes), "default_action": action}


class Node:
    """One running node. 'config' members are merged over the defaults below, one level deep."""

    def __init__(self, path, users=None, doc=None, listeners=None, env=None, start=True, preexec=None,
                 binary=None, args=(), prefix=(), **config):
        self.dir = str(path)
        os.makedirs(self.dir, exist_ok=True)
        self.binary = binary or CULVERT
        self.prefix, self.args, self.env, self.preexec = list(prefix), list(args), env or {}, preexec
        self.snapshot_path = os.path.join(self.dir, "snapshot.json")
        self.config_path = os.path.join(self.dir, "culvert.yaml")
        self.access_path = os.path.join(self.dir, "access.log")
        self.log_path = os.path.join(self.dir, "culvert.log")
        self.config = {
            "node_id": "test",
            "workers": 2,
            "snapshot": {"file": "snapshot.json", "cache": "cache.json"},
            "listeners": listeners or [{"name": "main", "protocol": "mixed", "listen": "127.0.0.1:0"}],
            "admin": {"listen": "127.0.0.1:0"},
            "takeover": {"socket": "takeover.sock"},
            "access_log": {"file": "access.log", "stats_interval": "1s"},
            "log": {"level": "debug"},
            "limits": {"drain_grace": "5s"},
            "direct": {"allow": ["127.0.0.0/8", "::1/128"]},
        }
        for key, value in config.items():
            old = self.config.get(key)
            self.config[key] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
        self.process = None
        self.ports = {}
        self.admin_port = None
        self.write_config()
        if doc is not False:
            self.write_snapshot(doc if doc is not None else snapshot(users))
        if start:
            self.start()

    # --- files ---

    def write_config(self):
        # JSON is YAML.
        with open(self.config_path + ".new", "w") as out:
            json.dump(self.config, out, indent=1)
        os.replace(self.config_path + ".new", self.config_path)

    def write_snapshot(self, doc):
        text = doc if isinstance(doc, (str, bytes)) else json.dumps(doc)
        with open(self.snapshot_path + ".new", "wb") as out:
            out.write(text if isinstance(text, bytes) else text.encode())
        os.replace(self.snapshot_path + ".new", self.snapshot_path)

    def apply(self, doc):
        """Replace the snapshot and wait until the node serves its version."""
        self.write_snapshot(doc)
        wait_for(lambda: self.status()["snapshot"]["version"] == doc["version"], what="the new snapshot")

    # --- life ---

    def start(self, ready=True):
        log = open(self.log_path, "ab")
        self.log_start = log.tell()
        self.process = subprocess.Popen(
            [*self.prefix, self.binary, "run", "-c", self.config_path, *self.args],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.dir,
            env={**os.environ, **self.env}, preexec_fn=self.preexec)
        log.close()
        wait_for(self._find_ports, timeout=30, what=f"the node to listen:\n{self.log()[-2000:]}")
        if ready:
            wait_for(lambda: self.http("GET", "/readyz")[0] in (200, 503), what="the admin API")
        return self

    def _find_ports(self):
        if self.process.poll() is not None:
            raise AssertionError(f"culvert left with {self.process.returncode}:\n{self.log()[-4000:]}")
        text = self.log()[self.log_start:]
        for name, port in re.findall(r"listening name='([^']+)'.* address='[^']*?:(\d+)'", text):
            self.ports[name] = int(port)
        admin = re.findall(r"admin listening address='[^']*?:(\d+)'", text)
        if admin:
            self.admin_port = int(admin[-1])
        return "culvert: ready" in text or re.search(r"node: (serving|started)", text)

    def stop(self, sig=signal.SIGTERM, timeout=20):
        """End the node; return its exit status."""
        if self.process is None:
            return None
        if self.process.poll() is None:
            self.process.send_signal(sig)
        try:
            code = self.process.wait(timeout * SLOW)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError("the node did not leave in time:\n" + self.log()[-3000:]) from None
        self.process = None
        return code

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if self.process is None:
            return
        if kind is not None:
            print(self.log()[-6000:])
        # Drain at once: what is still open belongs to the test that ends.
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(1)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGTERM)
            code = self.process.wait(20 * SLOW)
        self.process = None
        if kind is None:
            assert code == 0, f"exit status {code}:\n{self.log()[-6000:]}"

    @property
    def pid(self):
        return self.process.pid

    @property
    def port(self):
        return self.ports["main"]

    # --- what it says ---

    def log(self):
        try:
            with open(self.log_path, errors="replace") as f:
                return f.read()
        except FileNotFoundError:
            return ""

    def records(self, kind="connection"):
        """Access-log records so far."""
        try:
            with open(self.access_path) as f:
                text = f.read()
        except FileNotFoundError:
            return []
        found = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return [r for r in found if r["kind"] == kind]

    def wait_records(self, n=1, timeout=10, **match):
        """Wait for n connection records whose members equal 'match'; return them."""
        def good():
            found = [r for r in self.records() if all(r.get(k) == v for k, v in match.items())]
            return found if len(found) >= n else None
        return wait_for(good, timeout, f"{n} records with {match}; have {self.records()[-5:]}")

    def http(self, method, path, headers=None, body=None):
        """One request to the admin API: (status, text)."""
        conn = http.client.HTTPConnection("127.0.0.1", self.admin_port, timeout=20 * SLOW)
        try:
            conn.request(method, path, body=body, headers=headers or {})
            reply = conn.getresponse()
            return reply.status, reply.read().decode()
        finally:
            conn.close()

    def get(self, path):
        status, text = self.http("GET", path)
        assert status == 200, (path, status, text)
        return json.loads(text)

    def status(self):
        return self.get("/status")

    def sessions(self):
        return self.get("/sessions")["sessions"]

    def metrics(self):
        """{name{labels}: value} of /metrics."""
        status, text = self.http("GET", "/metrics")
        assert status == 200
        found = {}
        for line in text.splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                found[name] = float(value)
        return found

    def fds(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def rss_kib(self):
        with open(f"/proc/{self.pid}/status") as f:
            return int(re.search(r"VmRSS:\s+(\d+)", f.read()).group(1))

    def cpu_seconds(self):
        with open(f"/proc/{self.pid}/stat") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    # --- clients ---

    def connect(self, listener="main", timeout=20):
        s = socket.create_connection(("127.0.0.1", self.ports[listener]), timeout=timeout * SLOW)
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return s

    def socks(self, host, port, user="u", password="p", listener="main"):
        """SOCKS5 CONNECT; return (REP, socket)."""
        s = self.connect(listener)
        s.sendall(socks_greeting(user) + (socks_auth(user, password) if user is not None else b""))
        method = recv_exact(s, 2)
        assert method[0] == 5
        if method[1] == 0xFF:
            return 0xFF, s
        if method[1] == 2:
            if recv_exact(s, 2) != b"\x01\x00":
                return -1, s
        s.sendall(socks_request(host, port))
        return socks_reply(s)[0], s


def recv_exact(s, n):
    data = b""
    while len(data) < n:
        part = s.recv(n - len(data))
        if not part:
            raise EOFError(f"end of stream after {len(data)} of {n} bytes: {data!r}")
        data += part
    return data


def recv_all(s):
    data = b""
    while True:
        part = s.recv(65536)
        if not part:
            return data
        data += part


def socks_greeting(user):
    return b"\x05\x01\x02" if user is not None else b"\x05\x01\x00"


def socks_auth(user, password):
    user, password = user.encode(), password.encode()
    return bytes([1, len(user)]) + user + bytes([len(password)]) + password


def socks_request(host, port, command=1, as_name=False):
    address = None
    if not as_name:
        for family, atyp in ((socket.AF_INET, 1), (socket.AF_INET6, 4)):
            try:
                address = bytes([atyp]) + socket.inet_pton(family, host)
                break
            except OSError:
                continue
    if address is None:
        name = host.encode()
        address = bytes([3, len(name)]) + name
    return bytes([5, command, 0]) + address + port.to_bytes(2, "big")


def socks_reply(s):
    """(REP, bound host, bound port)."""
    head = recv_exact(s, 4)
    assert head[0] == 5 and head[2] == 0, head
    if head[3] == 1:
        host = socket.inet_ntop(socket.AF_INET, recv_exact(s, 4))
    elif head[3] == 4:
        host = socket.inet_ntop(socket.AF_INET6, recv_exact(s, 16))
    else:
        host = recv_exact(s, recv_exact(s, 1)[0]).decode()
    return head[1], host, int.from_bytes(recv_exact(s, 2), "big")


class Origin:
    """A TCP server on 127.0.0.1 whose handler runs in a thread per connection."""

    def __init__(self, handler, host="127.0.0.1"):
        self.handler = handler
        self.listener = socket.create_server((host, 0), backlog=512,
                                             family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        self.port = self.listener.getsockname()[1]
        self.accepted = 0
        self.errors = []
        self.open = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                conn, _ = self.listener.accept()
            except OSError:
                return
            self.accepted += 1
            self.open.add(conn)
            threading.Thread(target=self._run, args=(conn,), daemon=True).start()

    def _run(self, conn):
        try:
            conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.handler(conn)
        except (OSError, EOFError) as e:
            self.errors.append(e)
        finally:
            self.open.discard(conn)
            conn.close()

    def close(self):
        try:
            self.listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.listener.close()
        for conn in list(self.open):
            try:
                conn.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def echo(conn):
    while True:
        data = conn.recv(65536)
        if not data:
            conn.shutdown(socket.SHUT_WR)
            return
        conn.sendall(data)


class HttpOrigin(Origin):
    """A small keep-alive HTTP/1.1 server that records what it was sent.

    'answer(request) -> bytes' may replace the whole reply; the default says 200 with the name.
    """

    def __init__(self, name="origin", answer=None, host="127.0.0.1"):
        self.name = name
        self.answer = answer
        self.requests = []
        super().__init__(self._serve, host)

    def _serve(self, conn):
        stream = conn.makefile("rb")
        while True:
            request = read_http(stream)
            if request is None:
                return
            self.requests.append(request)
            if self.answer is not None:
                reply = self.answer(request)
            else:
                body = f"{self.name} {request['method']} {request['path']}".encode()
                reply = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
                reply += body if request["method"] != "HEAD" else b""
            if reply is None:
                return
            conn.sendall(reply)
            if b"connection: close" in reply.split(b"\r\n\r\n")[0].lower():
                return


def read_http(stream):
    """One request from a file: dict with method, path, headers (list), body, raw head; None at the end."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        line = stream.readline()
        if not line:
            return None
        head += line
    lines = head.decode("latin1").split("\r\n")
    method, path, version = lines[0].split(" ")
    headers = [tuple(part.strip() for part in line.split(":", 1)) for line in lines[1:] if line]
    low = {k.lower(): v for k, v in headers}
    body = b""
    if "content-length" in low:
        body = stream.read(int(low["content-length"]))
    elif low.get("transfer-encoding", "").lower() == "chunked":
        while True:
            size = int(stream.readline().split(b";")[0], 16)
            if size == 0:
                while stream.readline() not in (b"\r\n", b""):
                    pass
                break
            body += stream.read(size)
            stream.readline()
    return {"method": method, "path": path, "version": version, "headers": headers, "low": low, "body": body,
            "head": head}
