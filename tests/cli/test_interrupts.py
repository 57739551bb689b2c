"""Ctrl-C at any moment, while modules still load as well: one line, status 130, no traceback."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from blackbox import Feed
from blackbox.cli.ui.status import Status
from tests.cli.commands import ROOT, write_feed
from tests.cli.days import recorded_day

PROGRAM = "import blackbox.cli; print('up', flush=True); blackbox.cli.main()"
"""What the entry point does; what Python does before is not ours."""
SEED = 14
MOMENTS = 5


def interrupted(words: list[str], moment_s: float) -> tuple[int, str]:
    """Press Ctrl-C so long after a command began; return how it ended."""
    command = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT}/feeds"},
    )
    with command:
        try:
            assert command.stdout is not None
            assert command.stdout.readline() == "up\n"
            time.sleep(moment_s)
            command.send_signal(signal.SIGINT)
            _, errors = command.communicate(timeout=300)
        finally:
            command.kill()  # one that hangs would hang the tests that follow
    return command.returncode, errors


def test_until_ctrl_c_is_heeded_nothing_is_imported_that_takes_time() -> None:
    script = "import sys, blackbox.cli; assert not {'typer', 'rich', 'numpy', 'msgspec'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)


@pytest.mark.parametrize(
    "command",
    [
        *("publish", "replay", "verify"),
        *(pytest.param(command, marks=pytest.mark.long) for command in ("record", "subscribe", "stat")),
    ],
)
def test_ctrl_c_while_a_command_begins_is_one_line_and_status_130(command: str, tmp_path: Path) -> None:
    feed = str(write_feed(Feed.local("interrupted", slices=2), tmp_path / "feed.toml"))
    day = str(recorded_day(tmp_path / "day").path)
    words = {
        "publish": ["synthetic:1000", "--feed", feed],
        "record": ["--feed", feed, "--out", str(tmp_path / "out")],
        "subscribe": ["--feed", feed],
        "replay": [day, "--feed", feed],
        "stat": ["--feed", feed, "--timeout", "60"],
        "verify": [day],
    }[command]
    chosen = random.Random(f"{SEED} {command}")
    for moment_s in sorted(chosen.uniform(0.05, 1.5) for _ in range(MOMENTS)):
        status, errors = interrupted([command, *words], moment_s)
        if command == "verify" and "lost: " in errors:
            break  # it was done by then
        said = f"after {moment_s:.3f} s: {errors}"
        assert status == Status.INTERRUPTED, said
        assert errors.splitlines()[-1] == "interrupted", said
        assert not re.search("Traceback|Exception|[eE]rror", errors), said


def test_ctrl_c_while_numba_is_imported_is_one_line_and_status_130(tmp_path: Path) -> None:
    script = """
import os, signal, sys

class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == "numba._devicearray":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, CtrlC())
import blackbox.cli
blackbox.cli.main()
"""
    day = str(recorded_day(tmp_path / "day").path)
    ran = subprocess.run(
        [sys.executable, "-c", script, "replay", day],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=60,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT}/feeds"},
    )
    assert (ran.returncode, ran.stderr) == (Status.INTERRUPTED, "interrupted\n")
