"""Compilation ahead and at a first call."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples import first_of
from tests.support import ROOT

SCRIPT = """
import os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from numba.core import event
from blackbox.native.compile.jit import njit, warm_up

class CtrlC(event.Listener):
    def on_start(self, event):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass

    def on_end(self, event):
        pass

@njit(cache={cache})
def function(number):
    return number

try:
    with event.install_listener("numba:compile", CtrlC()):
        {use}
except KeyboardInterrupt:
    print("raised after it", len(function.overloads), signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""
SLOW = """
import os
from numba.core import event
from blackbox.native.compile import jit
jit._PATIENCE_S = float(os.environ["PATIENCE_S"])

class Slow(event.Listener):
    def on_start(self, event):
        assert jit._was_logged.wait(200)

    def on_end(self, event):
        pass

@jit.njit(cache=True)
def first(number):
    return number

@jit.njit(cache=True)
def second(number):
    return first(number)

with event.install_listener("numba:compile", Slow()):
    second(1)
"""


def run(directory: Path, code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script with an own cache."""
    script = directory / "script.py"
    script.write_text(code)
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT}/feeds", "XDG_CACHE_HOME": str(directory)} | variables
    return subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, env=environment)


CALLS = [("warm_up(function, 1)", True), ("function(1)", False), ("warm_up(function, 1)", False), ("function(1)", True)]


@pytest.mark.parametrize(("use", "cache"), first_of(CALLS, keep=2))
def test_ctrl_c_during_compilation_is_raised_after_it(tmp_path: Path, use: str, cache: bool) -> None:
    ran = run(tmp_path, SCRIPT.format(use=use, cache=cache))
    assert ran.stdout == "raised after it 1 True\n", ran.stderr


def test_compilation_at_a_first_call_is_logged_once_and_loading_is_not(tmp_path: Path) -> None:
    # Loading is never logged, however long it takes here; compiling instead would wait for the log and fail.
    logged = [run(tmp_path, SLOW, PATIENCE_S=patience).stderr for patience in ("0.1", "600")]
    assert logged[0].startswith("compiling functions at their first use")
    assert [len(text.splitlines()) for text in logged] == [1, 0]
