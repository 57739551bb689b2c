"""Run scripts of the docs in processes of their own, or one after another in one process to save the imports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.patience import MAX_LAG_NS

ROOT = Path(__file__).resolve().parents[2]
_IN_TURN = """
import runpy, sys, traceback
from tests.patience import be_patient
be_patient()
for path in sys.argv[1:]:
    print("#", path, flush=True)
    sys.argv = [path]
    try:
        runpy.run_path(path, run_name="__main__")
    except BaseException:
        traceback.print_exc(file=sys.stdout)
    sys.stdout.flush()
"""


def start(*words: object, cwd: Path = ROOT) -> subprocess.Popen[str]:
    """Start Python with these arguments. Feeds of files have a patient limit of lag: the machine may be busy."""
    return subprocess.Popen(
        [sys.executable, *map(str, words)],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT}/feeds", "BLACKBOX_FEED_MAX_LAG_NS": str(MAX_LAG_NS)},
    )


def together(*scripts: Path) -> list[str]:
    """Run scripts in their directory at the same time; return the output of each."""
    processes = [start(script, cwd=script.parent) for script in scripts]
    said = []
    for process in processes:
        with process:
            said.append(process.communicate(timeout=300))
    assert [process.returncode for process in processes] == [0] * len(scripts), "\n".join(errors for _, errors in said)
    return [out for out, _ in said]


def in_turn(*scripts: Path) -> dict[str, str]:
    """Run scripts in their directory one after another in one process; return the output of each by name.

    A script that raises has a traceback in its output.
    """
    with start("-c", _IN_TURN, *scripts, cwd=scripts[0].parent) as process:
        out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    parts = dict(part.partition("\n")[::2] for part in out.removeprefix("# ").split("\n# "))
    return {script.stem: parts[str(script)] for script in scripts}
