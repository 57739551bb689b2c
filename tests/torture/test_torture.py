"""Short version of `make torture`: half a second of every attack, always the same."""

from __future__ import annotations

import sys
from random import Random

import pytest

from tests.torture import __main__ as command
from tests.torture.outcome import Outcome

ATTACKS = command.attacks()
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
    outcome = command.run(name, ATTACKS[name], seed=14, seconds=0.5)
    assert outcome.tried > 0
    assert not outcome.found, "\n".join(outcome.found)


def test_the_command_prints_defects_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(random: Random, seconds: float) -> Outcome:
        raise ValueError(random.randrange(1_000))

    leaky = Outcome(1_234, "knocks", ["the door is open"])
    monkeypatch.setattr(command, "attacks", lambda: {"leaky": lambda *_: leaky, "broken": broken})
    monkeypatch.setattr(sys, "argv", ["torture", "--seed", "3"])
    assert command.main() == 1
    said = capsys.readouterr().out
    assert all(text in said for text in ("1,234  knocks", "the door is open", "ValueError: ", "2 found; again with"))
