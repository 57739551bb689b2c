"""`blackbox keys`: a pair of files, and advice on their use."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

from blackbox.cli.ui.status import Status
from blackbox.transport.security.curve import load_pair, load_public
from tests.cli.commands import assert_one_line, invoke


def test_new_keys_are_printed_and_only_their_owner_can_read_the_secret_one(tmp_path: Path) -> None:
    ended = invoke("keys", "new", "desk", "--out", tmp_path / "keys")
    public, secret = tmp_path / "keys" / "desk.key", tmp_path / "keys" / "desk.key_secret"
    assert ended.status == Status.OK
    assert ended.out.strip() == load_public(str(public)).decode() == load_pair(str(secret)).public.decode()
    assert secret.stat().st_mode & 0o777 == 0o600
    assert load_pair(str(secret)).secret.decode() not in ended.out + ended.errors + public.read_text()
    for advice in (f"secret key: {secret}, which only you can read", "`allowed_keys`", "`server_keys`"):
        assert advice in ended.errors

    before = secret.read_bytes()
    ended = invoke("keys", "new", "desk", "--out", tmp_path / "keys")
    assert_one_line(ended, "desk.key already exists: choose another name")
    assert secret.read_bytes() == before


def test_a_group_key_is_for_its_owner_and_never_printed_or_replaced(tmp_path: Path) -> None:
    ended = invoke("keys", "group", "floor", "--out", tmp_path / "keys", "--json")
    path = tmp_path / "keys" / "floor.group_key"
    assert json.loads(ended.out) == {"group_file": str(path)}
    assert path.stat().st_mode & 0o777 == 0o600
    key = path.read_text().strip()
    assert len(bytes.fromhex(key)) == 32
    assert key not in ended.out + ended.errors
    assert_one_line(invoke("keys", "group", "floor", "--out", tmp_path / "keys"), "floor.group_key already exists")
    assert path.read_text().strip() == key


def test_a_full_disk_leaves_no_key_and_names_the_file(tmp_path: Path) -> None:
    code = "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); from blackbox.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-B", "-c", code, "keys", "new", "desk", "--out", str(tmp_path / "keys")],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),  # every write fails
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"error: {tmp_path}/keys/desk.key_secret: File too large"
    assert list((tmp_path / "keys").iterdir()) == []
