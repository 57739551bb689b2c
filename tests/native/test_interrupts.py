"""Ctrl-C that waits for the end of a block."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from blackbox.native.interrupts import interrupts_held, raise_behind_imports
from blackbox.testing import wait_until


@pytest.fixture(autouse=True)
def default_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler), signal.getsignal(signal.SIGALRM)
    yield
    signal.signal(signal.SIGINT, before[0])
    signal.signal(signal.SIGALRM, before[1])


def press_and_fail() -> None:
    with interrupts_held():
        signal.raise_signal(signal.SIGINT)
        raise MemoryError


def test_ctrl_c_is_not_lost_where_the_block_raises() -> None:
    with pytest.raises(KeyboardInterrupt) as raised:
        press_and_fail()
    assert isinstance(raised.value.__context__, MemoryError)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


SWALLOWS = """
import signal
try:
    signal.raise_signal(signal.SIGINT)
except BaseException:
    pass
was_imported = True
"""


def test_ctrl_c_within_an_import_comes_behind_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "swallows.py").write_text(SWALLOWS)
    monkeypatch.syspath_prepend(tmp_path)
    signal.signal(signal.SIGINT, raise_behind_imports)
    with pytest.raises(KeyboardInterrupt):
        assert import_module("swallows").was_imported
        wait_until(lambda: False, what="Ctrl-C")


def test_who_holds_ctrl_c_hears_of_it_within_the_block() -> None:
    heard: list[str] = []
    with pytest.raises(KeyboardInterrupt), interrupts_held(lambda: heard.append("it came")) as came:
        assert not came
        signal.raise_signal(signal.SIGINT)
        assert came == [signal.SIGINT]
        assert heard == ["it came"]
        heard.append("behind it")
    assert heard == ["it came", "behind it"]
