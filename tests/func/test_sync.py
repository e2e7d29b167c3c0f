"""The snapshot comes from a control plane by HTTP; whatever that does, what is in force goes on."""
import base64
import gzip
import http.server
import json
import os
import ssl
import subprocess
import threading

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from node import SLOW, Origin, echo, recv_exact, snapshot, wait_for
from peers import Certificates


class Plane:
    """A control plane: serves self.doc, or whatever self.answer(request) writes itself."""

    def __init__(self, doc=None, context=None, port=0):
        self.doc, self.answer, self.seen, self.extra = doc, None, [], {}
        self.changed, self.closed = threading.Condition(), False
        plane = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                if plane.closed:  # what was connected before is cut off
                    self.close_connection = True
                    return
                with plane.changed:
                    plane.seen.append((self.path, dict(self.headers)))
                    plane.changed.notify_all()
                try:
                    (plane.answer or plane.serve)(self)
                except OSError:
                    self.close_connection = True

            def log_message(self, *args):
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads, allow_reuse_address = True, True

            def handle_error(self, *args):
                pass  # clients may go away

        self.server = Server(("127.0.0.1", port), Handler)
        if context:
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=lambda: self.server.serve_forever(0.05), daemon=True)
        self.thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.closed = True
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def body(self):
        return json.dumps(self.doc).encode()

    def serve(self, h):
        self.send(h, 200, self.body())

    def send(self, h, status, body=b"", headers=()):
        h.send_response(status)
        for name, value in [*self.extra.items(), *headers]:
            h.send_header(name, value)
        if status not in (204, 304):
            h.send_header("Content-Length", str(len(body)))
        h.end_headers()
        h.wfile.write(body)

    def wait_requests(self, n):
        """Wait for n more requests than there have been, so that the answer to the first of them is through."""
        with self.changed:
            want = len(self.seen) + n
            assert self.changed.wait_for(lambda: len(self.seen) >= want, 30 * SLOW)


def doc(version, **users):
    return snapshot(users=users or {"u": "p"}, version=version)


def config(plane, scheme="http", host="127.0.0.1", **more):
    return {"snapshot_url": f"{scheme}://{host}:{plane.port}/snapshot", "poll_interval": "1s", "timeout": "2s", **more}


def plane_node(start, plane, **more):
    return start(doc=False, control_plane=config(plane, **more))


def snap(node):
    return node.status()["snapshot"]


def version(node):
    return snap(node)["version"]


def logs_in(node, user):
    with Origin(echo) as o:
        try:
            rep, s = node.socks("127.0.0.1", o.port, user)
        except AssertionError:
            return False
        s.close()
        return rep == 0


def test_follows(start):
    """The first request asks since=0 with the token, later ones since what is in force; new versions get in force."""
    with Plane(doc(5)) as plane:
        node = plane_node(start, plane, token="sesame")
        wait_for(lambda: version(node) == 5, what="the first snapshot")
        assert node.socks("127.0.0.1", 1)[0] == 5  # refused by nobody's port, not by the login
        path, headers = plane.seen[0]
        assert path == "/snapshot?since=0" and headers["Authorization"] == "Bearer sesame"
        plane.doc = doc(6, v="p")
        wait_for(lambda: version(node) == 6, what="the second snapshot")
        plane.wait_requests(1)
        assert plane.seen[-1][0] == "/snapshot?since=6"
        st = snap(node)
        assert st["file"] is None and st["control_plane"]["url"] == f"http://127.0.0.1:{plane.port}/snapshot"
        assert st["control_plane"]["updates"] == 2 and st["control_plane"]["http_status"] == 200
        assert st["from_cache"] is False and st["last_error"] is None
        metrics = node.metrics()
        assert metrics["culvert_sync_updates_total"] == 2 and metrics["culvert_sync_failures_total"] == 0
        assert metrics["culvert_sync_success_timestamp_seconds"] > 1e9
        assert "sesame" not in node.log()
        assert "the token can be read on the way" in node.log()


