"""Raise time limits so that tests pass on a busy machine.

The default limits suit a machine with free cores. In tests many processes share few cores: a start can take more than
10 s and a message can wait more than 1 s without a defect. Tests of such limits set their own.
"""

from __future__ import annotations

import inspect
from typing import Any, Final

import msgspec

import blackbox
from blackbox import Feed
from blackbox.repeated_log import HOUR_S, RepeatedLog
from blackbox.replay.control_socket import ask
from blackbox.testing import wait_until
from blackbox.transport.shared_memory import attached

PATIENCE_S: Final = 200.0
"""Timeout for a first compile on a busy machine, also of another process."""
MAX_LAG_NS: Final = 60_000_000_000
UNCHANGED: Final[dict[Any, inspect.Signature]] = {}
"""Original signatures of functions with raised defaults."""
_LEFT_ALONE: Final = ("close", "stop", "terminate")
"""Methods that keep their defaults, because tests let them time out."""


def be_patient() -> None:
    """Raise the default `timeout` of all public classes' methods and the lag limit of `Feed.local`.

    Also raise the time limits for a publisher's reply to a reader of its shared memory and for a replay's reply, and
    repeat no message of the log that holds repetitions back.
    """
    for public in (getattr(blackbox, name) for name in blackbox.__all__):
        if inspect.isclass(public):
            for function in vars(public).values():
                if inspect.isfunction(function) and function.__name__ not in _LEFT_ALONE:
                    _raise_timeout(inspect.unwrap(function))
    attached._ANSWER_S = PATIENCE_S
    _raise_timeout(ask)
    _raise_timeout(wait_until)
    RepeatedLog.__init__.__defaults__ = (HOUR_S,)
    _allow_lag()


def _raise_timeout(function: Any) -> None:
    UNCHANGED.setdefault(function, inspect.signature(function))
    names = [each.name for each in inspect.signature(function).parameters.values() if each.kind != each.KEYWORD_ONLY]
    defaults = function.__defaults__ or ()
    function.__defaults__ = tuple(
        _patient(name, value) for name, value in zip(names[len(names) - len(defaults) :], defaults, strict=True)
    )
    if function.__kwdefaults__:
        function.__kwdefaults__ = {name: _patient(name, value) for name, value in function.__kwdefaults__.items()}


def _patient(name: str, value: Any) -> Any:
    return max(value, PATIENCE_S) if name == "timeout" and isinstance(value, float) and value > 0 else value


def _allow_lag() -> None:
    make = Feed.local.__func__  # type: ignore[attr-defined]

    def local(cls: type[Feed], *arguments: Any, **settings: Any) -> Feed:
        feed: Feed = make(cls, *arguments, **settings)
        return msgspec.structs.replace(feed, max_lag_ns=MAX_LAG_NS)

    setattr(Feed, "local", classmethod(local))  # noqa: B010 - mypy knows that it is a method
