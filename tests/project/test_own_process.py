"""Tests run in a separate process report their results here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.own_process import INSIDE
from tests.process_state import held

ROOT = Path(__file__).resolve().parents[2]
FILE = """
import os
import pytest

pytestmark = pytest.mark.own_process
HERE = {pid}

def test_that_passes():
    assert os.getppid() != HERE

@pytest.mark.parametrize("number", [1, 2])
def test_that_fails_for_two(number):
    assert number != 2, "it was two"

def test_that_is_skipped():
    pytest.skip("not today")
{end}
"""


def run(path: Path, end: str = "") -> str:
    path.write_text(FILE.format(pid=os.getpid(), end=end))
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", "-p", "tests.own_process", str(path)],
        cwd=ROOT,
        env={key: value for key, value in os.environ.items() if key not in (INSIDE, "PYTEST_ADDOPTS")},
        capture_output=True,
        text=True,
    ).stdout


def test_results_of_the_other_process_are_reported(tmp_path: Path) -> None:
    told = run(tmp_path / "test_some.py")
    assert "1 failed, 2 passed, 1 skipped" in told
    assert "it was two" in told
    assert "not today" in told


def test_counting_threads_and_descriptors_needs_own_process() -> None:
    with pytest.raises(AssertionError, match="expected own_process"):
        held()


def test_a_process_that_dies_fails_the_tests(tmp_path: Path) -> None:
    told = run(tmp_path / "test_some.py", "\ndef test_that_ends_it():\n    os._exit(7)\n")
    assert "5 failed" in told
    assert "the process ended with status 7" in told
