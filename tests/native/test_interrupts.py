"""Ctrl-C that waits for the end of a block."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from blackbox.native.interrupts import interrupts_held


@pytest.fixture(autouse=True)
def default_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press_and_fail() -> None:
    with interrupts_held():
        signal.raise_signal(signal.SIGINT)
        raise MemoryError


def test_ctrl_c_is_not_lost_where_the_block_raises() -> None:
    with pytest.raises(KeyboardInterrupt) as raised:
        press_and_fail()
    assert isinstance(raised.value.__context__, MemoryError)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
