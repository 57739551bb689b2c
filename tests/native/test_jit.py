"""Compiling, ahead and at a first call."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT

SCRIPT = """
import os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from numba.core import event
from blackbox.native.jit import njit, warm_up

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
    print("raised behind it", len(function.overloads), signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""


@pytest.mark.parametrize("use", ["warm_up(function, 1)", "function(1)"])
@pytest.mark.parametrize("cache", [True, False])
def test_ctrl_c_while_something_is_compiled_is_raised_behind_it(tmp_path: Path, use: str, cache: bool) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(use=use, cache=cache))
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT}/feeds", "XDG_CACHE_HOME": str(tmp_path)}
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, env=environment)
    assert run.stdout == "raised behind it 1 True\n", run.stderr
