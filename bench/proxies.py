"""The proxies that bench/run measures: how each is configured and started.

Each listens on a port of 127.0.0.1 that the kernel chose, relays to the origin at 127.0.0.1 to
127.0.0.ADDRESSES, and keeps its files in a folder of its own below the run's temporary one.
"""
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request

ADDRESSES = 8
USER, PASSWORD = "bench", "bench-password"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Proxy:
    """One running proxy. Subclasses say how it is called and what its config is."""

    name = program = package = None
    scheme, login, note = "socks5", True, ""
    skips = ("http",)  # parts of bench/run that it is not fit for

    def __init__(self, folder, origin_port):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix=f"{self.name}-", dir=folder))
        self.origin_port = origin_port
        self.port = free_port()
        self.process = None

    @classmethod
    def find(cls):
        return shutil.which(cls.program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")

    @classmethod
    def version(cls):
        run = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", cls.package],
                             capture_output=True, text=True, check=False)
        return run.stdout.strip() or "unknown"

    def command(self):
        raise NotImplementedError

    def write(self, name, text):
        path = self.folder / name
        path.write_text(text)
        return str(path)

    def start(self):
        self.log = open(self.folder / "output", "wb")
        self.process = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=self.log,
                                        stderr=self.log, cwd=self.folder, start_new_session=True)
        end = time.monotonic() + 8
        while time.monotonic() < end:
            if self.process.poll() is not None:
                break
            with socket.socket() as s:
                s.settimeout(1)
                if s.connect_ex(("127.0.0.1", self.port)) == 0:
                    return self
            time.sleep(0.02)
        text = (self.folder / "output").read_text(errors="replace")[-500:]
        self.stop()
        raise RuntimeError(f"{self.name} does not start: {text}")

    def stop(self):
        """End it and what it started, which is one process group. It is asked first, so that it may
        wait for its children itself."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(3)
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self.process = None
        self.log.close()

    def cpu_seconds(self):
        """Of all processes of its group, those that ended and were waited for, too."""
        ticks = 0
        for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[2]) == self.process.pid:
                ticks += sum(map(int, fields[11:15]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def client(self):
        """Arguments of bench/load for this proxy."""
        args = ["-x", f"127.0.0.1:{self.port}", "-s", self.scheme, "-p", str(self.process.pid)]
        return args + (["-u", f"{USER}:{PASSWORD}"] if self.login else [])


def small_snapshot():
    """A policy with a few rules of each kind, none of which meets the origin."""
    routes = [
        {"selectors": ["full:ads.example.com", "keyword:tracker"], "action": {"type": "block"}},
        {"selectors": ["domain:intern.example.com", "10.20.0.0/16", "2001:db8::/32"],
         "action": {"type": "direct"}},
        {"selectors": ["example.org", "192.0.2.7"], "action": {"type": "block"}},
    ]
    return snapshot({"p": {"routes": routes, "default_action": {"type": "direct"}}})


def snapshot(policies, users=None, version=1, **more):
    me = {USER: {"password": PASSWORD, "policy": next(iter(policies)), **more}}
    return json.dumps({"schema_version": 1, "version": version, "users": me | (users or {}),
                       "routing_policies": policies}, separators=(",", ":"))


class Culvert(Proxy):
    """Everything on: login, policy, a permit, the access log to a file."""

    name, binary, workers, document, skips = "culvert", "build/culvert", 1, None, ()
    note = "one worker; login, policy, permit and access log on"

    @classmethod
    def find(cls):
        return cls.binary if os.access(cls.binary, os.X_OK) else None

    @classmethod
    def version(cls):
        run = subprocess.run([cls.binary, "version"], capture_output=True, text=True, check=False)
        return run.stdout.split("\n")[0].strip()

    def listener(self):
        return f'{{ name: main, protocol: mixed, listen: "127.0.0.1:{self.port}" }}'

    def command(self):
        self.admin_port = free_port()
        self.write("snapshot.json", self.document or small_snapshot())
        config = self.write("culvert.yaml", f"""\
node_id: bench
workers: {self.workers}
snapshot: {{ file: snapshot.json, cache: "" }}
listeners:
  - {self.listener()}
