"""Other people's proxies, started for a test on ports that the kernel chose.

    with Microsocks(tmp_path, "u", "p") as proxy:
        upstream("socks5", proxy.port, "u", "p")
"""
import glob
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile

import pytest

from node import wait_for


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def upstream(kind, port, user=None, password=None, host="127.0.0.1", **more):
    """An egress of the snapshot."""
    backend = {"kind": kind, "addr": f"{host}:{port}", **more}
    if user is not None:
        backend.update(username=user, password=password)
    return {"type": "upstream", "backend": backend}


class Certificates:
    """A root of our own and certificates of it; 'ca' is what a node must trust."""

    def __init__(self, folder):
        self.dir = folder
        self.ca = self._path("ca.pem")
        self._openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                      "-subj", "/CN=test root", "-keyout", self._path("ca.key"), "-out", self.ca)

    def _path(self, name):
        return os.path.join(str(self.dir), name)

    def _openssl(self, *args):
        subprocess.run(["openssl", *args], check=True, capture_output=True)

    def make(self, name, san):
        """One PEM file with key and chain."""
        key, csr, crt, ext = (self._path(f"{name}.{x}") for x in ("key", "csr", "crt", "ext"))
        with open(ext, "w") as f:
            f.write(f"subjectAltName={san}\n")
        self._openssl("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}",
                      "-keyout", key, "-out", csr)
        self._openssl("x509", "-req", "-in", csr, "-CA", self.ca, "-CAkey", self._path("ca.key"), "-CAcreateserial",
                      "-days", "2", "-extfile", ext, "-out", crt)
        pem = self._path(f"{name}.pem")
        with open(pem, "w") as out:
            for part in (key, crt):
                with open(part) as f:
                    out.write(f.read())
        self.key, self.crt = key, crt
        return pem


class Peer:
    """A program that listens on self.port; subclasses give command()."""

    program = None
    optional = False  # skip the test where it is not installed

    def __init__(self, folder):
        self.port = free_port()
        self.dir = os.path.join(str(folder), f"{type(self).__name__.lower()}-{self.port}")
        os.makedirs(self.dir)
        self.output = self.path("output")
        self.process = None

    def path(self, name):
        return os.path.join(self.dir, name)

    def write(self, name, text):
        with open(self.path(name), "w") as f:
            f.write(text)
        return self.path(name)

    def find(self):
        found = shutil.which(self.program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
        if found is None and self.optional:
            pytest.skip(f"{self.program} is not installed")
        return found or self.program

    def text(self):
        with open(self.output, errors="replace") as f:
            return f.read()

    def start(self):
        with open(self.output, "ab") as out:
            self.process = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=self.dir,
                                            start_new_session=True)

        def listens():
            assert self.process.poll() is None, f"{self.program} left:\n{self.text()[-2000:]}"
            with socket.socket() as s:
                s.settimeout(1)
                return s.connect_ex(("127.0.0.1", self.port)) == 0

        try:
            wait_for(listens, timeout=20, what=f"{self.program} to listen", step=0.05)
        except AssertionError:
            self.stop()
            raise
        return self

    def stop(self):
        """End it and what it has started, which is one process group."""
        if self.process is None:
            return
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self.process = None

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.stop()


class Microsocks(Peer):
    program = "microsocks"

    def __init__(self, folder, user, password):
        super().__init__(folder)
        self.login = user, password

    def command(self):
        return [self.find(), "-i", "127.0.0.1", "-p", str(self.port), "-u", self.login[0], "-P", self.login[1]]


class Dante(Peer):
    """Without login, which would need users of the system."""

    program, optional = "danted", True  # not in every release of Debian

    def command(self):
        conf = self.write("danted.conf", f"""\
logoutput: stderr
internal: 127.0.0.1 port = {self.port}
external: lo
clientmethod: none
socksmethod: none
client pass {{ from: 127.0.0.0/8 to: 0.0.0.0/0 }}
socks block {{ from: 127.0.0.0/8 to: 127.0.0.9/32 command: connect }}
socks pass {{ from: 127.0.0.0/8 to: 0.0.0.0/0 command: connect udpassociate }}
""")
        return [self.find(), "-f", conf, "-p", self.path("pid")]


