"""Replacing a running node in tests: starting the successor, and either side of the protocol played by hand."""
import array
import os
import re
import signal
import socket
import struct
import subprocess

from node import SLOW, wait_for

HELLO, OFFER, ITEM, NEXT, PREPARED, COMMIT, SERVING, DONE, ABORT = range(1, 10)
ADDRESS, UNIX, PASSED, ADMIN, CONTROL = range(1, 6)


def spawn(node, log_path=None, args=("--takeover",), env=None):
    """Start a new process for the node's config; its log goes to the node's, or to a file of its own."""
    with open(log_path or node.log_path, "ab") as log:
        return subprocess.Popen([node.binary, "run", "-c", node.config_path, *args], stdin=subprocess.DEVNULL,
                                stdout=log, stderr=log, cwd=node.dir, env={**os.environ, **(env or {})})


def take_over(node):
    """Replace the node's process by a new one and wait until it has; return the old process."""
    old, before = node.process, len(node.log())
    new = spawn(node)
    wait_for(lambda: "this node has taken over" in node.log()[before:] or new.poll() is not None, timeout=30,
             what="the takeover")
    assert new.poll() is None, node.log()[before:][-3000:]
    node.process = new
    for name, port in re.findall(r"listening name='([^']+)'.* address='[^']*?:(\d+)'", node.log()[before:]):
        node.ports[name] = int(port)
    return old


def ended(process, timeout=20):
    return process.wait(timeout * SLOW)


def text(s):
    return bytes([len(s)]) + s.encode()


def message(kind, body=b"", version=1):
    return b"CVTO" + struct.pack(">HH", version, kind) + body


def item(index, kind, listen, name, n_fds=1, number=0, dev=0, ino=0):
    return message(ITEM, struct.pack(">HBH", index, kind, n_fds) + text(listen) + text(name)
                   + struct.pack(">IQQ", number, dev, ino))


class Peer:
    """One end of the conversation."""

    def __init__(self, sock):
        self.sock = sock
        self.sock.settimeout(20 * SLOW)
        self.fds = []

    def send(self, data, fds=()):
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.sock.sendmsg([data], rights)

    def recv(self):
        """(type, body), or None at the end."""
        data, ancillary, flags, _ = self.sock.recvmsg(4096, socket.CMSG_SPACE(253 * 4))
        assert not flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC)
        for _, _, raw in ancillary:
            self.fds += array.array("i", raw[:len(raw) // 4 * 4])
        if not data:
            return None
        assert data[:4] == b"CVTO"
        return struct.unpack(">H", data[6:8])[0], data[8:]

    def expect(self, kind):
        got = self.recv()
        assert got is not None and got[0] == kind, got
        return got[1]

    def close(self):
        self.sock.close()
        for fd in self.fds:
            os.close(fd)
        self.fds = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Taker(Peer):
    """The new node, played by hand up to a stage."""

    STAGES = ["connected", "greeted", "first item", "all items", "prepared"]

    def __init__(self, node):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.connect(os.path.join(node.dir, "takeover.sock"))
        super().__init__(sock)
        self.items = []

    def upto(self, stage):
        if stage == "connected":
            return self
        self.send(message(HELLO, text("9.9")))
        if stage == "greeted":
            return self
        body = self.expect(OFFER)
        at = 1 + body[0] + 4
        n = struct.unpack(">H", body[at:at + 2])[0]
        for i in range(n):
            body = self.expect(ITEM)
            self.items.append((body[2], struct.unpack(">H", body[3:5])[0], body[6:6 + body[5]].decode()))
            if stage == "first item":
                return self
            self.send(message(NEXT, struct.pack(">H", i)))
        if stage == "all items":
            return self
        self.send(message(PREPARED, struct.pack(">H", n) + bytes(
            sum(1 << b for b in range(8) if i * 8 + b < n) for i in range((n + 7) // 8))))
        self.expect(COMMIT)
        return self


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.wait()