admin: {{ listen: "127.0.0.1:{self.admin_port}" }}
access_log: {{ file: access.log }}
direct: {{ allow: ["127.0.0.0/8"] }}
""")
        return [self.binary, "run", "-c", config]


    def succeed(self):
        """Start a process that takes over from the one that runs; the old one, which drains."""
        old = self.process
        self.process = subprocess.Popen([self.binary, "run", "-c", str(self.folder / "culvert.yaml"),
                                         "--takeover"], stdin=subprocess.DEVNULL, stdout=self.log,
                                        stderr=self.log, cwd=self.folder, start_new_session=True)
        return old

    def swaps(self):
        """Snapshots put in force since the start, by its own count."""
        url = f"http://127.0.0.1:{self.admin_port}/metrics"
        with urllib.request.urlopen(url, timeout=5) as answer:
            text = answer.read().decode()
        return int(re.search(r"^culvert_snapshot_swaps_total (\d+)", text, re.M).group(1))


class CulvertDefault(Culvert):
    name, workers = "culvert, default workers", 0
    note = "one worker for each core"


class Floor(Proxy):
    name, binary = "floor", None
    skips = ("http", "bulk1", "bulk8", "bulk8up", "bulk64")
    note = "bench/floor.c: the bare system calls of a SOCKS5 connection, no proxy"

    @classmethod
    def find(cls):
        return cls.binary

    @classmethod
    def version(cls):
        return ""

    def command(self):
        return [self.binary, str(self.port)]


class Microsocks(Proxy):
    name = program = package = "microsocks"
    note = "a thread per connection"

    def command(self):
        return [self.find(), "-i", "127.0.0.1", "-p", str(self.port), "-u", USER, "-P", PASSWORD]


class Dante(Proxy):
    name, program, package = "dante", "danted", "dante-server"
    login = False
    note = "without login, which would need users of the system"

    def command(self):
        config = self.write("danted.conf", f"""\
logoutput: /dev/null
internal: 127.0.0.1 port = {self.port}
external: lo
clientmethod: none
socksmethod: none
client pass {{ from: 127.0.0.0/8 to: 0.0.0.0/0 }}
socks pass {{ from: 127.0.0.0/8 to: 0.0.0.0/0 command: connect udpassociate udpreply }}
""")
        return [self.find(), "-f", config, "-p", str(self.folder / "pid")]


class Haproxy(Proxy):
    name = program = package = "haproxy"
    scheme, login, splice = "none", False, ""
    note = "TCP mode, one thread: no SOCKS, no login, no policy, no log"

    def bind(self):
        return ""

    def command(self):
        servers = "\n".join(f"    server s{i} 127.0.0.{i}:{self.origin_port}"
                            for i in range(1, ADDRESSES + 1))
        config = self.write("haproxy.cfg", f"""\
global
    nbthread 1
    maxconn 4500
defaults
    mode tcp
    {self.splice}
    timeout connect 5s
    timeout client 60s
    timeout server 60s
frontend in
    bind 127.0.0.1:{self.port} {self.bind()}
    default_backend out