class Squid(Peer):
    program = "squid"

    def __init__(self, folder, user, password, option=""):
        super().__init__(folder)
        self.login, self.option = (user, password), option
        self.service = f"cv{self.port}"  # also the name of its shared memory
        # Started by root it becomes another user, who has to reach its files.
        self.dir = tempfile.mkdtemp(prefix="cv-squid-")
        if os.geteuid() == 0:
            os.chmod(self.dir, 0o777)

    def text(self):
        found = ""
        for name in ("output", "cache.log"):
            if os.path.exists(self.path(name)):
                with open(self.path(name), errors="replace") as f:
                    found += f.read()
        return found

    def stop(self):
        super().stop()
        shutil.rmtree(self.dir, ignore_errors=True)
        for segment in glob.glob(f"/dev/shm/{self.service}-*"):
            os.unlink(segment)

    def command(self):
        passwd = subprocess.run(["openssl", "passwd", "-apr1", self.login[1]], check=True, capture_output=True, text=True)
        self.write("passwd", f"{self.login[0]}:{passwd.stdout.strip()}\n")
        header = "proxy_protocol_access allow all\n" if self.option else ""
        conf = self.write("squid.conf", f"""\
http_port 127.0.0.1:{self.port} {self.option}
{header}pid_filename none
access_log stdio:{self.path("access.log")}
logfile_rotate 0
cache_log {self.path("cache.log")}
cache deny all
cache_mem 8 MB
coredump_dir {self.dir}
netdb_filename none
pinger_enable off
shutdown_lifetime 1 second
auth_param basic program /usr/lib/squid/basic_ncsa_auth {self.path("passwd")}
auth_param basic children 1 startup=1
acl known proxy_auth REQUIRED
acl forbidden dst 127.0.0.9/32
http_access deny forbidden
http_access allow known
http_access deny all
""")
        return [self.find(), "-N", "-n", self.service, "-f", conf]


class Tinyproxy(Peer):
    program = "tinyproxy"

    def __init__(self, folder, user, password):
        super().__init__(folder)
        self.login = user, password

    def command(self):
        conf = self.write("tinyproxy.conf", f"""\
Port {self.port}
Listen 127.0.0.1
Timeout 60
MaxClients 100
Allow 127.0.0.1
BasicAuth {self.login[0]} {self.login[1]}
LogLevel Info
""")
        return [self.find(), "-d", "-c", conf]


class V2ray(Peer):
    program = "v2ray"

    def __init__(self, folder, protocol, user, password):
        super().__init__(folder)
        self.protocol, self.login = protocol, (user, password)

    def command(self):
        account = {"user": self.login[0], "pass": self.login[1]}
        settings = {"accounts": [account]}
        if self.protocol == "socks":
            settings.update(auth="password", udp=True, ip="127.0.0.1")
        conf = self.write("v2ray.json", json.dumps({
            "log": {"loglevel": "warning", "access": "none"},
            "inbounds": [{"listen": "127.0.0.1", "port": self.port, "protocol": self.protocol, "settings": settings}],
            "outbounds": [{"protocol": "freedom", "settings": {}}]}))
        return [self.find(), "-config", conf]


class Haproxy(Peer):
    """TCP mode: TLS of the client ends here, and maybe a PROXY protocol header is wanted. Each connection is a line
    "from ADDRESS:PORT resumed 0|1" of its output."""

    program = "haproxy"

    def __init__(self, folder, target, pem=None, accept_proxy=False):
        super().__init__(folder)
        self.target, self.pem, self.accept_proxy = target, pem, accept_proxy

    def command(self):
        tls = f"ssl crt {self.pem}" if self.pem else ""
        conf = self.write("haproxy.cfg", f"""\
global
    nbthread 1
    log stdout format raw local0
defaults
    mode tcp
    timeout connect 5s
    timeout client 60s
    timeout server 60s
frontend in
    bind 127.0.0.1:{self.port} {tls} {"accept-proxy" if self.accept_proxy else ""}
    log global
    log-format "from %ci:%cp resumed %[ssl_fc_is_resumed]"
    default_backend out
backend out
    server s 127.0.0.1:{self.target}
""")
        return [self.find(), "-db", "-f", conf]


class Stunnel(Peer):
    program = "stunnel"

    def __init__(self, folder, target, pem):
        super().__init__(folder)
        self.target, self.pem = target, pem

    def command(self):
        conf = self.write("stunnel.conf", f"""\
foreground = yes
debug = info
pid =
[front]
accept = 127.0.0.1:{self.port}
connect = 127.0.0.1:{self.target}
cert = {self.pem}
""")
        return [self.find(), conf]