def test_etag_and_compression(start):
    with Plane(doc(3)) as plane:
        def answer(h):
            if h.headers.get("If-None-Match") == '"three"':
                plane.send(h, 304)
            else:
                assert "gzip" in h.headers["Accept-Encoding"]
                plane.send(h, 200, gzip.compress(plane.body()), [("ETag", '"three"'), ("Content-Encoding", "gzip")])
        plane.answer = answer
        node = plane_node(start, plane)
        wait_for(lambda: version(node) == 3, what="the snapshot")
        plane.wait_requests(2)
        st = snap(node)["control_plane"]
        assert st["http_status"] == 304 and st["failures"] == 0 and st["updates"] == 1


def test_long_poll(start):
    """A server that holds requests is asked with wait=, and its news is in force at once."""
    with Plane(doc(1)) as plane:
        plane.extra = {"Culvert-Wait": "20"}
        held = threading.Event()

        def answer(h):
            if "wait=20" in h.path and f"since={plane.doc['version']}" in h.path:
                held.set()
                with plane.changed:
                    plane.changed.wait_for(lambda: f"since={plane.doc['version']}&" not in h.path, 20)
            plane.serve(h)
        plane.answer = answer
        node = start(doc=False, control_plane=config(plane, poll_interval="1h", timeout="5s"))
        for new in (2, 3, 4):
            assert held.wait(20 * SLOW)
            held.clear()
            wait_for(lambda: version(node) == new - 1, what="the one before")
            with plane.changed:
                plane.doc = doc(new)
                plane.changed.notify_all()
            wait_for(lambda: version(node) == new, what="the news")
        assert snap(node)["control_plane"]["long_poll"] is True


def dripping(plane):
    def answer(h):
        body = plane.body()
        h.send_response(200)
        h.send_header("Content-Length", str(len(body)))
        h.end_headers()
        for i in range(len(body)):
            h.wfile.write(body[i:i + 1])
            h.wfile.flush()
            if plane.stop.wait(0.2):
                return
    return answer


def half(plane):
    def answer(h):
        h.send_response(200)
        h.send_header("Content-Length", "100000")
        h.end_headers()
        h.wfile.write(plane.body()[:50])
        h.close_connection = True
    return answer


def bomb(plane):
    def answer(h):
        plane.send(h, 200, gzip.compress(bytes(64 << 20)), [("Content-Encoding", "gzip")])
    return answer


def status(code, **headers):
    return lambda plane: lambda h: plane.send(h, code, b"no", headers.items())


def content(make):
    return lambda plane: lambda h: plane.send(h, 200, make())


def broken(**changes):
    d = doc(99)
    d.update(changes)
    return lambda: json.dumps(d).encode()


BAD = {
    "401": (status(401), "answered 401, it does not accept the token"),
    "500": (status(500), "answered 500"),
    "302": (status(302, Location="http://127.0.0.1:1/"), "answered 302, a redirect, which is not followed"),
    "half a body": (half, "control plane: "),
    "slow drip": (dripping, "control plane: "),
    "too large": (content(lambda: b" " * ((8 << 20) + 1)), "control plane: "),
    "unpacks to too much": (bomb, "the answer is too large"),
    "empty": (content(lambda: b""), ""),
    "no json": (content(lambda: b"{"), ""),
    "html": (content(lambda: b"<html>"), ""),
    "not utf-8": (content(lambda: b'{"schema_version":1,"version":99,"users":{"\xff":{}}}'), ""),
    "twice a key": (content(lambda: b'{"schema_version":1,"schema_version":1,"version":99}'), ""),
    "another schema": (content(broken(schema_version=2)), "schema_version"),
    "no version": (content(broken(version=None)), "version"),
    "older": (content(lambda: json.dumps(doc(6, w="p")).encode()), "6 is not newer than 7"),
    "equal, but another": (content(lambda: json.dumps(doc(7, w="p")).encode()), "7 is not newer than 7"),
    "unknown member": (content(broken(surprise=1)), "surprise"),
    "user without policy": (content(broken(users={"u": {"password": "p", "policy": "nowhere"}})), "nowhere"),
    "bad action": (content(broken(routing_policies={"default": {"routes": [
        {"selectors": ["a.test"], "action": {"type": "teleport"}}]}})), "routes[0].action"),
    "bad egress": (content(broken(egresses={"e": {"type": "upstream", "backend": {"kind": "socks5"}}})), "egresses.e"),
}


