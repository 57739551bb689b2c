"""Processes of the benchmarks: their answers, and processes that end, hang or do not answer."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest

from bench.processes.child import Child, Ended, answer, orders


def obey() -> None:
    for number, order in enumerate(orders()):
        if order == "raise":
            raise RuntimeError("a fault of the publisher")
        if order == "end":
            os.kill(os.getpid(), signal.SIGSEGV)
        if order == "hang":
            time.sleep(600)
        answer(number=number)
    print("x" * 200_000, flush=True)
    sys.exit("it did not close well")


HERE = "tests.bench.test_bench_child:obey"


def test_children_that_end_hang_or_raise_are_reported() -> None:
    child = Child(HERE)
    assert child.ask("first") == {"number": 0}
    child.send("second: its answer is not awaited, because its round was void")
    assert child.ask("third") == {"number": 2}
    with pytest.raises(Ended, match="obey ended with status 1: it did not close well"):
        child.close()
    with Child(HERE) as other:
        child = Child(HERE)
        other.send("hang")
        child.send("raise")
        with pytest.raises(Ended, match="obey ended with status 1: RuntimeError: a fault of the publisher") as raised:
            other.answer(beside=[child])
        assert "Traceback" in raised.value.__notes__[0]
        child.close()
        with pytest.raises(Ended, match=r"obey said nothing for 0.1 s"):
            other.answer(0.1)
    with Child(HERE) as child, pytest.raises(Ended, match="obey ended with status -11: in silence"):
        child.ask("end")
