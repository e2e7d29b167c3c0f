"""Programs that people use, through the node."""
import concurrent.futures
import getpass
import os
import shutil
import socket
import subprocess

import pytest

from node import HttpOrigin, snapshot, wait_for

requests = pytest.importorskip("requests")


def run(*args, env=None, **kw):
    clean = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
    return subprocess.run(args, capture_output=True, text=True, timeout=60, env={**clean, **(env or {})}, **kw)


@pytest.mark.parametrize("scheme", ["socks5h", "socks5", "http"])
def test_curl(node, web, scheme):
    r = run("curl", "-sS", "--fail", "-x", f"{scheme}://u:p@127.0.0.1:{node.port}", "--noproxy", "",
            f"http://127.0.0.1:{web.port}/one", f"http://127.0.0.1:{web.port}/two")
    assert r.returncode == 0 and r.stdout == "origin GET /oneorigin GET /two", r
    r = run("curl", "-sS", "-p", "-x", f"http://u:p@127.0.0.1:{node.port}", "--noproxy", "",
            f"http://127.0.0.1:{web.port}/tunnel")
    assert r.stdout == "origin GET /tunnel", r


def test_curl_wrong_password(node, web):
    r = run("curl", "-sS", "-x", f"socks5h://u:wrong@127.0.0.1:{node.port}", "--noproxy", "", f"http://127.0.0.1:{web.port}/")
    assert r.returncode == 97 and not web.requests
    r = run("curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "-x", f"http://u:wrong@127.0.0.1:{node.port}", "--noproxy", "",
            f"http://127.0.0.1:{web.port}/")
    assert r.stdout == "407" and not web.requests


@pytest.fixture
def tls_web(tmp_path):
    """An https server, and the certificate to trust."""
    import ssl
    import threading
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                    "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", key, "-out", cert],
                   check=True, capture_output=True)
    import http.server

    root = tmp_path / "www"
    root.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *a, **kw):
            super().__init__(*a, directory=str(root), **kw)

        def log_message(self, *a):
            pass

    class Server(http.server.ThreadingHTTPServer):
        request_queue_size = 512
        daemon_threads = True

    server = Server(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1], cert, root
    server.shutdown()
    server.server_close()


def test_git_over_https(node, tls_web, tmp_path):
    port, cert, root = tls_web
    src = tmp_path / "src"
    git = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a",
           "GIT_COMMITTER_EMAIL": "a@b", "HOME": str(tmp_path)}
    assert run("git", "init", "-q", str(src), env=git).returncode == 0
    (src / "file").write_text("content\n" * 5000)
    assert run("git", "-C", str(src), "add", ".", env=git).returncode == 0
    assert run("git", "-C", str(src), "commit", "-qm", "x", env=git).returncode == 0
    assert run("git", "clone", "-q", "--bare", str(src), str(root / "repo.git"), env=git).returncode == 0
    assert run("git", "-C", str(root / "repo.git"), "update-server-info", env=git).returncode == 0
    for scheme in ("socks5h", "http"):
        out = tmp_path / f"clone-{scheme}"
        r = run("git", "-c", f"http.proxy={scheme}://u:p@127.0.0.1:{node.port}", "-c", f"http.sslCAInfo={cert}", "clone", "-q",
                f"https://127.0.0.1:{port}/repo.git", str(out), env={**git, "NO_PROXY": "", "GIT_SSL_CAINFO": cert})
        assert r.returncode == 0, r.stderr
        assert (out / "file").read_text() == "content\n" * 5000
    # How each ends is up to this server, which may close with the client's close_notify unread: a reset.
    for protocol in ("socks5", "http"):
        records = node.wait_records(1, username="u", target_port=port, decision="direct", protocol=protocol)
        assert all(r["bytes_down"] > 500 for r in records)


def test_ssh_through_nc(start, tmp_path):
    if not shutil.which("sshd") and not os.path.exists("/usr/sbin/sshd"):
        pytest.skip("sshd is not installed")
    node = start(listeners=[{"name": "main", "protocol": "socks5", "listen": "127.0.0.1:0", "no_auth_user": "u"},
                            {"name": "web", "protocol": "http", "listen": "127.0.0.1:0"}])
    for name in ("host", "id"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)], check=True)
    shutil.copy(tmp_path / "id.pub", tmp_path / "authorized")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    os.makedirs("/run/sshd", exist_ok=True)
    config = tmp_path / "sshd_config"
    config.write_text(f"Port {port}\nListenAddress 127.0.0.1\nHostKey {tmp_path}/host\nAuthorizedKeysFile {tmp_path}/authorized\n"
                      "StrictModes no\nUsePAM no\nPidFile none\nPermitRootLogin yes\nPasswordAuthentication no\n")
    sshd = subprocess.Popen(["/usr/sbin/sshd", "-D", "-e", "-f", str(config)], stderr=subprocess.PIPE)
    try:
        def up():
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                return True
            except OSError:
                return False
        wait_for(up, what="sshd")
        r = run("ssh", "-F", "none", "-i", str(tmp_path / "id"), "-o", "StrictHostKeyChecking=no", "-o",
                f"UserKnownHostsFile={tmp_path}/known", "-o", "BatchMode=yes", "-o",
                f"ProxyCommand=nc -X 5 -x 127.0.0.1:{node.port} %h %p", "-p", str(port), f"{getpass.getuser()}@127.0.0.1",
                "head -c 300000 /dev/zero | wc -c")
        assert r.stdout.strip() == "300000", (r, sshd)
    finally:
        sshd.terminate()
        sshd.wait()


def test_requests(node, web, tls_web):
    port, cert, root = tls_web
    (root / "hello").write_text("hello over tls")
    for scheme in ("http", "socks5h"):
        proxy = f"{scheme}://u:p@127.0.0.1:{node.port}"
        s = requests.Session()
        s.trust_env = False
        s.proxies = {"http": proxy, "https": proxy}
        for i in range(5):
            assert s.get(f"http://127.0.0.1:{web.port}/{i}").text == f"origin GET /{i}"
        assert s.post(f"http://127.0.0.1:{web.port}/post", data=b"x" * 100000).status_code == 200
        assert s.get(f"https://127.0.0.1:{port}/hello", verify=cert).text == "hello over tls"
    assert max(len(r["body"]) for r in web.requests) == 100000


def test_200_requests_in_parallel(node, web):
    """As a browser does: many requests at once, by persistent connections of both kinds."""
    session = requests.Session()
    session.trust_env = False
    session.mount("http://", requests.adapters.HTTPAdapter(pool_connections=4, pool_maxsize=200))

    def one(i):
        scheme = "http" if i % 2 else "socks5h"
        proxy = f"{scheme}://u:p@127.0.0.1:{node.port}"
        r = session.get(f"http://127.0.0.1:{web.port}/{i}", proxies={"http": proxy}, timeout=60)
        return r.text == f"origin GET /{i}"

    with concurrent.futures.ThreadPoolExecutor(200) as pool:
        assert all(pool.map(one, range(200)))
