"""Benchmark contests: judging rounds, and the report on the JSON of a run."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench.check import Ratio, compare
from bench.hot_path.profile import of_perf, of_py_spy, stacks_of
from bench.measure.contest import Contest, Figure, Lost, Overloaded, Spent, expect
from bench.measure.cost import cpu_seconds
from bench.measure.machine import describe, load
from bench.measure.results import read
from bench.processes.child import Child, Ended, answer, orders
from bench.report.page import write


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
    told: dict[str, Any] = json.loads(json.dumps(fixture.extra_info, allow_nan=False))["contest"]
    return told


def in_turn(*figures: float | Figure | None) -> Callable[[], float | Figure]:
    """Return a contender with these figures, the first for the warm-up; None: a round that loses a message."""
    left: Iterator[float | Figure | None] = iter(figures)

    def contender() -> float | Figure:
        figure = next(left)
        if figure is None:
            raise Lost("count was 9, expected 10")
        return figure

    return contender


def test_warm_up_is_ignored_and_ratios_compare_the_same_round() -> None:
    contest = Contest("speed", "M messages/s")
    contest.add("ours", in_turn(1_000, 10, 20, 40))
    contest.add("theirs", in_turn(1_000, 5, 10, 40), "rival")
    ours, theirs = run(contest, 3)["rows"]
    assert (ours["values"], ours["median"], ours["low"], ours["high"]) == ([10, 20, 40], 20, 10, 40)
    assert (theirs["median"], theirs["versus"], theirs["ahead"]) == (10, "ours", 2)
    assert contest.ratio("theirs", "ours") == 0.5


def test_lower_is_better_turns_the_ratio() -> None:
    contest = Contest("lag", "µs", lower=True)
    contest.add("ours", in_turn(1, 2, 2, 2))
    contest.add("theirs", in_turn(1, 8, 8, 8), "rival")
    assert run(contest, 3)["rows"][1]["ahead"] == 4


def test_lost_round_is_void_and_reported(capsys: pytest.CaptureFixture[str]) -> None:
    contest = Contest("speed", "M messages/s")
    contest.add("ours", in_turn(1, 10, None, 10, 10, 10))
    contest.add("theirs", in_turn(None, 5, 100, None, 5, None), "rival")
    told = run(contest, 5)
    ours, theirs = told["rows"]
    assert (ours["values"], ours["median"]) == ([10, None, 10, 10, 10], 10)
    assert (theirs["median"], theirs["ahead"]) == (None, None)
    assert [(each["name"], each["round"]) for each in told["void"]] == [
        ("theirs", 0),
        ("ours", 2),
        ("theirs", 3),
        ("theirs", 5),
    ]
    said = capsys.readouterr().out
    assert "void: ours, round 2: count was 9, expected 10" in said
    assert "no median: 3 of 5 rounds were valid" in said
    assert "4 of 5 rounds valid" in said


def test_ours_without_a_valid_round_fails() -> None:
    contest = Contest("speed", "M messages/s")
    contest.add("ours", in_turn(1, None, None))
    with pytest.raises(AssertionError, match=r"no valid round of \['ours'\]"):
        run(contest, 2)


def test_load_beyond_the_machine_is_void_and_no_failure() -> None:
    contest = Contest("lag", "µs", lower=True)

    def contender() -> float:
        raise Overloaded("300,000 messages/s were reached of 1,000,000")

    contest.add("ours", contender)
    assert [each["why"][:7] for each in run(contest, 2)["void"]] == ["300,000"] * 3


def test_percentiles_of_void_rounds_and_the_warm_up_are_ignored() -> None:
    contest = Contest("lag", "µs", lower=True)
    p99 = iter((1_000.0, 10.0, 2_000.0, 30.0, 20.0, 20.0))
    count = iter((10, 10, 9, 10, 10, 10))

    def contender() -> float:
        contest.percentiles("ours", {"p50": 1.0, "p99": next(p99)})
        expect("count", next(count), 10)
        return 1.0

    contest.add("ours", contender)
    (found,) = run(contest, 5)["percentiles"]
    assert (found["median"], len(found["rounds"])) == ({"p50": 1.0, "p99": 20.0}, 4)
    with pytest.raises(RuntimeError, match="outside a round"):
        contest.percentiles("ours", {"p50": 1.0})


def test_too_few_rounds_have_no_ratio_no_percentile_and_no_cost() -> None:
    contest = Contest("lag", "µs", lower=True)
    rounds = iter((1.0, 1.0, 1.0, 1.0, 1.0, None, None, None))

    def theirs() -> Figure:
        figure = next(rounds)
        contest.percentiles("theirs", {"p99": 9.0})
        expect("count", figure, 1.0)
        return Figure(1.0, Spent(0.5, messages=1))

    contest.add("ours", in_turn(1, None, None, None, 2, 2, 2, 2))
    contest.add("theirs", theirs, "rival")
    contest.add("seldom", in_turn(1, None, None, None, None, 2, 2, 2), "rival")
    told = run(contest, 7)
    _, rival, seldom = told["rows"]
    assert (rival["median"], rival["ahead"]) == (1.0, None)  # one round in common
    assert (rival["spent"], told["percentiles"][0]["median"]) == ({"publisher_cpu_s": 5e5}, {"p99": 9.0})
    assert (seldom["median"], seldom["ahead"]) == (None, None)
    assert contest.ratio("ours", "theirs") != contest.ratio("ours", "theirs")


def test_no_ratio_to_zero_or_to_itself() -> None:
    contest = Contest("loss", "messages", lower=True)
    contest.add("ours", in_turn(*[0.0] * 8))
    contest.add("theirs", in_turn(*[1.0] * 8), "rival")
    ours, theirs = run(contest)["rows"]
    assert (ours["versus"], ours["ahead"], theirs["ahead"]) == ("", None, None)


def test_rival_that_raises_has_a_void_round_and_ours_fails() -> None:
    def broken() -> float:
        raise TimeoutError("no answer after 5 s")

    contest = Contest("speed", "M messages/s")
    contest.add("ours", in_turn(*[1.0] * 3))
    contest.add("theirs", broken, "rival")
    told = run(contest, 2)
    assert [each["why"] for each in told["void"]] == ["TimeoutError: no answer after 5 s"] * 3
    assert told["rows"][1]["values"] == [None, None]
    contest = Contest("speed", "M messages/s")
    contest.add("ours", broken)
    with pytest.raises(TimeoutError):
        run(contest, 2)


def divide() -> None:
    for order in orders():
        answer(value=1 / order)


def test_contest_fails_if_our_process_ends() -> None:
    with Child("tests.bench.test_bench:divide") as child:
        given = iter([1, 2, 0, 4])
        contest = Contest("speed", "M messages/s")
        contest.add("ours", lambda: float(child.ask(next(given))["value"]))
        with pytest.raises(Ended, match="tests.bench.test_bench:divide ended with status 1: ZeroDivisionError"):
            run(contest, 3)


def test_versus_must_be_ours() -> None:
    contest = Contest("speed", "M messages/s")
    contest.add("ours", in_turn(1, 1))
    contest.add("theirs", in_turn(1, 1), "rival", versus="theirs")
    with pytest.raises(ValueError, match=r"versus of theirs was \['theirs'\], expected some of ours: \['ours'\]"):
        run(contest, 1)


def test_rows_and_percentiles_are_compared_with_each_named_contender() -> None:
    contest = Contest("lag", "µs", lower=True)

    def lag(name: str, value: float) -> Callable[[], float]:
        def contender() -> float:
            contest.percentiles(name, {"p99": value * 10})
            return value

        return contender

    contest.add("fast", lag("fast", 1.0))
    contest.add("slow", lag("slow", 8.0))
    contest.add("theirs", lag("theirs", 4.0), "rival", versus=("fast", "slow"))
    told = run(contest)
    assert [(each["versus"], each["ahead"]) for each in told["rows"][2]["against"]] == [("fast", 4), ("slow", 0.5)]
    assert told["percentiles"][2]["against"] == [
        {"versus": "fast", "median": {"p99": 10}, "ahead": {"p99": 4}},
        {"versus": "slow", "median": {"p99": 80}, "ahead": {"p99": 0.5}},
    ]


def test_costs_are_per_million_messages() -> None:
    contest = Contest("speed", "M messages/s")
    contest.add("ours", in_turn(*[Figure(1.0, Spent(0.5, 1.0, wire, 2_000_000)) for wire in (9e9, 300.0, 200.0, 4e9)]))
    assert run(contest, 3)["rows"][0]["spent"] == {
        "publisher_cpu_s": 0.25,
        "subscriber_cpu_s": 0.5,
        "wire_bytes": 100.0,
    }


def test_cpu_time_is_that_of_the_given_process() -> None:
    mine, others = cpu_seconds(), cpu_seconds(os.getppid())
    assert sum(range(3_000_000)) > 0
    assert 0.001 < cpu_seconds() - mine < 10
    assert cpu_seconds(os.getppid()) >= others


def example(directory: Path) -> Path:
    """Write the JSON of a run with contests of all forms, as pytest-benchmark does."""
    speed = Contest("Delivery | speed", "M messages/s", topology="PUB ==> SUB")
    for name, kind, values in (("ours", "ours", 10.0), ("theirs", "rival", 13.0), ("nothing done", "limit", 40.0)):
        speed.add(name, in_turn(values, values, values * 1.5), kind, "nothing lost")  # type: ignore[arg-type]
    speed.add("broken", in_turn(None, None, None), "rival")
    speed.skip("absent", "not installed: pip install absent")
    speed.bound("loopback TCP", 80)
    scaling = Contest("Scaling", "M messages/s", axis="topics")
    for topics in (1, 100, 10_000):
        spent = Spent(0.1, 0.2 * topics, None, 1_000_000)
        scaling.add("ours", in_turn(*[Figure(20 / topics, spent)] * 3), at=topics)
        scaling.add("theirs", in_turn(*[1.0] * 3), "rival", at=topics)
    scaling.add("memory", in_turn(*[50.0] * 3), "limit")
    lag = Contest("Lag", "µs", lower=True)

    def measured(name: str) -> Callable[[], float]:
        def contender() -> float:
            p99 = 80.0 if name == "ours" else 20.0
            lag.percentiles(name, {"p50": 4.0, "p99": p99, "p99.9": 400.0, "p100": 9_000.0})
            return 4.0 if name == "ours" else 5.0

        return contender

    lag.add("ours", measured("ours"))
    lag.add("theirs", measured("theirs"), "rival")
    limits = Contest("Limits of the machine", "GB/s")
    limits.add("loopback TCP", in_turn(*[1.5] * 3), "limit")
    files = {"delivery": speed, "scaling": scaling, "latency": lag, "limits": limits}
    benchmarks = [
        {
            "fullname": f"bench/bench_{name}.py::test_{name}",
            "name": f"test_{name}",
            "extra_info": {"contest": run(contest, 2)},
        }
        for name, contest in files.items()
    ]
    told = {
        "machine_info": {"described": describe()},
        "commit_info": {"id": "0123456789abcdef"},
        "datetime": "2026-11-21T18:00:00.000000+00:00",
        "load": {"start": load(), "end": load()},
        "benchmarks": [*benchmarks, {"fullname": "x", "name": "x", "extra_info": {}}],
        "failed": [{"name": "bench/bench_start.py::test_start", "why": "RuntimeError: no answer"}],
        "left_out": [{"name": "bench_spark*.py", "why": "pyspark is not installed"}],
        "not_run": ["bench/bench_zeal.py::test_zeal"],
    }
    path = directory / "run.json"
    path.write_text(json.dumps(told))
    return path


def test_pages_of_a_run_have_its_figures_and_link_standalone_pictures(tmp_path: Path) -> None:
    (tmp_path / "performance").mkdir()
    (tmp_path / "performance" / "old.svg").write_text("of another run")
    write(read(example(tmp_path)), tmp_path / "performance.md")
    page, tables = ((tmp_path / name).read_text() for name in ("performance.md", "performance/tables.md"))
    pictures = {path.name: path.read_text() for path in (tmp_path / "performance").glob("*.svg")}
    assert {"ahead.svg", "behind.svg", "limits.svg", "scaling-scaling-cost.svg"} < pictures.keys()
    linked = re.findall(r"\]\((?:performance/)?([^)]+\.svg)\)", page + tables)
    assert set(linked) == pictures.keys()
    for text in pictures.values():
        root = ElementTree.fromstring(text)
        assert "prefers-color-scheme: dark" in text
        assert "nan" not in re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL)
        width, height = map(float, root.attrib["viewBox"].split()[2:])
        for mark in root.iter("{http://www.w3.org/2000/svg}text"):
            assert 0 <= float(mark.attrib["x"]) <= width
            assert 0 <= float(mark.attrib["y"]) <= height
    for told in (
        "| 1.30 × | theirs | ours | 16.2 against 12.5 M messages/s | [Delivery \\| speed](#delivery--speed) |",
        "| 1.50 × | loopback TCP | ours | 18.8 against 12.5 M messages/s, of the medians |",
        "| 4.00 × | theirs, p99 | ours | 20.0 against 80.0 µs | [Lag](#lag) |",
        "| bench/bench_start.py::test_start | RuntimeError: no answer |",
        "| absent | not installed: pip install absent | [Delivery \\| speed](#delivery--speed) |",
        "| broken | warm-up | count was 9, expected 10 |",
        "| broken |  |  | no median, 0 of 2 rounds valid |  |",
        "| ours at 10,000 | 0.1 | 2,000 |",
    ):
        assert told in tables, told
    for told in (
        "**This run ended early.**",
        "| theirs | 1.30 × | 16.2 against 12.5 M messages/s |  |",
        "| [Scaling](performance/tables.md#scaling) | theirs at 10,000 | 500 × |",
        "In this run [1 failed](performance/tables.md#what-failed), [2 could not run]",
        "[3 rounds were void](performance/tables.md#rounds-that-were-void).",
    ):
        assert told in page, told


def test_check_reports_changes_beyond_the_noise() -> None:
    ratios = {
        "same": Ratio(1.1, 0.01, 0.15),
        "slow": Ratio(1.3, 0.01, 0.15),
        "fast": Ratio(0.5, 0.2, 0.15),
        "noisy": Ratio(1.3, 0.5, 0.15),
        "rough": Ratio(1.3, 0.01, 0.35),
        "young": Ratio(1.0, 0.01, 0.15),
    }
    before = dict.fromkeys(ratios, 1.0) | {"gone": 1.0}
    del before["young"]
    _, *lines = compare(ratios, before)
    assert [line.split()[-1] for line in lines[:6]] == ["1.0%", "SLOWER", "faster", "50.0%", "1.0%", "new"]
    assert lines[1].split()[:4] == ["slow", "1.300", "1.000", "+30.0%"]
    assert lines[6:] == ["gone                         is in the baseline, and was not measured"]


PERF = """
python 41 7.500000:
\t    7f01 slice_loop._fault (/tmp/perf-40.map)

