"""The processes of the benchmarks: what they say, and what becomes of one that ends, hangs or says nothing."""

from __future__ import annotations

import pytest

from bench.child import Child, Ended

_ORDERS = """
import os, signal, sys, time
from bench.child import orders
for number, order in enumerate(orders()):
    if order == "raise":
        raise RuntimeError("a fault of the publisher")
    if order == "end":
        os.kill(os.getpid(), signal.SIGSEGV)
    if order == "hang":
        time.sleep(600)
    print('{"number": %d}' % number, flush=True)
"""
_BAD_END = (
    _ORDERS
    + """
print("x" * 200_000, flush=True)
sys.exit("it did not close well")
"""
)


def test_child_answers_in_turn_and_ends() -> None:
    with Child("-c", _ORDERS) as child:
        assert child.ask("first") == {"number": 0}
        child.send("second, whose answer nobody waits for, as its round was void")
        assert child.ask("third") == {"number": 2}


def test_child_that_ends_is_told_with_its_last_words() -> None:
    child = Child("-c", _ORDERS, name="a publisher")
    with pytest.raises(Ended, match="a publisher ended with status 1: RuntimeError: a fault of the publisher") as told:
        child.ask("raise")
    assert "Traceback" in told.value.__notes__[0]
    with pytest.raises(Ended, match="a publisher ended with status 1"):
        for _ in range(2):  # the pipe may take the first
            child.ask("again")
    child.close()


def test_child_that_is_killed_is_told_with_its_status() -> None:
    with Child("-c", _ORDERS) as child, pytest.raises(Ended, match="a script ended with status -11: in silence"):
        child.ask("end")


def test_child_that_says_nothing_is_ended() -> None:
    child = Child("-c", _ORDERS)
    child.send("hang")
    with pytest.raises(Ended, match=r"a script said nothing for 0.1 s"):
        child.answer(0.1)
    child.close(10)


def test_child_that_does_not_end_is_ended() -> None:
    child = Child("-c", _ORDERS)
    child.send("hang")
    with pytest.raises(Ended, match=r"a script did not end within 0.1 s"):
        child.close(0.1)


def test_child_that_does_not_end_well_is_told() -> None:
    child = Child("-c", _BAD_END)
    with pytest.raises(Ended, match="a script ended with status 1: it did not close well"):
        child.close()