backend out
    balance static-rr
{servers}
""")
        return [self.find(), "-db", "-f", config]


class HaproxySplice(Haproxy):
    name = "haproxy, splicing"
    skips = ("http", "idle")
    splice = "option splice-request\n    option splice-response"
    note = "the same with splice-request and splice-response"


class V2ray(Proxy):
    name = program = package = "v2ray"
    note = "its threads as it likes, access log off"

    def stream(self):
        return {}

    def outbound(self):
        return {"protocol": "freedom", "settings": {}}

    def command(self):
        config = self.write("v2ray.json", json.dumps({
            "log": {"loglevel": "none", "access": "none", "error": "none"},
            "inbounds": [{"listen": "127.0.0.1", "port": self.port, "protocol": "socks",
                          "settings": {"auth": "password", "udp": True, "ip": "127.0.0.1",
                                       "accounts": [{"user": USER, "pass": PASSWORD}]},
                          **self.stream()}],
            "outbounds": [self.outbound()]}))
        return [self.find(), "-config", config]


# -- through a SOCKS5 proxy --

class ToUpstream:
    """Mixed into a proxy that does not connect to the origin but to Dante, whose own cost is not
    counted. Without a login there: v2ray sends one before it was asked for it, which microsocks does
    not take."""

    skips = ()

    def start(self):
        if Dante.find() is None:
            raise RuntimeError(f"{self.name}: there is no Dante to go through: package {Dante.package}")
        self.upstream = Dante(self.folder, self.origin_port).start()
        return super().start()

    def stop(self):
        super().stop()
        self.upstream.stop()


class CulvertUpstream(ToUpstream, Culvert):
    note = "one worker; everything on; all traffic to an upstream"

    def egress(self):
        return {"type": "upstream", "backend": self.backend(self.upstream.port)}

    @staticmethod
    def backend(port):
        return {"kind": "socks5", "addr": f"127.0.0.1:{port}"}

    def command(self):
        document = json.loads(small_snapshot())
        document["routing_policies"]["p"]["default_action"] = {"type": "egress", "egress": "up"}
        document["egresses"] = {"up": self.egress()}
        self.document = json.dumps(document)
        return super().command()


class CulvertChain(CulvertUpstream):
    """The upstream as second member of a chain; where the first one should be nobody listens."""

    name = "culvert, chain"
    note = "the same by a chain whose first member is dead"

    def egress(self):
        return {"type": "chain", "members": [
            {"id": "dead", "priority": 1, "backend": self.backend(free_port())},
            {"id": "alive", "priority": 2, "backend": self.backend(self.upstream.port)}]}


class V2rayUpstream(ToUpstream, V2ray):
    def outbound(self):
        return {"protocol": "socks", "settings": {"servers": [{
            "address": "127.0.0.1", "port": self.upstream.port}]}}


# -- TLS towards clients --

def make_certificate(folder):
    """A P-256 key and a certificate, in one file and in two."""
    key, cert = folder / "key.pem", folder / "cert.pem"
    if not cert.exists():
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                        "ec_paramgen_curve:P-256", "-nodes", "-keyout", str(key), "-out", str(cert),
                        "-days", "2", "-subj", "/CN=bench.example", "-addext",
                        "subjectAltName=DNS:bench.example"], check=True, capture_output=True)
        (folder / "both.pem").write_text(cert.read_text() + key.read_text())
    return folder


class TlsClient(Proxy):
    """haproxy once more, on the side of the client: takes plain connections of bench/load and makes
    TLS ones of them, one cipher for all. Its own cost is not counted."""

    name = program = package = "haproxy"
    resume = ""

    def command(self):
        config = self.write("client.cfg", f"""\
global
    nbthread 1
    maxconn 4500
defaults
    mode tcp
    timeout connect 5s
    timeout client 60s
    timeout server 60s
listen tls
    bind 127.0.0.1:{self.port}
    server s 127.0.0.1:{self.to} ssl verify none sni str(bench.example) {self.resume} \
        ssl-min-ver TLSv1.3 ciphersuites TLS_AES_128_GCM_SHA256
""".replace("\\\n", ""))
        return [self.find(), "-db", "-f", config]


class BehindTls:
    """Mixed into a proxy that takes TLS: bench/load reaches it through two TlsClients, one of which
    resumes sessions."""

    skips = ()

    def start(self):
        self.certificate = make_certificate(self.folder.parent)
        super().start()
        self.clients = {}
        for resume in (False, True):
            client = TlsClient(self.folder, self.origin_port)
            client.to, client.resume = self.port, "" if resume else "no-ssl-reuse"
            self.clients[resume] = client.start()
        return self

    def stop(self):
        for client in getattr(self, "clients", {}).values():
            client.stop()
        self.clients = {}
        super().stop()

    def client(self, resume=False):
        args = super().client()
        args[1] = f"127.0.0.1:{self.clients[resume].port}"
        return args


class CulvertTls(BehindTls, Culvert):
    note = "one worker; TLS listener; login, policy, permit and access log on"

    def listener(self):
        return (f'{{ name: main, protocol: socks5, listen: "127.0.0.1:{self.port}", '
                f'tls: {{ cert: "{self.certificate}/cert.pem", key: "{self.certificate}/key.pem" }} }}')


class HaproxyTls(BehindTls, Haproxy):
    note = "TLS to TCP, one thread: no SOCKS, no login, no policy, no log"

    def bind(self):
        return f"ssl crt {self.certificate}/both.pem"


class V2rayTls(BehindTls, V2ray):
    def stream(self):
        return {"streamSettings": {"network": "tcp", "security": "tls", "tlsSettings": {
            "certificates": [{"certificateFile": f"{self.certificate}/cert.pem",
                              "keyFile": f"{self.certificate}/key.pem"}]}}}


UPSTREAM = [CulvertUpstream, CulvertChain, V2rayUpstream]
UDP = [Culvert, V2ray, Dante]
TLS = [CulvertTls, HaproxyTls, V2rayTls]
ALL = [Culvert, CulvertDefault, Floor, Haproxy, HaproxySplice, Microsocks, V2ray, Dante]
