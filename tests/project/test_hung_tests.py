"""A hung test fails by name at its timeout; all others run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.own_process import INSIDE

ROOT = Path(__file__).resolve().parents[2]
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
        env={key: value for key, value in os.environ.items() if key not in (INSIDE, "PYTEST_ADDOPTS")}
        | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert "2 failed, 16 passed" in ended.stdout
    for number in (2, 5):
        assert f"FAILED test_{number}.py::test_that_hangs" in ended.stdout
