"""A lock file that one process owns, also while it has forked children."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from blackbox.native.system.file_lock import FileLock, OwnedError, owner_of
from tests.support import Script

OWN = """
import os, sys, time
from pathlib import Path
from blackbox.native.system.file_lock import FileLock
lock = FileLock(Path({path!r}))
child = os.fork()
if child == 0:
    lock.close()
    time.sleep(600)
print("ready", child, flush=True)
input()
"""


def test_a_killed_owner_with_a_living_child_releases_the_file(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with Script(OWN.format(path=str(path))) as owner:
        child = int(owner.read().split()[1])
        try:
            with pytest.raises(OwnedError, match=f"^process {owner.process.pid}$"):
                FileLock(path)
            owner.process.kill()
            owner.process.wait()
            os.kill(child, 0)  # raises if the child is dead
            lock = FileLock(path)
            assert path.read_text() == f"process {os.getpid()}\n"
        finally:
            os.kill(child, signal.SIGKILL)
        lock.close()


def test_one_process_owns_the_file_once_and_another_attempt_does_not_release_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = FileLock(path)
    for _ in range(2):
        with pytest.raises(OwnedError, match=f"^process {os.getpid()}$"):
            FileLock(path)
    code = f"from blackbox.native.system.file_lock import FileLock, Path; FileLock(Path({str(path)!r}))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert f"OwnedError: process {os.getpid()}" in other.stderr
    lock.close()
    FileLock(path).close()


def test_a_forked_child_can_own_the_file_after_its_parent_releases_it(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "lock")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(read, 1)
        try:
            FileLock(tmp_path / "lock")
            os._exit(0)
        except BaseException:  # noqa: BLE001 - reported by the exit status
            os._exit(1)
    lock.close()
    os.write(write, b"x")
    assert os.waitpid(child, 0)[1] == 0


def test_a_question_does_not_release_the_lock_that_another_thread_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock"
    path.touch(0o444)
    locks: list[FileLock] = []
    taker, ask = threading.Thread(target=lambda: locks.append(FileLock(path))), fcntl.fcntl

    def ask_meanwhile(fd: int, command: int, asked: bytes) -> bytes:
        taker.start()
        taker.join(0.2)
        return ask(fd, command, asked)

    monkeypatch.setattr(fcntl, "fcntl", ask_meanwhile)
    assert owner_of(path) is None
    taker.join()
    monkeypatch.undo()
    code = f"from blackbox.native.system.file_lock import Path, owner_of; print(owner_of(Path({str(path)!r})))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert other.stdout == f"process {os.getpid()}\n", other.stderr
    locks[0].close()
