"""Durations are seconds or a `timedelta` in every public method."""

from __future__ import annotations

import inspect
from datetime import timedelta
from typing import Any, Final

import pytest

import blackbox
from blackbox.arguments import seconds
from blackbox.services.monitor.tap import Tap
from blackbox.services.relay.plain_clients import PlainRelay

DURATIONS: Final = {"timeout", "silence_timeout", "ttl", "hold"}
CLASSES: Final = [each for each in vars(blackbox).values() if inspect.isclass(each)]


def test_every_public_method_takes_a_timedelta_as_a_duration() -> None:
    """Types are checked by mypy: what is not converted cannot be used as a number."""
    found, wrong = set[str](), list[str]()
    for each in [*CLASSES, Tap, PlainRelay]:
        for name, function in inspect.getmembers(each, inspect.isfunction):
            if name.startswith("_") and name != "__init__":
                continue
            for parameter in inspect.signature(inspect.unwrap(function)).parameters.values():
                if parameter.name in DURATIONS:
                    found.add(parameter.name)
                    if "Duration" not in str(parameter.annotation):
                        wrong.append(f"{each.__name__}.{name}: {parameter}")
                elif parameter.name.endswith(("_s", "timeout")):
                    wrong.append(f"{each.__name__}.{name}: {parameter}")
    assert found == DURATIONS
    assert not wrong


@pytest.mark.parametrize(("given", "expected"), [(timedelta(minutes=1), 60.0), (2, 2.0), (0.5, 0.5), (None, None)])
def test_seconds(given: Any, expected: float | None) -> None:
    assert seconds("timeout", given) == expected


@pytest.mark.parametrize("given", ["1", True, b"1"])
def test_anything_else_is_refused_by_name(given: Any) -> None:
    with pytest.raises(TypeError, match="timeout was .*, expected seconds, as a number or a timedelta"):
        seconds("timeout", given)
