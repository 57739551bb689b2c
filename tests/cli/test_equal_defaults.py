"""An option has the same default as the argument that it sets."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

import pytest
import typer
import typer.main

from blackbox import Publisher, Recorder, Relay, Replay, SlowPolicy, Subscriber
from blackbox.archive.compact import compact
from blackbox.archive.retention import Retention
from blackbox.cli.program import app
from blackbox.hub.client import HubClient
from blackbox.monitor.heartbeats import Heartbeats
from blackbox.replay.control_socket import ask
from tests.patience import UNCHANGED

SETS: Final[dict[str, tuple[Callable[..., Any], ...]]] = {
    "subscribe": (Subscriber, Subscriber.start, Subscriber.run, SlowPolicy, HubClient.subscribe),
    "record": (Recorder, Recorder.start, Recorder.run, Retention),
    "publish": (Publisher, Publisher.wait_for_subscribers),
    "relay": (Relay,),
    "replay": (Replay, Publisher.wait_for_subscribers),
    "put": (HubClient, HubClient.put),
    "get": (HubClient, HubClient.get),
    "compact": (compact,),
    "control": (ask,),
    "stat": (Heartbeats,),
}
"""The API functions that a command's options set. Other commands set no arguments with defaults."""
ALIASES: Final = {("subscribe", "on_slow"): "action", ("subscribe", "positions"): ""}
"""Options that set an argument of another name, or no single argument."""
DIFFER: Final = {("subscribe", "on_slow"), ("publish", "when_full")}
"""The only defaults that differ. A program ends with a status where a library raises. Publishing a file must lose
nothing, while a live publisher must not wait for a slow subscriber."""


def options_of(command: str) -> dict[str, Any]:
    """Return the defaults of a command's options by name."""
    [info] = [each for each in app.registered_commands if each.name == command]
    assert info.callback is not None
    parameters = inspect.signature(info.callback).parameters.items()
    return {name: plain(each.default) for name, each in parameters if each.default is not inspect.Parameter.empty}


def plain(value: Any) -> Any:
    """Return a default as a plain value."""
    return value.value if isinstance(value, Enum) else value


def differences(command: str) -> set[str]:
    """Return the options of a command whose default differs from that of the argument of the same name."""
    found = set()
    for option, default in options_of(command).items():
        argument = ALIASES.get((command, option), option)
        for function in SETS[command]:
            signature = UNCHANGED.get(inspect.unwrap(function)) or inspect.signature(function)
            parameter = signature.parameters.get(argument)
            if parameter is None or parameter.default is inspect.Parameter.empty:
                continue
            if not same(plain(parameter.default), default):
                found.add(option)
    return found


def same(argument: Any, option: Any) -> bool:
    """Return True if two defaults mean the same: text equals bytes, and "max" is an unlimited speed."""
    return (
        bool(argument == option)
        or (argument in (b"", ()) and option in ("", None))
        or (argument, option) == (None, "max")
    )


@pytest.mark.parametrize("command", SETS)
def test_an_option_has_the_default_of_the_argument_that_it_sets(command: str) -> None:
    assert differences(command) == {option for name, option in DIFFER if name == command}


def test_all_compared_commands_exist() -> None:
    assert SETS.keys() <= typer.main.get_command(app).commands.keys()  # type: ignore[attr-defined]
    assert {name for name, _ in (*ALIASES, *DIFFER)} <= SETS.keys()
