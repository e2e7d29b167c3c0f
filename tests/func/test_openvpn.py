"""Our OpenVPN client as an ordinary user against real servers: OpenVPN in every variant of wrapping,
cipher, transport and framing, and SoftEther as VPN Gate nodes run it."""
import os
import re
import signal
import subprocess

import pytest

import openvpn_lab
from node import wait_for
from openvpn_lab import BIG, INNER, SERVER, Lab, SoftEther, reading

pytestmark = [pytest.mark.netns,
              pytest.mark.skipif(not openvpn_lab.can_run(), reason="needs root, openvpn and /dev/net/tun")]

CBC128 = "--cipher AES-128-CBC --data-ciphers AES-128-CBC --data-ciphers-fallback AES-128-CBC --auth SHA1"
CBC256 = "--cipher AES-256-CBC --data-ciphers AES-256-CBC --data-ciphers-fallback AES-256-CBC --auth SHA256"
PASSWORD = "--auth-user-pass-verify {d}/verify.sh via-file --script-security 2 --verify-client-cert none"

# name: (transport, the server's options, the profile's lines; [tag file] = inline block, what the output says)
VARIANTS = {
    "gcm": ("udp", "--data-ciphers AES-256-GCM --server-ipv6 fd08:1::/64 --push dhcp-option~DNS~10.8.1.1 "
            "--push dns~server~0~address~10.8.1.1", "data-ciphers AES-256-GCM:AES-128-GCM", "IPv6 fd08:1::1000, AES-256-GCM"),
    "chacha": ("udp", "--data-ciphers CHACHA20-POLY1305", "data-ciphers CHACHA20-POLY1305", "CHACHA20-POLY1305"),
    "cbctcp": ("tcp", CBC128, CBC128.replace("--", "\n"), "AES-128-CBC/SHA1"),
    "cbcudp": ("udp", CBC256, CBC256.replace("--", "\n"), "AES-256-CBC/SHA256"),
    "cbc512": ("udp", CBC256.replace("SHA256", "SHA512"), CBC256.replace("SHA256", "SHA512").replace("--", "\n"),
               "AES-256-CBC/SHA512"),
    "gcmtcp": ("tcp", "--data-ciphers AES-128-GCM", "data-ciphers AES-128-GCM", "AES-128-GCM"),
    "gcm192": ("udp", "--data-ciphers AES-192-GCM", "data-ciphers AES-192-GCM", "AES-192-GCM"),
    "tlsauth01": ("udp", "--tls-auth {d}/ta.key 0", "key-direction 1\n[tls-auth ta.key]", ""),
    "tlsauth10": ("udp", "--tls-auth {d}/ta.key 1", "key-direction 0\n[tls-auth ta.key]", ""),
    "tlsauthbi": ("tcp", "--tls-auth {d}/ta.key --auth SHA256", "auth SHA256\n[tls-auth ta.key]", ""),
    "tlscrypt": ("udp", "--tls-crypt {d}/tc.key", "[tls-crypt tc.key]", ""),
    "tlscrypt2": ("udp", "--tls-crypt-v2 {d}/v2s.key allow-noncookie", "[tls-crypt-v2 v2c.key]", ""),
    "tlscrypt2fc": ("udp", "--tls-crypt-v2 {d}/v2s.key force-cookie", "[tls-crypt-v2 v2c.key]", ""),
    "tlscrypt2tcp": ("tcp", "--tls-crypt-v2 {d}/v2s.key", "[tls-crypt-v2 v2c.key]", ""),
    "userpass": ("udp", PASSWORD + " --username-as-common-name --auth-gen-token 3600", "auth-user-pass", ""),
    "stub": ("udp", "--compress stub --push compress~stub", "compress stub", ""),
    "stubv2": ("udp", "--compress stub-v2 --push compress~stub-v2", "compress stub-v2", ""),
    "lzono": ("udp", "--comp-lzo no --push comp-lzo~no", "comp-lzo no", ""),
    "lzoyes": ("udp", "--comp-lzo yes --allow-compression yes --push comp-lzo~yes", "comp-lzo yes", ""),
    "lz4v2": ("udp", "--compress lz4-v2 --allow-compression yes --push compress~lz4-v2", "compress lz4-v2", ""),
    "fragment": ("udp", "--fragment 1200 --mssfix 1200", "fragment 1200\nmssfix 1200", ""),
    "exitnotify": ("udp", "--explicit-exit-notify 1", "explicit-exit-notify 1", ""),
    "ping": ("udp", "--ping 2 --ping-restart 8 --push ping~2 --push ping-restart~6", "", ""),
    "tls12": ("udp", "--tls-version-max 1.2", "tls-version-max 1.2", "TLSv1.2"),
    "rsa4k": ("udp", "--cert {d}/server4k.crt --key {d}/server4k.key --tls-auth {d}/ta.key 0 --auth SHA512",
              "auth SHA512\nkey-direction 1\n[tls-auth ta.key]", "'server4k'"),
    "net30": ("udp", "--topology net30", "", ""),
    "redirect": ("udp", "--push redirect-gateway~def1 --push block-outside-dns --push dhcp-option~DNS~10.8.28.1", "",
                 "1 DNS"),
}