python 41 7.600000:
\t    7f02 [unknown] (/tmp/perf-40.map)

python 43 7.700000:
\t    7f03 [unknown] (/tmp/perf-40.map)

ZMQbg/IO/0 42 7.500000:
\tffffffff82010b96 tcp_recvmsg ([kernel.kallsyms])
\tffffffff821ecc51 do_syscall_64 ([kernel.kallsyms])
\t          10a974 __libc_recv (/usr/lib/libc.so.6)
\t           78dc0 [unknown] (/site-packages/pyzmq.libs/libzmq-2f02442c.so.5.2.5)
\t           75022 [unknown] (/site-packages/pyzmq.libs/libzmq-2f02442c.so.5.2.5)
\t          1098eb clone3 (/usr/lib/libc.so.6)

python 41 9.500000:
\t    7f01 before.or_after (/tmp/perf-40.map)
"""


def test_perf_samples_share_the_cost_of_their_thread() -> None:
    threads = {"41": ["slice", 0], "42": ["I/O", 0], "43": ["worker", 0]}
    samples = list(of_perf(PERF, {"begun": 7.0, "ended": 8.0, "threads": threads}))
    assert samples == [
        ("slice", ("slice_loop._fault",)),
        ("slice", ("compiled code",)),
        ("worker", ("compiled callback",)),
        ("I/O", ("libzmq", "__libc_recv", "tcp_recvmsg")),
    ]
    assert stacks_of(samples, {"slice": 30.0, "I/O": 50.0, "worker": 8.0, "unseen": 5.0}) == {
        ("slice", "slice_loop._fault"): 15.0,
        ("slice", "compiled code"): 15.0,
        ("worker", "compiled callback"): 8.0,
        ("I/O", "libzmq", "__libc_recv", "tcp_recvmsg"): 50.0,
        ("unseen",): 5.0,
    }


def test_py_spy_samples_leave_out_waiting_and_start_up() -> None:
    raw = """thread (0x1): MainThread;main (x.py:1);deliver (x.py:2);publish_many (y.py:3) 2
thread (0x1): MainThread;main (x.py:1);import (z.py:2) 5
thread (0x2): blackbox-slice-0;run (threading.py:1);loop (s.py:2);0x7f01 (?);0x7f02 (?) 1
thread (0x2): blackbox-slice-0;loop (s.py:2);poll (libc.so) 9"""
    assert list(of_py_spy(raw, {"blackbox-slice-0"})) == [
        ("caller of publish_many", ("publish_many (y.py:3)",)),
        ("caller of publish_many", ("publish_many (y.py:3)",)),
        ("blackbox-slice-0", ("loop (s.py:2)", "compiled code")),
    ]
