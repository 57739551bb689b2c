"""Processes of the benchmarks: their answers, and processes that end, hang or do not answer."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest

from bench.processes.child import Child, Ended, answer, orders

HERE = "tests.bench.test_bench_child:"


def obey() -> None:
    for number, order in enumerate(orders()):
        if order == "raise":
            raise RuntimeError("a fault of the publisher")
        if order == "end":
            os.kill(os.getpid(), signal.SIGSEGV)
        if order == "hang":
            time.sleep(600)
        answer(number=number)


def end_badly() -> None:
    obey()
    print("x" * 200_000, flush=True)
    sys.exit("it did not close well")


def test_child_answers_in_turn_and_ends() -> None:
    with Child(f"{HERE}obey") as child:
        assert child.ask("first") == {"number": 0}
        child.send("second: its answer is not awaited, because its round was void")
        assert child.ask("third") == {"number": 2}


def test_child_that_ends_is_reported_with_its_last_output() -> None:
    child = Child(f"{HERE}obey")
    with pytest.raises(
        Ended, match="test_bench_child:obey ended with status 1: RuntimeError: a fault of the publisher"
    ) as told:
        child.ask("raise")
    assert "Traceback" in told.value.__notes__[0]
    with pytest.raises(Ended, match="test_bench_child:obey ended with status 1"):
        for _ in range(2):  # the pipe may accept the first order
            child.ask("again")
    child.close()


def test_killed_child_is_reported_with_its_status() -> None:
    with (
        Child(f"{HERE}obey") as child,
        pytest.raises(Ended, match="obey ended with status -11: in silence"),
    ):
        child.ask("end")


def test_silent_child_is_ended() -> None:
    child = Child(f"{HERE}obey")
    child.send("hang")
    with pytest.raises(Ended, match=r"test_bench_child:obey said nothing for 0.1 s"):
        child.answer(0.1)
    child.close(60)


def test_child_that_does_not_end_is_ended() -> None:
    child = Child(f"{HERE}obey")
    child.send("hang")
    with pytest.raises(Ended, match=r"test_bench_child:obey did not end within 0.1 s"):
        child.close(0.1)


def test_child_that_ends_with_an_error_is_reported() -> None:
    child = Child(f"{HERE}end_badly")
    with pytest.raises(Ended, match="test_bench_child:end_badly ended with status 1: it did not close well"):
        child.close()


def test_wait_for_one_child_reports_the_end_of_the_other() -> None:
    with Child(f"{HERE}obey") as publisher:
        subscriber = Child(f"{HERE}obey")
        publisher.send("hang")
        subscriber.send("raise")
        with pytest.raises(Ended, match="test_bench_child:obey ended with status 1: RuntimeError"):
            publisher.answer(beside=[subscriber])
        publisher.kill()
        subscriber.close()
