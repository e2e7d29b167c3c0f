"""Two network namespaces joined by a veth pair, and real OpenVPN servers in one of them.

198.18.0.1 is an address within the servers' namespace to which the clients' one has no route: what
reaches it came through a tunnel. State lives in a folder that an unprivileged client can read.
"""
import os
import shutil
import signal
import subprocess
import tempfile
import threading

from node import CULVERT, SLOW, wait_for

SERVER, CLIENT, INNER = "10.99.0.1", "10.99.0.2", "198.18.0.1"
BIG = 2 << 20
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


def sh(*args, **kw):
    return subprocess.run(args, check=True, capture_output=True, text=True, **kw).stdout


def can_run():
    if os.geteuid() != 0 or not shutil.which("openvpn"):
        return False
    try:
        os.close(os.open("/dev/net/tun", os.O_RDWR))
        sh("unshare", "--net", "true")
        return True
    except (OSError, subprocess.CalledProcessError):
        return False


class Lab:
    def __init__(self):
        self.name = f"cvo{os.getpid()}"
        self.s, self.c = self.name + "s", self.name + "c"
        self.dir = tempfile.mkdtemp(prefix="cv-ovpn-")
        os.chmod(self.dir, 0o755)
        self.procs, self.count = [], 0
        self.culvert = os.path.join(self.dir, "culvert")
        shutil.copy(CULVERT, self.culvert)  # where another user can run it
        os.chmod(self.culvert, 0o755)

    def __enter__(self):
        try:
            self._namespaces()
            self._keys()
            self._web()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *_):
        for p in self.procs:
            self.stop(p)
        for ns in (self.s, self.c):
            subprocess.run(["ip", "netns", "del", ns], capture_output=True)
        shutil.rmtree(self.dir, ignore_errors=True)

    def _namespaces(self):
        v0, v1 = self.name + "a", self.name + "b"
        for ns in (self.s, self.c):
            sh("ip", "netns", "add", ns)
            sh("ip", "-n", ns, "link", "set", "lo", "up")
        sh("ip", "link", "add", v0, "netns", self.s, "type", "veth", "peer", "name", v1, "netns", self.c)
        for ns, dev, addr in ((self.s, v0, SERVER), (self.c, v1, CLIENT)):
            sh("ip", "-n", ns, "addr", "add", addr + "/24", "dev", dev)
            sh("ip", "-n", ns, "link", "set", dev, "up")
        sh("ip", "-n", self.s, "addr", "add", INNER + "/32", "dev", "lo")
        self.dev = {self.s: v0, self.c: v1}

    def _web(self):
        """INNER answers on port 8080: /big is BIG bytes, of which some compress well."""
        os.mkdir(self.path("web"))
        with open(self.path("web/big"), "wb") as f:
            f.write(b"".join(os.urandom(4096) + bytes(4096) for _ in range(BIG // 8192)))
        p = self.spawn(["python3", "-m", "http.server", "8080", "--bind", INNER, "--directory", self.path("web")],
                       "web.log")
        wait_for(lambda: p.poll() is None and subprocess.run(
            ["ip", "netns", "exec", self.s, "bash", "-c", f"exec 3<>/dev/tcp/{INNER}/8080"],
            capture_output=True).returncode == 0, 20, "the web server", step=0.1)

    def path(self, name):
        return os.path.join(self.dir, name)

    def text(self, name):
        with open(self.path(name)) as f:
            return f.read()

    def write(self, name, text, mode=0o644):
        with open(self.path(name), "w") as f:
            f.write(text)
        os.chmod(self.path(name), mode)
        return self.path(name)

    def _keys(self):
        def ssl(*args):
            sh("openssl", *args, cwd=self.dir)

        ssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.crt", "-days", "30",
            "-subj", "/CN=lab-ca")
        for name, bits, use in (("server", 2048, "serverAuth"), ("server4k", 4096, "serverAuth"),
                                ("client", 2048, "clientAuth")):
            self.write("ext", f"keyUsage=digitalSignature,keyEncipherment\nextendedKeyUsage={use}\n")
            ssl("req", "-newkey", f"rsa:{bits}", "-nodes", "-keyout", name + ".key", "-out", name + ".csr", "-subj",
                "/CN=" + name)
            ssl("x509", "-req", "-in", name + ".csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days",
                "30", "-out", name + ".crt", "-extfile", "ext")
        for kind, name in (("tls-auth", "ta.key"), ("tls-crypt", "tc.key"), ("tls-crypt-v2-server", "v2s.key")):
            sh("openvpn", "--genkey", kind, self.path(name))
        sh("openvpn", "--tls-crypt-v2", self.path("v2s.key"), "--genkey", "tls-crypt-v2-client", self.path("v2c.key"))
        self.write("verify.sh", '#!/bin/sh\n{ read -r u; read -r p; } <"$1"\n[ "$u:$p" = vpn:vpn ]\n', 0o755)
        self.write("good", "vpn\n")
        self.write("bad", "wrong\n")

    def spawn(self, args, log, ns=None):
        out = open(self.path(log), "w")
        p = subprocess.Popen(["ip", "netns", "exec", ns or self.s, *args], stdout=out, stderr=subprocess.STDOUT,
                             stdin=subprocess.DEVNULL)
        out.close()
        self.procs.append(p)
        return p

    def stop(self, p):
        if p.poll() is None:
            p.send_signal(signal.SIGCONT)
            p.terminate()
            try:
                p.wait(5)
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait()

    def server(self, proto, options, port=None):
        """Start a stock server; 'options' is a string with {d} for the folder of keys. -> (process, port)."""
        self.count += 1
        n = self.count
        port = port or 20000 + n  # in a namespace of its own nobody else has ports
        log = f"server{n}.log"
        words = ["openvpn", "--proto", "tcp-server" if proto == "tcp" else "udp", "--local", SERVER, "--port",
                 str(port), "--dev", f"tun{n}", "--dev-type", "tun", "--server", f"10.8.{n}.0", "255.255.255.0",
                 "--dh", "none", "--disable-dco", "--ca", self.path("ca.crt"), "--push",
                 f"route {INNER} 255.255.255.255", "--duplicate-cn", "--verb", "4"]
        extra = [w.replace("~", " ") for w in options.format(d=self.dir).split()]
        if "--topology" not in extra:
            words += ["--topology", "subnet"]
        if "--ping" not in extra:
            words += ["--keepalive", "10", "60"]
        if "--cert" not in extra:
            words += ["--cert", self.path("server.crt"), "--key", self.path("server.key")]
        p = self.spawn(words + extra, log)

        def started():
            assert p.poll() is None, self.text(log)[-2000:]
            return "Initialization Sequence Completed" in self.text(log)

        wait_for(started, 20, "the server")
        return p, port

    def profile(self, proto, port, more="", cert=True):
        text = f"client\ndev tun\nproto {proto}\nremote {SERVER} {port}\nremote-cert-tls server\n{more}\n"
        text += f"<ca>\n{self.text('ca.crt')}</ca>\n"
        if cert:
            text += f"<cert>\n{self.text('client.crt')}</cert>\n<key>\n{self.text('client.key')}</key>\n"
        self.count += 1
        return self.write(f"profile{self.count}.ovpn", text)

    def inline(self, tag, name):
        return f"<{tag}>\n{self.text(name)}</{tag}>\n"

    def command(self, profile, *args):
        return ["ip", "netns", "exec", self.c, *NOBODY, self.culvert, "tunnel", "test", profile, *args]

    def test(self, profile, *args, ping=INNER, timeout=40):
        """Run 'culvert tunnel test' as nobody; -> (exit code, output, errors)."""
        args = [*args, "--timeout", f"{timeout * SLOW}s"]
        if ping:
            args += ["--ping", ping]
        r = subprocess.run(self.command(profile, *args), capture_output=True, text=True, timeout=120 * SLOW)
        return r.returncode, r.stdout, r.stderr

    def lose(self, percent):
        """Random loss of packets that come in, on both sides; 0: none."""
        for ns in (self.s, self.c):
            subprocess.run(["ip", "netns", "exec", ns, "nft", "delete", "table", "ip", "loss"], capture_output=True)
            if percent:
                sh("ip", "netns", "exec", ns, "nft", "-f", "-", input=(
                    "table ip loss {\n chain i {\n  type filter hook input priority -300\n"
                    f'  iifname "{self.dev[ns]}" numgen random mod 100 < {percent} drop\n }}\n}}\n'))

    def mtu(self, bytes_):
        for ns in (self.s, self.c):
            sh("ip", "-n", ns, "link", "set", self.dev[ns], "mtu", str(bytes_))


class SoftEther:
    """A server set up as a VPN Gate node is, in the lab's servers' namespace."""

    BIN = "/usr/libexec/softether/vpnserver/vpnserver"

    def __init__(self, lab):
        self.lab = lab

    def start(self):
        lab, d = self.lab, self.lab.path("softether")
        for sub in ("lib", "log", "run"):
            os.makedirs(os.path.join(d, sub))
        for path in ("/var/lib/softether", "/var/log/softether", "/run/softether"):
            os.makedirs(path, exist_ok=True)
        with open(os.path.join(d, "lib", "vpn_server.config"), "w") as f:
            f.write("declare root\n{\n\tdeclare DDnsClient\n\t{\n\t\tbool Disabled true\n\t}\n}\n")
        lab.spawn(["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c",
                   f"mount --bind {d}/lib /var/lib/softether; mount --bind {d}/log /var/log/softether; "
                   f"mount --bind {d}/run /run/softether; exec {self.BIN} execsvc"], "softether.log")
        wait_for(lambda: subprocess.run(
            ["ip", "netns", "exec", lab.s, "bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/5555"],
            capture_output=True).returncode == 0, 30, "SoftEther", step=0.2)
        self.do("HubCreate", "VPNGATE", "/PASSWORD:")
        for words in (("SecureNatEnable",), ("UserCreate", "vpn", "/GROUP:none", "/REALNAME:none", "/NOTE:none"),
                      ("UserPasswordSet", "vpn", "/PASSWORD:vpn")):
            self.do(*words, hub=True)
        self.do("HubDelete", "DEFAULT")
        self.do("ProtoOptionsSet", "OpenVPN", "/NAME:Enabled", "/VALUE:True")
        self.do("PortsUDPSet", "1194")
        self.do("OpenVpnMakeConfig", "ovpn.zip")
        import zipfile
        with zipfile.ZipFile(os.path.join(lab.dir, "ovpn.zip")) as z:
            name = [n for n in z.namelist() if "l3.ovpn" in n][0]
            return z.read(name).decode()

    def do(self, *words, hub=False):
        sh("ip", "netns", "exec", self.lab.s, "vpncmd", "localhost:5555", "/SERVER",
           *(["/ADMINHUB:VPNGATE"] if hub else []), "/CMD", *words, cwd=self.lab.dir)


def reading(process):
    """Lines of a process's output as they come, for wait_for()."""
    got = []

    def read():
        for line in process.stdout:
            got.append(line)

    threading.Thread(target=read, daemon=True).start()
    return got