def test_bad_answers(start):
    """Each kind of bad answer leaves the old snapshot serving and the cache as it was, and the status says why."""
    with Plane(doc(7)) as plane, Origin(echo) as o:
        plane.stop = threading.Event()
        node = plane_node(start, plane, timeout="1s")
        wait_for(lambda: version(node) == 7, what="the snapshot")
        cache = os.path.join(node.dir, "cache.json")
        wait_for(lambda: os.path.exists(cache), what="the cache")
        with open(cache, "rb") as f:
            before = f.read()
        rep, live = node.socks("127.0.0.1", o.port)
        assert rep == 0
        good = plane.serve
        for name, (make, text) in BAD.items():
            failures = snap(node)["control_plane"]["failures"]
            plane.answer = make(plane)
            node.process.send_signal(1)
            wait_for(lambda: snap(node)["control_plane"]["failures"] > failures or
                     snap(node)["control_plane"]["failures_in_a_row"] > 0, what=f"{name}: the failure", timeout=20)
            st = snap(node)
            assert st["version"] == 7 and st["last_error"], (name, st)
            assert text in st["last_error"]["text"] + st["last_error"]["path"], (name, st["last_error"])
            with open(cache, "rb") as f:
                assert f.read() == before, name
            plane.stop.set()
            plane.answer = good
            node.process.send_signal(1)
            wait_for(lambda: snap(node)["last_error"] is None, what=f"{name}: the recovery", timeout=20)
            plane.stop.clear()
        assert logs_in(node, "u")
        live.sendall(b"still here")
        assert recv_exact(live, 10) == b"still here"
        assert node.status()["status"] == "ready"


def test_dies_and_comes_back(start):
    """A dead control plane changes nothing; a node that starts without it serves from its cache."""
    with Plane(doc(1)) as plane:
        node = plane_node(start, plane)
        wait_for(lambda: version(node) == 1, what="the snapshot")
        port = plane.port
    wait_for(lambda: snap(node)["control_plane"]["failures_in_a_row"] >= 1, what="the failure", timeout=20)
    assert snap(node)["last_error"]["text"].startswith("control plane: ")
    assert logs_in(node, "u")
    node.stop()
    node.start()
    wait_for(lambda: version(node) == 1, what="the cache")
    assert snap(node)["from_cache"] is True and logs_in(node, "u")
    with Plane(doc(2, v="p"), port=port):
        wait_for(lambda: version(node) == 2, what="the news", timeout=40)
        assert logs_in(node, "v") and snap(node)["from_cache"] is False


def test_signature(start, tmp_path):
    key = Ed25519PrivateKey.generate()
    pem = tmp_path / "control.pub"
    pem.write_bytes(key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo))

    def signed(plane, by=key, change=b""):
        def answer(h):
            body = plane.body()
            plane.send(h, 200, body + change, [("Culvert-Signature", base64.b64encode(by.sign(body)).decode())])
        return answer

    with Plane(doc(1)) as plane:
        plane.answer = signed(plane)
        node = plane_node(start, plane, verify_key=str(pem))
        wait_for(lambda: version(node) == 1, what="the signed snapshot")
        assert snap(node)["control_plane"]["signed"] is True
        plane.doc = doc(2, evil="p")
        for answer, text in ((plane.serve, "is not signed"),
                             (signed(plane, Ed25519PrivateKey.generate()), "not of this document"),
                             (signed(plane, change=b" "), "not of this document"),
                             (lambda h: plane.send(h, 200, plane.body(), [("Culvert-Signature", "AAAA")]), "is not base64 of 64")):
            plane.answer = plane.serve
            node.process.send_signal(1)
            wait_for(lambda: "is not signed" in (snap(node)["last_error"] or {"text": ""})["text"], what="the error before", timeout=20)
            plane.answer = answer
            node.process.send_signal(1)
            wait_for(lambda: text in (snap(node)["last_error"] or {"text": ""})["text"], what=text, timeout=20)
            assert version(node) == 1
        plane.answer = signed(plane)
        node.process.send_signal(1)
        wait_for(lambda: version(node) == 2, what="the second", timeout=20)
    pem.write_text("no key")
    node.stop()
    run = subprocess.run([node.binary, "run", "-c", node.config_path], capture_output=True, text=True, timeout=60)
    assert run.returncode == 1 and "holds no Ed25519 public key" in run.stderr


