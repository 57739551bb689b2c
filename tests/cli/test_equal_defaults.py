"""An option has the same default as the argument that it sets."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

import pytest

from blackbox import Publisher, Recorder, Relay, Replay, SlowPolicy, Subscriber
from blackbox.archive.maintain.compact import compact
from blackbox.archive.maintain.retention import Retention
from blackbox.cli.program import app
from blackbox.replay.control_socket import ask
from blackbox.services.hub.client.client import HubClient
from blackbox.services.monitor.heartbeats import Heartbeats
from tests.patience import UNCHANGED

SETS: Final[dict[str, tuple[Callable[..., Any], ...]]] = {
    "subscribe": (Subscriber, Subscriber.start, Subscriber.run, SlowPolicy, HubClient.subscribe),
    "record": (Recorder, Recorder.start, Recorder.run, Retention),
    "publish": (Publisher, Publisher.wait_for_subscribers),
    "relay": (Relay,),
    "replay": (Replay, Publisher, Publisher.wait_for_subscribers),
    "put": (HubClient, HubClient.put),
    "get": (HubClient, HubClient.get),
    "compact": (compact,),
    "control": (ask,),
    "stat": (Heartbeats,),
}
"""The API functions that a command's options set. Other commands set no arguments with defaults."""
ALIASES: Final = {("subscribe", "on_slow"): "action", ("subscribe", "positions"): ""}
"""Options that set an argument of another name, or no single argument."""
DIFFER: Final = {"subscribe": {"on_slow"}, "publish": {"when_full"}, "replay": {"when_full"}}
"""The only defaults that differ. A program ends with a status where a library raises. Publishing recorded messages must
lose nothing, while a live publisher must not wait for a slow subscriber."""


def defaults_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the defaults of a function's parameters as plain values."""
    signature = UNCHANGED.get(inspect.unwrap(function)) or inspect.signature(function)
    defaults = {name: each.default for name, each in signature.parameters.items() if each.default is not each.empty}
    return {name: value.value if isinstance(value, Enum) else value for name, value in defaults.items()}


def same(argument: Any, option: Any) -> bool:
    """Return True if two defaults mean the same: text equals bytes, and "max" is an unlimited speed."""
    return (
        bool(argument == option)
        or (argument in (b"", ()) and option in ("", None))
        or (argument, option) == (None, "max")
    )


@pytest.mark.parametrize("command", SETS)
def test_an_option_has_the_default_of_the_argument_that_it_sets(command: str) -> None:
    [callback] = [each.callback for each in app.registered_commands if each.name == command]
    assert callback is not None
    options = {ALIASES.get((command, name), name): (name, value) for name, value in defaults_of(callback).items()}
    differences = {
        options[argument][0]
        for function in SETS[command]
        for argument, value in defaults_of(function).items()
        if argument in options and not same(value, options[argument][1])
    }
    assert differences == DIFFER.get(command, set())
