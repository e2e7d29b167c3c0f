"""HTTP proxying: keep-alive, framing, authentication, errors."""
import base64
import socket

import pytest

from node import HttpOrigin, Origin, block, policy, read_http, recv_all, recv_exact, snapshot, wait_for

AUTH = b"Proxy-Authorization: Basic dTpw\r\n"


def get(url, extra=b"", auth=AUTH, method=b"GET", version=b"1.1"):
    host = url.split("//")[1].split("/")[0].encode()
    return method + b" " + url.encode() + b" HTTP/" + version + b"\r\nHost: " + host + b"\r\n" + auth + extra + b"\r\n"


class Reply:
    """Reads replies one by one from a socket."""

    def __init__(self, s):
        self.stream = s.makefile("rb")

    def next(self, head_only=False):
        line = self.stream.readline()
        if not line:
            return None
        status = int(line.split()[1])
        headers = {}
        while (line := self.stream.readline()) not in (b"\r\n", b""):
            key, value = line.decode("latin1").split(":", 1)
            headers[key.lower()] = value.strip()
        body = b""
        if not head_only and status not in (204, 304) and status >= 200:
            if "content-length" in headers:
                body = self.stream.read(int(headers["content-length"]))
            elif headers.get("transfer-encoding") == "chunked":
                while size := int(self.stream.readline().split(b";")[0], 16):
                    body += self.stream.read(size)
                    self.stream.readline()
                while self.stream.readline() not in (b"\r\n", b""):
                    pass
            else:
                body = self.stream.read()
        return status, headers, body


def test_each_request_goes_to_its_own_origin(start):
    with HttpOrigin("one") as one, HttpOrigin("two") as two:
        doc = snapshot(policies={"default": policy(block("full:blocked.test"))})
        node = start(doc=doc)
        s = node.connect()
        reply = Reply(s)
        for origin, name in ((one, b"one"), (two, b"two"), (one, b"one")):
            s.sendall(get(f"http://127.0.0.1:{origin.port}/a?b"))
            status, _, body = reply.next()
            assert status == 200 and body == name + b" GET /a?b"
        s.sendall(get("http://blocked.test/"))
        assert reply.next()[0] == 403
        s.sendall(get(f"http://127.0.0.1:{one.port}/after"))
        assert reply.next()[2] == b"one GET /after"
        assert len(one.requests) == 3 and len(two.requests) == 1
        records = node.wait_records(5)
        assert [r["result"] for r in records] == ["ok", "ok", "ok", "error", "ok"]
        assert {r["protocol"] for r in records} == {"http"}


def test_credentials_and_hop_by_hop_headers_stay_here(node, web):
    s = node.connect()
    s.sendall(get(f"http://127.0.0.1:{web.port}/", auth=b"pRoXy-aUtHoRiZaTiOn: Basic dTpw\r\n",
                  extra=b"Connection: keep-alive, X-Private\r\nX-Private: 1\r\nKeep-Alive: 5\r\nTE: trailers\r\n"
                        b"Proxy-Connection: keep-alive\r\nX-Kept: yes\r\n"))
    assert Reply(s).next()[0] == 200
    low = web.requests[0]["low"]
    assert low["x-kept"] == "yes" and low["host"] == f"127.0.0.1:{web.port}"
    for name in ("proxy-authorization", "proxy-connection", "keep-alive", "x-private"):
        assert name not in low
    assert b"dTpw" not in web.requests[0]["head"]


def test_host_is_taken_from_the_uri(node, web):
    s = node.connect()
    s.sendall(b"GET http://127.0.0.1:%d/ HTTP/1.1\r\nHost: other.test\r\n" % web.port + AUTH + b"\r\n")
    assert Reply(s).next()[0] == 200
    assert web.requests[0]["low"]["host"] == f"127.0.0.1:{web.port}"


def test_empty_line_before_a_request(node, web):
    """RFC 9112 2.2: also before the first one, where the protocol is told by the first byte."""
    s = node.connect()
    reply = Reply(s)
    for _ in range(2):
        s.sendall(b"\r\n" + get(f"http://127.0.0.1:{web.port}/"))
        assert reply.next()[0] == 200
    assert len(web.requests) == 2


BAD = {
    "length and coding": b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
    "two lengths": b"Content-Length: 5\r\nContent-Length: 6\r\n",
    "length list": b"Content-Length: 5, 5\r\n",
    "length sign": b"Content-Length: +5\r\n",
    "length overflow": b"Content-Length: 18446744073709551616\r\n",
    "space before colon": b"Transfer-Encoding : chunked\r\n",
    "unknown coding": b"Transfer-Encoding: xchunked\r\n",
    "two hosts": b"Host: second.test\r\n",
    "folded": b"X-A: 1\r\n  folded\r\n",
    "bare line feed": b"X-A: 1\nX-B: 2\r\n",
    "control byte": b"X-A: a\x00b\r\n",
    "two credentials": AUTH,
}