@pytest.fixture(scope="module")
def lab():
    with Lab() as made:
        yield made


URL = f"http://{INNER}:8080/big"


def got_all(out):
    """The answer has come whole: the body and a head."""
    return BIG < int(re.search(r"HTTP status 200, (\d+) bytes", out).group(1)) < BIG + 1000


def lines(lab, text):
    out = []
    for line in text.split("\n"):
        out.append(lab.inline(*line[1:-1].split()) if line.startswith("[") else line)
    return "\n".join(out)


@pytest.mark.parametrize("name", VARIANTS)
def test_variant(lab, name):
    proto, server, client, wanted = VARIANTS[name]
    process, port = lab.server(proto, server)
    profile = lab.profile(proto, port, lines(lab, client))
    code, out, err = lab.test(profile, "--username", "vpn", "--password-file", lab.path("good"), "--url", URL)
    lab.stop(process)
    assert code == 0, out + err
    assert "round trip" in out and wanted in out
    assert got_all(out)


def test_wrong_password(lab):
    process, port = lab.server("udp", PASSWORD)
    code, out, err = lab.test(lab.profile("udp", port), "--username", "vpn", "--password-file", lab.path("bad"))
    lab.stop(process)
    assert code == 1 and "the server refuses the user or password" in err and "wrong" not in out + err.lower()


def test_wrong_authority(lab):
    process, port = lab.server("udp", "")
    profile = lab.profile("udp", port, cert=False)
    with open(profile) as f:
        text = f.read().replace(lab.text("ca.crt"), lab.text("server.crt"))
    code, out, err = lab.test(lab.write("other-ca.ovpn", text))
    lab.stop(process)
    assert code == 1 and "failed at 'tls'" in err and "does not verify" in err


def test_wrong_key(lab):
    """A server behind tls-crypt does not answer who lacks the key: the advice names that."""
    process, port = lab.server("udp", "--tls-crypt {d}/tc.key")
    code, out, err = lab.test(lab.profile("udp", port), timeout=2)
    lab.stop(process)
    assert code == 1 and "tls-crypt" in err and "failed at 'reset'" in err


def test_nobody_listens(lab):
    code, out, err = lab.test(lab.profile("tcp", 19999), timeout=2)
    assert code == 1 and "no server listens there" in err


def test_no_dns_server(lab):
    """A name is never asked of anybody but the tunnel's servers."""
    process, port = lab.server("udp", "")
    code, out, err = lab.test(lab.profile("udp", port), "--url", "http://name.example/")
    lab.stop(process)
    assert code == 1 and "failed at 'dns'" in err


def test_loss(lab):
    process, port = lab.server("udp", "")
    lab.lose(10)
    try:
        code, out, err = lab.test(lab.profile("udp", port), "--url", f"http://{INNER}:8080/", timeout=90)
    finally:
        lab.lose(0)
        lab.stop(process)
    assert code == 0 and "HTTP status 200" in out, out + err


