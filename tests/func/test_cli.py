"""The command line."""
import json
import subprocess

import pytest

from node import CULVERT, block, policy, snapshot


def culvert(*args, stdin=None, cwd=None):
    return subprocess.run([CULVERT, *args], input=stdin, capture_output=True, text=True, timeout=60, cwd=cwd)


def test_version_and_help():
    assert culvert("version").stdout.startswith("culvert ")
    whole = culvert("--help")
    assert whole.returncode == 0
    for command in ("run", "check", "explain", "passwd", "version", "init"):
        assert command in whole.stdout
        part = culvert(command, "--help")
        assert part.returncode == 0 and part.stdout.count("\n") > 3, command


@pytest.mark.parametrize("args", [["nonsense"], ["run", "--nonsense"], ["check", "--snapshot"], []])
def test_wrong_usage(args):
    r = culvert(*args)
    assert r.returncode == 2 and r.stderr and not r.stdout


def test_check_json(tmp_path):
    good = json.dumps(snapshot(version=7))
    r = culvert("check", "--json", "--node-id", "n", "--snapshot", "-", stdin=good)
    assert r.returncode == 0
    assert json.loads(r.stdout) == {"ok": True, "schema_version": 1, "version": 7, "users": 1, "routing_policies": 1, "egresses": 0}
    r = culvert("check", "--json", "--node-id", "n", "--snapshot", "-", stdin="{")
    assert r.returncode == 1
    said = json.loads(r.stdout)
    assert said["ok"] is False and said["stage"] == "decode" and said["error"]
    bad = json.dumps(snapshot(users={"u": {"password": "hidden-pw", "policy": "nope"}}))
    r = culvert("check", "--json", "--node-id", "n", "--snapshot", "-", stdin=bad)
    said = json.loads(r.stdout)
    assert said["stage"] == "compile" and "nope" in said["error"] and "hidden-pw" not in r.stdout + r.stderr


def test_check_names_the_path(tmp_path):
    doc = snapshot(policies={"p q": {"routes": [{"selectors": ["a", "book:x"], "action": {"type": "direct"}}]}},
                   users={"u": {"password": "p", "policy": "p q"}})
    (tmp_path / "s.json").write_text(json.dumps(doc))
    r = culvert("check", "--snapshot", str(tmp_path / "s.json"))
    assert r.returncode == 1 and "routes[0]" in r.stderr + r.stdout and "book:" in r.stderr + r.stdout
    (tmp_path / "t.json").write_text('{\n  "schema_version": 1,\n  oops\n}')
    r = culvert("check", "--snapshot", str(tmp_path / "t.json"))
    assert r.returncode == 1 and ":3:" in r.stderr + r.stdout


def test_check_warns(tmp_path):
    """What is allowed and hardly meant is said, and is no error."""
    doc = snapshot(policies={"default": policy(block("10.0.0.0/33"))})
    (tmp_path / "snapshot.json").write_text(json.dumps(doc))
    config = tmp_path / "culvert.yaml"
    config.write_text('node_id: n\nlisteners: [{ name: main, listen: "127.0.0.1:0", protocol: socks5, no_auth_user: nobody }]\n')
    r = culvert("check", "-c", str(config))
    assert r.returncode == 0
    assert "routes[0].selectors[0]: '10.0.0.0/33' matches no host" in r.stderr
    assert "listeners[0].no_auth_user: the snapshot has no user 'nobody'" in r.stderr
    assert culvert("check", "-c", str(config), "--json").stderr == ""
    # A snapshot that is fetched is not there to be looked at.
    config.write_text(config.read_text() + "control_plane: { snapshot_url: 'http://127.0.0.1:1/' }\n")
    r = culvert("check", "-c", str(config))
    assert r.returncode == 0 and "fetched" in r.stdout
    assert json.loads(culvert("check", "-c", str(config), "--json").stdout) == {"ok": True, "schema_version": 1}


def test_explain(tmp_path):
    doc = snapshot(policies={"default": policy(block("ads.test"), {"selectors": ["corp.test", "10.0.0.0/8"],
                                                                   "action": {"type": "egress", "egress": "px"}})},
                   egresses={"px": {"type": "upstream", "backend": {"kind": "socks5", "addr": "px.test:1080"}}})
    path = tmp_path / "s.json"
    path.write_text(json.dumps(doc))
    r = culvert("explain", "--snapshot", str(path), "--user", "u", "--target", "WWW.Corp.test.:443")
    assert r.returncode == 0
    for word in ("default", "corp.test", "upstream:px.test:1080", "www.corp.test"):
        assert word in r.stdout, r.stdout
    r = culvert("explain", "--snapshot", str(path), "--user", "u", "--target", "x.ads.test:443")
    assert "block" in r.stdout
    r = culvert("explain", "--snapshot", str(path), "--user", "u", "--target", "0x7f.1:80")
    assert "127.0.0.1" in r.stdout and "refuse" in r.stdout
    # A name in the client's first bytes decides where an address is asked for.
    r = culvert("explain", "--snapshot", str(path), "--user", "u", "--target", "192.0.2.1:443", "--sniffed", "X.Ads.test")
    assert r.returncode == 0 and "sniffed    x.ads.test" in r.stdout and "by the sniffed name" in r.stdout
    assert "block" in r.stdout, r.stdout
    for name in ("192.0.2.9", "no name", ""):
        r = culvert("explain", "--snapshot", str(path), "--user", "u", "--target", "a.test:443", "--sniffed", name)
        assert r.returncode == 1 and "no name that a client's first bytes can say" in r.stderr
    assert culvert("explain", "--snapshot", str(path), "--user", "u", "--target", "nohost").returncode != 0


def test_init_then_run_config_is_good(tmp_path):
    r = culvert("init", "-c", str(tmp_path / "culvert.yaml"))
    assert r.returncode == 0 and "curl -x socks5h://" in r.stdout
    first = (tmp_path / "snapshot.json").read_text()
    assert culvert("check", "-c", str(tmp_path / "culvert.yaml")).returncode == 0
    assert culvert("init", "-c", str(tmp_path / "culvert.yaml")).returncode == 0
    assert (tmp_path / "snapshot.json").read_text() == first
    assert (tmp_path / "snapshot.json").stat().st_mode & 0o077 == 0


def test_passwd():
    r = culvert("passwd", stdin="secret\n")
    assert r.stdout.startswith("$argon2id$v=19$") and "secret" not in r.stdout + r.stderr
    assert r.stdout != culvert("passwd", stdin="secret\n").stdout
    r = culvert("passwd", "--sha256", stdin="secret\n")
    assert r.stdout.startswith("sha256:")


def test_examples_are_good():
    import pathlib
    root = pathlib.Path(__file__).resolve().parents[2] / "examples"
    assert culvert("check", "-c", str(root / "culvert.yaml"), "--snapshot", str(root / "snapshot.json")).returncode == 0
