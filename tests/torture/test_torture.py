"""Short version of `make torture`: half a second of every attack, always the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.torture.__main__ import attacks, run

ROOT = Path(__file__).resolve().parents[2]
ATTACKS = attacks()
LONG = (
    "driven_clients",
    "failing_hubs",
    "flipped_hubs",
    "killed_consumers",
    "killed_hubs",
    "killed_recorders",
    "killed_relays",
    "raced_pairs",
    "raced_tables",
    "shared_memory",
)
"""Attacks that start many processes or hubs; other tests cover each of them once."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name in LONG else []) for name in ATTACKS]
)
def test_torture_finds_nothing(name: str) -> None:
    outcome = run(name, ATTACKS[name], seed=14, seconds=0.5)
    assert outcome.tried > 0
    assert not outcome.found, "\n".join(outcome.found)


def test_the_command_prints_defects_and_fails(tmp_path: Path) -> None:
    (tmp_path / "defects.py").write_text(
        "from tests.torture import __main__ as command\n"
        "from tests.torture.outcome import Outcome\n"
        "def broken(random, seconds): raise ValueError(random.randrange(1000))\n"
        "command.attacks = lambda: {'sound': lambda *_: Outcome(1_234, 'knocks'),\n"
        "    'leaky': lambda *_: Outcome(2, 'knocks', ['the door is open']), 'broken': broken}\n"
        "raise SystemExit(command.main())\n"
    )

    def told(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(tmp_path / "defects.py"), "--seed", "3", *words]
        return subprocess.run(
            command, cwd=ROOT, env={"PYTHONPATH": f"{ROOT}:{ROOT}/feeds"}, capture_output=True, text=True
        )

    found = told()
    assert found.returncode == 1
    assert "1,234  knocks" in found.stdout
    assert "the door is open" in found.stdout
    assert "2 found; again with: python -m tests.torture --seed 3" in found.stdout
    numbers = {line for line in (found.stdout + told("--only", "broken").stdout).splitlines() if "ValueError" in line}
    assert len(numbers) == 1, "the seed determines the attempts"
    assert told("--only", "sound").returncode == 0
