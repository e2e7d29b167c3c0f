"""Certificates made for a test, and a TLS client whose every byte is under control."""
import datetime
import ipaddress
import os
import socket
import ssl

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from node import SLOW


def _now():
    return datetime.datetime.utcnow()


def _pem_key(key):
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                             serialization.NoEncryption())


def replace(path, data):
    with open(path + ".new", "wb") as out:
        out.write(data)
    os.replace(path + ".new", path)


class Authority:
    """A root that issues certificates into files below 'folder'."""

    def __init__(self, folder, name="root"):
        self.dir = str(folder)
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.revoked = []
        self.serial = 1000
        self.cert = (
            self._builder(self.name, self.key, 10)
            .add_extension(x509.BasicConstraints(True, None), True)
            .add_extension(x509.KeyUsage(True, False, False, False, False, True, True, False, False), True)
            .sign(self.key, hashes.SHA256()))
        self.file = os.path.join(self.dir, name + ".pem")
        replace(self.file, self.cert.public_bytes(serialization.Encoding.PEM))

    def _builder(self, subject, key, days):
        self.serial += 1
        return (x509.CertificateBuilder().subject_name(subject).issuer_name(self.name).public_key(key.public_key())
                .serial_number(self.serial).not_valid_before(_now() - datetime.timedelta(days=20))
                .not_valid_after(_now() + datetime.timedelta(days=days)))

    def make(self, cn="x", dns=(), emails=(), uris=(), days=5, client=False, subject=None):
        """(certificate, certificate as PEM, key as PEM)."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.DNSName(n) for n in dns] + [x509.RFC822Name(n) for n in emails]
        names += [x509.UniformResourceIdentifier(n) for n in uris] + [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        if subject is None:
            subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, cn)])
        usage = ExtendedKeyUsageOID.CLIENT_AUTH if client else ExtendedKeyUsageOID.SERVER_AUTH
        cert = (self._builder(subject, key, days)
                .add_extension(x509.BasicConstraints(False, None), True)
                .add_extension(x509.SubjectAlternativeName(names), False)
                .add_extension(x509.ExtendedKeyUsage([usage]), False)
                .sign(self.key, hashes.SHA256()))
        return cert, cert.public_bytes(serialization.Encoding.PEM), _pem_key(key)

    def issue(self, file, **options):
        """Write FILE.pem and FILE.key; return (their paths, the certificate)."""
        cert, cert_pem, key_pem = self.make(**options)
        base = os.path.join(self.dir, file)
        replace(base + ".pem", cert_pem)
        replace(base + ".key", key_pem)
        return base + ".pem", base + ".key", cert

    def crl(self, file, serials=(), days=5):
        builder = (x509.CertificateRevocationListBuilder().issuer_name(self.name)
                   .last_update(_now() - datetime.timedelta(days=10)).next_update(_now() + datetime.timedelta(days=days)))
        for serial in serials:
            builder = builder.add_revoked_certificate(
                x509.RevokedCertificateBuilder().serial_number(serial)
                .revocation_date(_now() - datetime.timedelta(days=1)).build())
        path = os.path.join(self.dir, file)
        replace(path, builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        return path


def context(ca=None, cert=None, alpn=(), low=None, high=None):
    c = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    c.check_hostname = False
    c.verify_mode = ssl.CERT_REQUIRED if ca else ssl.CERT_NONE
    if ca:
        c.load_verify_locations(ca)
    if cert:
        c.load_cert_chain(*cert)
    if alpn:
        c.set_alpn_protocols(list(alpn))
    if low:
        c.minimum_version = low
    if high:
        c.maximum_version = high
    return c


class Tls:
    """A client over a socket. 'split': bytes per TCP segment of what it sends; records hold what one
    send() is given."""

    def __init__(self, port, ctx=None, sni=None, split=None, sock=None, session=None):
        self.sock = sock or socket.create_connection(("127.0.0.1", port), timeout=20 * SLOW)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.split = split
        self.tls = (ctx or context()).wrap_bio(self.incoming, self.outgoing, server_hostname=sni, session=session)
        self._run(self.tls.do_handshake)

    def flush(self):
        data = self.outgoing.read()
        step = self.split or len(data) or 1
        for i in range(0, len(data), step):
            self.sock.sendall(data[i:i + step])

    def _run(self, call, *args):
        while True:
            try:
                result = call(*args)
                self.flush()
                return result
            except ssl.SSLWantReadError:
                self.flush()
                self._feed()
            except ssl.SSLError:
                try:
                    self.flush()
                except OSError:
                    pass
                raise

    def _feed(self):
        data = self.sock.recv(65536)
        if data:
            self.incoming.write(data)
        else:
            self.incoming.write_eof()

    def sendall(self, data):
        view = memoryview(data)
        while view:
            view = view[self._run(self.tls.write, view):]

    def recv(self, n=65536):
        """b"" is close_notify; a bare FIN raises SSLEOFError."""
        try:
            return self._run(self.tls.read, n)
        except ssl.SSLZeroReturnError:
            return b""

    def close_notify(self):
        """End our direction and nothing else."""
        try:
            self.tls.unwrap()
        except ssl.SSLWantReadError:
            pass
        self.flush()

    def peer(self):
        return x509.load_der_x509_certificate(self.tls.getpeercert(True))

    def peer_cn(self):
        return self.peer().subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value

    def close(self):
        self.sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
