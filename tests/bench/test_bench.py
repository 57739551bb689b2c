"""Benchmark contests: judging rounds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bench.measure.contest import Contest, Figure, Lost, Overloaded, Spent, expect


class Rounds:
    """Calls a contest's rounds like pytest-benchmark's fixture, which is not available in the tests."""

    def __init__(self) -> None:
        self.extra_info: dict[str, Any] = {}

    def pedantic(self, target: Callable[[], None], rounds: int, iterations: int) -> None:
        for _ in range(rounds * iterations):
            target()


def run(contest: Contest, rounds: int = 7) -> dict[str, Any]:
    """Run a contest and return its part of the JSON."""
    fixture = Rounds()
    contest.run(fixture, rounds)  # type: ignore[arg-type]
    return json.loads(json.dumps(fixture.extra_info, allow_nan=False))["contest"]  # type: ignore[no-any-return]


def in_turn(*figures: float | Figure | None) -> Callable[[], float | Figure]:
    """Return a contender with these figures, the first for the warm-up; None: a round that loses a message."""
    left: Iterator[float | Figure | None] = iter(figures)

    def contender() -> float | Figure:
        figure = next(left)
        if figure is None:
            raise Lost("count was 9, expected 10")
        return figure

    return contender


@pytest.mark.parametrize(("lower", "ahead"), [(False, 2), (True, 0.5)])
def test_warm_up_is_ignored_and_ratios_compare_the_same_round(lower: bool, ahead: float) -> None:
    contest = Contest("speed", "M messages/s", lower=lower)
    contest.add("ours", in_turn(1_000, 10, 20, 40))
    contest.add("theirs", in_turn(1_000, 5, 10, 40), "rival")
    ours, theirs = run(contest, 3)["rows"]
    assert (ours["values"], ours["median"], ours["low"], ours["high"]) == ([10, 20, 40], 20, 10, 40)
    assert (theirs["median"], theirs["versus"], theirs["ahead"]) == (10, "ours", ahead)
    assert contest.ratio("theirs", "ours") == 0.5


def test_lost_round_is_void_and_reported(capsys: pytest.CaptureFixture[str]) -> None:
    contest = Contest("speed", "M messages/s")
    contest.add("ours", in_turn(1, 10, None, 10, 10, 10))
    contest.add("theirs", in_turn(None, 5, 100, None, 5, None), "rival")
    found = run(contest, 5)
    ours, theirs = found["rows"]
    assert (ours["values"], ours["median"]) == ([10, None, 10, 10, 10], 10)
    assert (theirs["median"], theirs["ahead"]) == (None, None)
    voids = [(each["name"], each["round"]) for each in found["void"]]
    assert voids == [("theirs", 0), ("ours", 2), ("theirs", 3), ("theirs", 5)]
    assert "void: ours, round 2: count was 9, expected 10" in capsys.readouterr().out


def test_rival_that_raises_has_a_void_round_and_ours_fails() -> None:
    def broken() -> float:
        raise TimeoutError("no answer after 5 s")

    def overloaded() -> float:
        raise Overloaded("300,000 messages/s were reached of 1,000,000")

    contest = Contest("speed", "M messages/s")
    contest.add("ours", in_turn(*[1.0] * 3))
    contest.add("theirs", broken, "rival")
    found = run(contest, 2)
    assert [each["why"] for each in found["void"]] == ["TimeoutError: no answer after 5 s"] * 3
    assert found["rows"][1]["values"] == [None, None]
    contest = Contest("speed", "M messages/s")
    contest.add("ours", broken)
    with pytest.raises(TimeoutError):
        run(contest, 2)
    contest = Contest("speed", "M messages/s")
    contest.add("ours", in_turn(1, None, None))
    with pytest.raises(AssertionError, match=r"no valid round of \['ours'\]"):
        run(contest, 2)
    contest = Contest("speed", "M messages/s")
    contest.add("ours", overloaded)
    assert [each["why"][:7] for each in run(contest, 2)["void"]] == ["300,000"] * 3, "beyond the machine: no failure"


def test_too_few_rounds_have_no_ratio_no_percentile_and_no_cost() -> None:
    contest = Contest("lag", "µs", lower=True)
    rounds = iter((1.0, 1.0, 1.0, 1.0, 1.0, None, None, None))
    p99 = iter((1_000.0, 9.0, 2_000.0, 9.0, 8.0, 0.0, 0.0, 0.0))

    def theirs() -> Figure:
        figure = next(rounds)
        contest.percentiles("theirs", {"p99": next(p99)})
        expect("count", figure, 1.0)
        return Figure(1.0, Spent(0.5, messages=1))

    contest.add("ours", in_turn(1, None, None, None, 2, 2, 2, 2))
    contest.add("theirs", theirs, "rival")
    contest.add("seldom", in_turn(1, None, None, None, None, 2, 2, 2), "rival")
    found = run(contest, 7)
    _, rival, seldom = found["rows"]
    assert (rival["median"], rival["ahead"]) == (1.0, None)  # one round in common
    assert (rival["spent"], found["percentiles"][0]["median"]) == ({"publisher_cpu_s": 5e5}, {"p99": 9.0})
    assert (seldom["median"], seldom["ahead"]) == (None, None)
    assert contest.ratio("ours", "theirs") != contest.ratio("ours", "theirs")