@pytest.mark.parametrize("fault", BAD)
def test_ambiguous_requests_are_refused(node, web, fault):
    s = node.connect()
    s.sendall(get(f"http://127.0.0.1:{web.port}/", BAD[fault], method=b"POST") +
              b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n")
    status, _, _ = Reply(s).next()
    assert status in (400, 501)
    s.close()
    node.wait_records(1)
    assert web.requests == []


@pytest.mark.parametrize("authority,good", [
    ("[::1]:{p}", True), ("127.0.0.1:{p}", True), ("[::ffff:127.0.0.1]:{p}", True), ("[::1]", False),
    ("::1:{p}", False), ("[::1%25lo]:{p}", False), ("h:0", False), ("h:65536", False), ("h:80x", False), ("h:", False),
    ("u@h:80", False), ("h", False), (":80", False)])
def test_connect_authorities(start, authority, good):
    host = "::1" if authority.startswith("[::1]:") else "127.0.0.1"
    node = start()
    with Origin(lambda c: c.sendall(b"banner"), host) as origin:
        s = node.connect()
        s.sendall(b"CONNECT " + authority.format(p=origin.port).encode() + b" HTTP/1.1\r\nHost: x\r\n" + AUTH + b"\r\n")
        stream = s.makefile("rb")
        line = stream.readline()
        assert (b" 200 " in line) == good, line
        if good:
            assert stream.readline() == b"\r\n" and stream.read() == b"banner"
        else:
            assert b" 400 " in line


def test_bytes_right_after_connect(node):
    got = []
    with Origin(lambda c: (got.append(recv_exact(c, 5)), c.sendall(b"reply"))) as origin:
        s = node.connect()
        s.sendall(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\nHost: x\r\n" % origin.port + AUTH + b"\r\nhello")
        data = recv_all(s)
        assert data == b"HTTP/1.1 200 Connection Established\r\n\r\nreply"
        assert got == [b"hello"]


def test_bytes_after_a_refused_connect_are_no_request(start, web):
    node = start(doc=snapshot(policies={"default": policy(block("blocked.test"))}))
    for auth in (b"", AUTH):
        s = node.connect()
        s.sendall(b"CONNECT blocked.test:443 HTTP/1.1\r\nHost: x\r\n" + auth + b"\r\n" +
                  get(f"http://127.0.0.1:{web.port}/smuggled"))
        data = recv_all(s)
        assert data.count(b"HTTP/1.1 ") == 1
    assert web.requests == []


def test_407_keeps_the_connection(node, web):
    s = node.connect()
    reply = Reply(s)
    url = f"http://127.0.0.1:{web.port}/"
    s.sendall(get(url, auth=b""))
    status, headers, _ = reply.next()
    assert status == 407 and headers["proxy-authenticate"] == 'Basic realm="culvert"' and "content-length" in headers
    s.sendall(get(url, auth=b"Proxy-Authorization: Basic " + base64.b64encode(b"u:wrong") + b"\r\n"))
    assert reply.next()[0] == 407
    body = b"x" * (1 << 20)
    s.sendall(get(url, auth=b"", method=b"POST", extra=b"Content-Length: %d\r\n" % len(body)) + body)
    assert reply.next()[0] == 407
    s.sendall(get(url, method=b"POST", extra=b"Content-Length: %d\r\n" % len(body)) + body)
    assert reply.next()[0] == 200
    assert [len(r["body"]) for r in web.requests] == [1 << 20]
    s.sendall(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\nHost: x\r\n\r\n" % web.port)
    assert reply.next()[0] == 407
    s.sendall(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\nHost: x\r\n" % web.port + AUTH + b"\r\n")
    assert reply.next(head_only=True)[0] == 200


def test_pipelined_requests_are_answered_in_order(node, web):
    data = b"".join(get(f"http://127.0.0.1:{web.port}/{i}") for i in range(10))
    for cut in (len(data), len(data) // 2 + 7, 20):
        s = node.connect()
        reply = Reply(s)
        s.sendall(data[:cut])
        if cut > len(data) // 2:
            assert reply.next()[2] == b"origin GET /0"
        s.sendall(data[cut:])
        for i in range(0 if cut <= len(data) // 2 else 1, 10):
            assert reply.next()[2] == b"origin GET /%d" % i


def test_chunked_bodies_and_trailers(node):
    def answer(request):
        assert request["body"] == b"hello world", request
        return (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n"
                b"5;ext=1\r\nbcdef\r\n0\r\nX-Trailer: t\r\n\r\n")

    with HttpOrigin(answer=answer) as web:
        s = node.connect()
        reply = Reply(s)
        for _ in range(2):
            s.sendall(get(f"http://127.0.0.1:{web.port}/", b"Transfer-Encoding: chunked\r\n", method=b"POST"))
            for part in (b"1\r\n", b"h\r\n4;", b"x=y\r\nello\r\n", b"6\r\n world\r\n0\r", b"\nX-T: 1\r\n\r\n"):
                s.sendall(part)
            assert reply.next()[2] == b"abcdef"
        assert len(web.requests) == 2


@pytest.mark.parametrize("chunk", [b"0x10\r\n", b"11111111111111111\r\n", b"+5\r\nhello\r\n", b"5\nhello\r\n", b"5\r\nhelloX\r\n"])
def test_bad_chunks_end_the_request(node, web, chunk):
    s = node.connect()
    s.sendall(get(f"http://127.0.0.1:{web.port}/", b"Transfer-Encoding: chunked\r\n", method=b"POST") + chunk +
              b"0\r\n\r\n")
    data = recv_all(s)
    assert b" 200 " not in data.split(b"\r\n")[0]
    assert web.requests == []


def test_expect_continue(node):
    def serve(conn):
        stream = conn.makefile("rb")
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += stream.readline()
        assert b"100-continue" in head.lower()
        conn.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = stream.read(5)
        conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n" + body)

    with Origin(serve) as origin:
        s = node.connect()
        reply = Reply(s)
        s.sendall(get(f"http://127.0.0.1:{origin.port}/", b"Content-Length: 5\r\nExpect: 100-continue\r\n", method=b"PUT"))
        assert reply.next()[0] == 100
        s.sendall(b"hello")
        assert reply.next()[2] == b"hello"


def test_upgrade_becomes_a_tunnel(node):
    def serve(conn):
        stream = conn.makefile("rb")
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += stream.readline()
        assert b"upgrade: websocket" in head.lower() and b"connection: upgrade" in head.lower()
        conn.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nfirst")
        conn.sendall(stream.read(4))

    with Origin(serve) as origin:
        s = node.connect()
        s.sendall(get(f"http://127.0.0.1:{origin.port}/chat", b"Upgrade: websocket\r\nConnection: Upgrade\r\n"
                      b"Sec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n"))
        stream = s.makefile("rb")
        assert b" 101 " in stream.readline()
        while stream.readline() != b"\r\n":
            pass
        assert stream.read(5) == b"first"
        s.sendall(b"ping")
        assert stream.read(4) == b"ping"


def test_until_close_and_no_body_answers(node):
    replies = [b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nuntil the end", b"HTTP/1.1 204 No Content\r\n\r\n",
               b"HTTP/1.1 304 Not Modified\r\nContent-Length: 10\r\n\r\n", b"HTTP/1.0 200 OK\r\n\r\nold style"]
    for raw in replies:
        with Origin(lambda c, raw=raw: (read_http(c.makefile("rb")), c.sendall(raw))) as origin:
            s = node.connect()
            s.sendall(get(f"http://127.0.0.1:{origin.port}/"))
            status, _, body = Reply(s).next()
            assert status == int(raw.split()[1])
            assert body == raw.split(b"\r\n\r\n", 1)[1]


def test_head_has_no_body(node, web):
    s = node.connect()
    reply = Reply(s)
    url = f"http://127.0.0.1:{web.port}/"
    s.sendall(get(url, method=b"HEAD") + get(url))
    status, headers, _ = reply.next(head_only=True)
    assert status == 200 and int(headers["content-length"]) > 0
    assert reply.next()[2] == b"origin GET /"


def test_large_bodies_stream_both_ways(node):
    size = 20 << 20
    seen = []

    def answer(request):
        seen.append(len(request["body"]))
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + bytes(size)

    with HttpOrigin(answer=answer) as web:
        s = node.connect()
        s.sendall(get(f"http://127.0.0.1:{web.port}/", b"Content-Length: %d\r\n" % size, method=b"POST"))
        s.sendall(bytes(size))
        assert len(Reply(s).next()[2]) == size
        assert seen == [size]


@pytest.mark.parametrize("request_head,status", [
    (b"GET /" + b"a" * 70000 + b" HTTP/1.1\r\nHost: h\r\n\r\n", 414),
    (b"GET http://h/ HTTP/1.1\r\nHost: h\r\nX: " + b"a" * 70000 + b"\r\n\r\n", 431),
    (b"GET http://h/ HTTP/1.1\r\nHost: h\r\n" + b"X: 1\r\n" * 10000 + b"\r\n", 431),
    (b"GET http://h/ HTTP/2.0\r\nHost: h\r\n\r\n", 505),
    (b"NONSENSE\r\n\r\n", 400),
    (b"GET http://h/ HTTP/1.1\r\n\r\n", 400),
    (b"GET https://h/ HTTP/1.1\r\nHost: h\r\n\r\n", 400),
    (b"GET http://u:p@h/ HTTP/1.1\r\nHost: h\r\n\r\n", 400)])
def test_limits_and_malformed_heads(node, request_head, status):
    s = node.connect()
    s.sendall(request_head)
    assert Reply(s).next()[0] == status


def test_heads_within_the_limit_pass(node, web):
    s = node.connect()
    s.sendall(get(f"http://127.0.0.1:{web.port}/" + "a" * 8000, b"X-Big: " + b"b" * 8000 + b"\r\n"))
    assert Reply(s).next()[0] == 200
    assert len(web.requests[0]["path"]) == 8001


def test_slow_head_meets_the_total_deadline(start):
    node = start(limits={"handshake_timeout": "400ms"})
    s = node.connect()
    s.sendall(b"GET http://h/ HTTP/1.1\r\n")
    reply = Reply(s).next()
    assert reply is None or reply[0] == 408


def test_failures_have_their_status(start):
    node = start(doc=snapshot(policies={"default": policy(block("blocked.test"))}),
                 dns={"servers": ["127.0.0.1:1"], "timeout": "200ms", "attempts": 1})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        s = node.connect()
        reply = Reply(s)
        for host, status, stage in (("blocked.test", 403, "policy"), (f"127.0.0.1:{port}", 502, "dial"),
                                    ("nothing.invalid", 502, "dns"), ("10.0.0.1", 403, "policy")):
            s.sendall(get(f"http://{host}/", b"Accept: text/html\r\n"))
            got, headers, body = reply.next()
            assert got in (status, 504) and "text/html" in headers["content-type"], (host, got, body)
            assert b"prefers-color-scheme" in body and stage.encode() in body


def test_error_page_escapes_what_the_client_sent(node):
    s = node.connect()
    s.sendall(b"GET http://x%3cscript%3e<script>alert(1)</script>/ HTTP/1.1\r\nHost: h\r\nAccept: text/html\r\n" + AUTH + b"\r\n")
    _, _, body = Reply(s).next()
    assert b"<script>" not in body


def test_a_browser_that_opens_the_port_is_told_what_this_is(node):
    s = node.connect()
    s.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/html\r\n\r\n")
    status, headers, body = Reply(s).next()
    assert status == 400 and b"proxy" in body.lower() and "text/html" in headers["content-type"]


def test_reused_origin_connection_that_died_is_retried(node):
    """The origin closes its idle connection; the next GET must not fail for that."""
    def serve(conn):
        stream = conn.makefile("rb")
        if read_http(stream):
            conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    with Origin(serve) as origin:
        s = node.connect()
        reply = Reply(s)
        for i in range(5):
            s.sendall(get(f"http://127.0.0.1:{origin.port}/{i}"))
            assert reply.next()[0] == 200
            wait_for(lambda: not origin.open)


def test_origin_nonsense_is_502(node):
    with Origin(lambda c: (read_http(c.makefile("rb")), c.sendall(b"not http at all\r\n\r\n"))) as origin:
        s = node.connect()
        s.sendall(get(f"http://127.0.0.1:{origin.port}/"))
        assert Reply(s).next()[0] == 502


def test_http_10_client(node, web):
    s = node.connect()
    s.sendall(b"GET http://127.0.0.1:%d/ HTTP/1.0\r\n" % web.port + AUTH + b"\r\n")
    assert recv_all(s).endswith(b"origin GET /")


def test_policy_changes_within_a_kept_connection(start, web):
    node = start()
    s = node.connect()
    reply = Reply(s)
    url = f"http://127.0.0.1:{web.port}/"
    s.sendall(get(url))
    assert reply.next()[0] == 200
    node.apply(snapshot(version=2, policies={"default": policy(block("127.0.0.0/8"))}))
    s.sendall(get(url))
    assert reply.next()[0] == 403
    node.apply(snapshot(version=3, users={"someone": "else"}))
    s.sendall(get(url))
    assert reply.next()[0] == 407