def test_tls(start, tmp_path):
    """The server is checked against 'ca', and shown a certificate; another server is refused."""
    certs = Certificates(tmp_path)
    client = certs.make("client", "DNS:node")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certs.make("server", "DNS:localhost"))
    context.load_verify_locations(certs.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    with Plane(doc(4), context) as plane:
        node = start(doc=False, control_plane=config(plane, "https", "localhost", ca=certs.ca, client_cert=client))
        wait_for(lambda: version(node) == 4, what="the snapshot")
        for changes in ({"ca": ""}, {"ca": certs.ca, "snapshot_url": f"https://127.0.0.1:{plane.port}/"}):
            node.config["control_plane"].update(changes)
            node.write_config()
            wait_for(lambda: (snap(node)["last_error"] or {"text": ""})["text"], what="the refusal", timeout=20)
            assert "certificate" in snap(node)["last_error"]["text"].lower() or "SSL" in snap(node)["last_error"]["text"]
            assert version(node) == 4
            node.config["control_plane"].update(ca=certs.ca, snapshot_url=f"https://localhost:{plane.port}/")
            node.write_config()
            wait_for(lambda: snap(node)["last_error"] is None, what="the recovery", timeout=20)


def test_token_file(start, tmp_path):
    """It is read for each request, so that a token can be replaced; it never shows anywhere."""
    token = tmp_path / "token"
    token.write_text("first-secret\n")
    with Plane(doc(1)) as plane:
        node = plane_node(start, plane, token_file=str(token))
        wait_for(lambda: version(node) == 1, what="the snapshot")
        token.write_text("second-secret")
        wait_for(lambda: plane.seen[-1][1].get("Authorization") == "Bearer second-secret", what="the second token")
        assert plane.seen[0][1]["Authorization"] == "Bearer first-secret"
        token.unlink()
        wait_for(lambda: snap(node)["last_error"], what="the missing file")
        assert f"token_file '{token}' cannot be used" in snap(node)["last_error"]["text"]
        assert "secret" not in node.log() + json.dumps(node.status())


def test_config(start):
    with Plane(doc(1)) as plane:
        node = plane_node(start, plane)
        for bad, text in (({"snapshot_url": "ftp://x/"}, "control_plane.snapshot_url"),
                          ({"snapshot_url": "http://x/", "token": "a", "token_file": "b"}, "choose one"),
                          ({"snapshot_url": "http://x/", "token": "a b"}, "a token is one word"),
                          ({"snapshot_url": "http://x/", "client_key": "k"}, "has no use without 'client_cert'"),
                          ({"snapshot_url": "http://x/", "poll_interval": "10ms"}, "poll_interval"),
                          ({"url": "http://x/"}, "url")):
            node.config["control_plane"] = bad
            node.write_config()
            check = subprocess.run([node.binary, "check", "-c", node.config_path], capture_output=True, text=True)
            assert check.returncode == 1 and text in check.stderr, (bad, check.stderr)


@pytest.mark.threads
def test_updates_under_load(start):
    """Versions that come as fast as they go, while clients connect: nobody is refused."""
    with Plane(doc(1)) as plane, Origin(echo) as o:
        plane.extra = {"Culvert-Wait": "1"}
        node = plane_node(start, plane)
        wait_for(lambda: version(node) >= 1, what="the snapshot")
        stop = threading.Event()

        def publish():
            v = 1
            while not stop.wait(0.02):
                v += 1
                plane.doc = doc(v, u="p", **{f"x{v % 7}": "p"})
                node.process.send_signal(1)
        t = threading.Thread(target=publish)
        t.start()
        try:
            for _ in range(150):
                rep, s = node.socks("127.0.0.1", o.port)
                assert rep == 0
                s.sendall(b"ping")
                assert recv_exact(s, 4) == b"ping"
                s.close()
        finally:
            stop.set()
            t.join()
        wait_for(lambda: version(node) == plane.doc["version"], what="the last one", timeout=30)
