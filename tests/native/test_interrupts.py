"""Ctrl-C delayed until the end of a block."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest

from blackbox.native.system.interrupts import interrupts_held, raise_behind_imports


@pytest.fixture(autouse=True)
def default_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press_and_fail() -> None:
    with interrupts_held():
        signal.raise_signal(signal.SIGINT)
        raise MemoryError


def test_ctrl_c_is_not_lost_if_the_block_raises() -> None:
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
from swallows_more import was_imported
"""
SWALLOWS_MORE = """
import signal
signal.raise_signal(signal.SIGINT)
was_imported = True
"""


@pytest.fixture
def swallows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the module `swallows`, whose import raises SIGINT twice."""
    (tmp_path / "swallows.py").write_text(SWALLOWS)
    (tmp_path / "swallows_more.py").write_text(SWALLOWS_MORE)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("swallows", "swallows_more"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    signal.signal(signal.SIGINT, raise_behind_imports)


def import_and_go_on(import_it: Callable[[], None], done: list[str]) -> None:
    import_it()
    done.append("went on")


def by_statement() -> None:
    import swallows  # type: ignore[import-not-found]  # noqa: F401


def by_function() -> None:
    import_module("swallows")


@pytest.mark.usefixtures("swallows")
@pytest.mark.parametrize("import_it", [by_statement, by_function])
def test_ctrl_c_within_an_import_is_raised_just_after_it(import_it: Callable[[], None]) -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        import_and_go_on(import_it, done)
    assert sys.modules["swallows"].was_imported
    assert not done
    assert sys.gettrace() is None


def test_the_holder_of_ctrl_c_is_notified_within_the_block() -> None:
    heard: list[str] = []
    with pytest.raises(KeyboardInterrupt), interrupts_held(lambda: heard.append("it came")) as came:
        assert not came
        signal.raise_signal(signal.SIGINT)
        assert came == [signal.SIGINT]
        assert heard == ["it came"]
        heard.append("behind it")
    assert heard == ["it came", "behind it"]
