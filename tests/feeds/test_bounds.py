"""Damaged input is never read past its end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_no_decoder_reads_past_the_end_of_its_input() -> None:
    command = [sys.executable, "-m", "tests.feeds.guarded"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) > 2_000