@pytest.mark.parametrize("mtu", [1280, 1400])
def test_narrow_link(lab, mtu):
    process, port = lab.server("udp", "")
    lab.mtu(mtu)
    try:
        code, out, err = lab.test(lab.profile("udp", port), "--url", URL)
    finally:
        lab.mtu(1500)
        lab.stop(process)
    assert code == 0 and got_all(out), out + err


@pytest.mark.skipif(not os.path.exists(SoftEther.BIN), reason="needs softether-vpnserver")
def test_softether(lab):
    exported = SoftEther(lab).start().replace("\r\n", "\n")
    for proto, port in (("udp", 1194), ("tcp", 443)):
        text = "\n".join(f"proto {proto}" if line.startswith("proto ")
                         else f"remote {SERVER} {port}" if line.startswith("remote ") else line
                         for line in exported.split("\n")).replace("\n", "\r\n")
        profile = lab.write(f"softether-{proto}.ovpn", text)
        code, out, err = lab.test(profile, "--username", "vpn", "--password-file", lab.path("good"), "--url", URL)
        assert code == 0 and got_all(out), out + err
        assert "AES-128-CBC/SHA1, peer-id -1" in out
        code, out, err = lab.test(profile, "--username", "vpn", "--password-file", lab.path("bad"))
        assert code == 1 and "refuses the user or password" in err


@pytest.mark.parametrize("server,client,proto", [("--reneg-sec 4", "reneg-sec 0", "udp"),
                                                 ("--reneg-sec 0", "reneg-sec 3", "tcp"),
                                                 ("--reneg-sec 3", "reneg-sec 3", "udp")])
def test_renegotiation(lab, server, client, proto):
    """Whoever begins: new keys come, and no ping is lost for it."""
    process, port = lab.server(proto, server)
    code, out, err = lab.test(lab.profile(proto, port, client), "--watch", "11s")
    lab.stop(process)
    assert code == 0, out + err
    replies, asked, ups, renegotiations = map(int, re.search(
        r"replies (\d+) of (\d+), connections (\d+), renegotiations (\d+)", out).groups())
    assert ups == 1 and renegotiations >= 1 and replies >= asked - 1 and "state up" in out


def test_server_stops_and_goes_on(lab):
    """A server that hangs is left by ping-restart; once it goes on, the tunnel is up again."""
    process, port = lab.server("udp", "--ping 1 --ping-restart 30 --push ping~1 --push ping-restart~3")
    pid = int(subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout or process.pid)
    client = subprocess.Popen(lab.command(lab.profile("udp", port, "connect-retry 1"), "--ping", INNER, "--watch", "60s"),
                              stdout=subprocess.PIPE, text=True)
    try:
        out = reading(client)
        wait_for(lambda: any("round trip" in line for line in out), 20, "the first ping")
        os.kill(pid, signal.SIGSTOP)
        wait_for(lambda: any("reconnecting" in line for line in out), 20, "the loss to be seen")
        os.kill(pid, signal.SIGCONT)
        wait_for(lambda: any("packets travel again" in line for line in out), 40, "the tunnel to be up again")
    finally:
        client.terminate()
        client.wait()
        client.stdout.close()
        lab.stop(process)


def test_server_restarts(lab):
    """A server that says good-bye is connected again as soon as it is back."""
    process, port = lab.server("udp", "--explicit-exit-notify 1")
    client = subprocess.Popen(lab.command(lab.profile("udp", port, "connect-retry 1"), "--ping", INNER, "--watch", "60s"),
                              stdout=subprocess.PIPE, text=True)
    try:
        out = reading(client)
        wait_for(lambda: any("round trip" in line for line in out), 20, "the first ping")
        lab.stop(process)
        wait_for(lambda: any("reconnecting" in line for line in out), 20, "the good-bye")
        process, _ = lab.server("udp", "", port)
        wait_for(lambda: any("packets travel again" in line for line in out), 40, "the tunnel to be up again")
    finally:
        client.terminate()
        client.wait()
        client.stdout.close()
        lab.stop(process)
