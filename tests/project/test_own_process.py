"""Tests that run in a separate process fail here if they fail, or end it, there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.own_process import INSIDE

HEAD = "import os, pytest\npytestmark = pytest.mark.own_process\n"
SOME = """
@pytest.mark.parametrize("number", [1, 2])
def test_one(number): assert number != 2, "it was two"
def test_elsewhere(): assert os.getppid() != PARENT
def test_skipped(): pytest.skip("not today")
"""
DIES = "def test_before(): pass\ndef test_end(): os._exit(7)\n"


@pytest.mark.long
def test_results_of_the_other_process_are_reported(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(HEAD + SOME.replace("PARENT", str(os.getpid())))
    (tmp_path / "test_dies.py").write_text(HEAD + DIES)
    out = subprocess.run(
        [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", "-p", "tests.own_process", str(tmp_path)],
        cwd=Path(__file__).resolve().parents[2],
        env={key: value for key, value in os.environ.items() if key not in (INSIDE, "PYTEST_ADDOPTS")},
        capture_output=True,
        text=True,
    ).stdout
    assert "3 failed, 2 passed, 1 skipped" in out
    for reason in ("it was two", "not today", "the process ended with status 7"):
        assert reason in out
