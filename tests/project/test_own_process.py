"""Tests that run in a separate process report their results, and a hung test fails by name at its timeout."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.own_process import INSIDE
from tests.process_state import held

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {key: value for key, value in os.environ.items() if key not in (INSIDE, "PYTEST_ADDOPTS")}
FILE = """
import os
import pytest

pytestmark = pytest.mark.own_process

def test_that_passes():
    assert os.getppid() != {pid}

@pytest.mark.parametrize("number", [1, 2])
def test_that_fails_for_two(number):
    assert number != 2, "it was two"

def test_that_is_skipped():
    pytest.skip("not today")
"""
DIES = """
import os
import pytest

pytestmark = pytest.mark.own_process

def test_before():
    pass

def test_that_ends_it():
    os._exit(7)
"""


def test_results_of_the_other_process_are_reported(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(FILE.format(pid=os.getpid()))
    (tmp_path / "test_dies.py").write_text(DIES)
    out = subprocess.run(
        [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", "-p", "tests.own_process", str(tmp_path)],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
    ).stdout
    assert "3 failed, 2 passed, 1 skipped" in out
    for reason in ("it was two", "not today", "the process ended with status 7"):
        assert reason in out


def test_counting_threads_and_descriptors_needs_own_process() -> None:
    with pytest.raises(AssertionError, match="expected own_process"):
        held()


SOUND = "def test_a(): pass\ndef test_b(): pass\ndef test_c(): pass\n"
HANGS = """
import os, threading, pytest

def test_before(): pass

@pytest.mark.timeout(1)
def test_that_hangs():
    if os.fork() == 0:
        threading.Event().wait(2)  # like a slice's process whose parent has ended
        os._exit(0)
    threading.Event().wait()

def test_after(): pass
"""


@pytest.mark.long
def test_a_hung_test_fails_by_name_and_the_rest_runs(tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / f"test_{number}.py").write_text(HANGS if number in (2, 5) else SOUND)
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_xdist_make_scheduler  # noqa: F401\n")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "2", "-p", "no:cacheprovider", "--timeout-method=thread", str(tmp_path)],
        cwd=tmp_path,
        env=ENVIRONMENT | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert "2 failed, 16 passed" in ended.stdout
    for number in (2, 5):
        assert f"FAILED test_{number}.py::test_that_hangs" in ended.stdout
