"""Compiling ahead."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support import ROOT

SCRIPT = """
import os, signal
from blackbox.native.jit import warm_up

class Compiled:
    done, overloads = False, {}

    def compile(self, signature):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass
        self.done = True

compiled = Compiled()
try:
    warm_up(compiled)
except KeyboardInterrupt:
    print("raised behind it", compiled.done, signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""


def test_ctrl_c_while_something_is_compiled_is_raised_behind_it() -> None:
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT}/feeds"}
    run = subprocess.run(
        [sys.executable, "-c", f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n{SCRIPT}"],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    assert run.stdout == "raised behind it True True\n", run.stderr
