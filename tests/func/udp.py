"""SOCKS5 UDP from the client's side, and servers to talk to.

    with Association(node) as a:
        a.send(b"ping", ("127.0.0.1", port))
        data, sender = a.recv()
"""
import contextlib
import select
import socket
import threading

from node import SLOW, recv_exact, socks_auth, socks_greeting, socks_reply


def wire_address(host, port, as_name=False):
    """ATYP, address, port."""
    if not as_name:
        for family, atyp in ((socket.AF_INET, 1), (socket.AF_INET6, 4)):
            with contextlib.suppress(OSError):
                return bytes([atyp]) + socket.inet_pton(family, host) + port.to_bytes(2, "big")
    name = host.encode()
    return bytes([3, len(name)]) + name + port.to_bytes(2, "big")


def header(host, port, as_name=False, frag=0):
    return b"\0\0" + bytes([frag]) + wire_address(host, port, as_name)


def parse(datagram):
    """(payload, (host, port)) of a datagram that the node sent."""
    assert datagram[:3] == b"\0\0\0", datagram[:4]
    if datagram[3] == 1:
        return datagram[10:], (socket.inet_ntop(socket.AF_INET, datagram[4:8]), int.from_bytes(datagram[8:10], "big"))
    if datagram[3] == 3:
        end = 5 + datagram[4]
        return datagram[end + 2:], (datagram[5:end].decode(), int.from_bytes(datagram[end:end + 2], "big"))
    assert datagram[3] == 4, datagram[:4]
    return datagram[22:], (socket.inet_ntop(socket.AF_INET6, datagram[4:20]), int.from_bytes(datagram[20:22], "big"))


class Association:
    """One UDP ASSOCIATE. 'state' is the address part of the request, by default 0.0.0.0:0."""

    def __init__(self, node, user="u", password="p", listener="main", stated=None, host="127.0.0.1", control=None,
                 bind=None):
        self.control = control or socket.create_connection((host, node.ports[listener]), timeout=20 * SLOW)
        s = self.control
        self.udp = socket.socket(s.family, socket.SOCK_DGRAM)
        self.udp.settimeout(10 * SLOW)
        self.udp.bind(bind or (s.getsockname()[0], 0))
        stated = wire_address("0.0.0.0", 0) if stated is None else stated(self) if callable(stated) else stated
        s.sendall(socks_greeting(user) + (socks_auth(user, password) if user is not None else b""))
        assert recv_exact(s, 2)[1] in (0, 2)
        if user is not None:
            assert recv_exact(s, 2) == b"\1\0"
        s.sendall(b"\5\3\0" + stated)
        self.rep, bound, self.port = socks_reply(s)
        self.bound = (bound, self.port)
        self.relay = (host, self.port)

    def send(self, payload, to, as_name=False, frag=0):
        self.udp.sendto(header(to[0], to[1], as_name, frag) + payload, self.relay)

    def send_raw(self, datagram):
        self.udp.sendto(datagram, self.relay)

    def recv(self, timeout=None):
        if timeout is not None:
            assert select.select([self.udp], [], [], timeout * SLOW)[0], "no datagram came"
        data, peer = self.udp.recvfrom(70000)
        assert peer[1] == self.port
        return parse(data)

    def ask(self, payload, to, as_name=False):
        self.send(payload, to, as_name)
        return self.recv()

    def close(self):
        self.control.close()
        self.udp.close()

    def __enter__(self):
        assert self.rep == 0, self.rep
        return self

    def __exit__(self, *_):
        self.close()


class UdpServer:
    """Answers each datagram by 'answer(data, peer)' (None: not at all); the default echoes."""

    def __init__(self, host="127.0.0.1", answer=None, port=0):
        self.socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.socket.bind((host, port))
        self.addr = self.socket.getsockname()[:2]
        self.port = self.addr[1]
        self.answer = answer or (lambda data, peer: data)
        self.seen = []
        self.closed = False
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        while True:
            try:
                data, peer = self.socket.recvfrom(70000)
            except OSError:
                if self.closed:
                    return
                continue
            if self.closed:
                return
            self.seen.append((data, peer[:2]))
            reply = self.answer(data, peer)
            if reply is not None:
                with contextlib.suppress(OSError):
                    self.socket.sendto(reply, peer)

    def close(self):
        self.closed = True
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def dropped(node, reason):
    return node.metrics()[f'culvert_udp_dropped_total{{reason="{reason}"}}']


class Forwarder:
    """A local UDP port whose datagrams go through an association to one target: for clients that know no SOCKS.

    The association fixes one client, so all clients of the port share the one that spoke last.
    """

    def __init__(self, association, target, as_name=False):
        self.association = association
        self.head = header(target[0], target[1], as_name)
        self.local = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.local.bind(("127.0.0.1", 0))
        self.port = self.local.getsockname()[1]
        self.client = None
        self.stop = False
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        outer = self.association.udp
        while not self.stop:
            for s in select.select([self.local, outer], [], [], 0.1)[0]:
                data, peer = s.recvfrom(70000)
                if s is self.local:
                    self.client = peer
                    outer.sendto(self.head + data, self.association.relay)
                elif self.client is not None:
                    self.local.sendto(parse(data)[0], self.client)

    def close(self):
        self.stop = True
        self.thread.join()
        self.local.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
