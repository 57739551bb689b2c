"""Check arguments of callers. Errors name the argument, its value and the expected values."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable
from datetime import timedelta
from difflib import get_close_matches
from numbers import Real
from pathlib import Path
from typing import Any, Final, overload

from blackbox.errors import ConfigError

LONGEST_S: Final = 3_155_760_000.0
"""Longest duration accepted as an argument, in seconds: 100 years."""


Duration = float | timedelta
"""A number of seconds, or a `timedelta`."""


def check_integers(*settings: tuple[str, object, int, int]) -> None:
    """Check each (name, value, least, most). Raises TypeError or ValueError."""
    for name, value, low, high in settings:
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{name} was {value!r}, expected an integer from {low} to {high}")
        if not low <= value <= high:
            raise ValueError(f"{name} was {value}, expected {low} to {high}")


def duration_ns(name: str, value: object, least_s: float, most_s: float = LONGEST_S) -> int:
    """Return a duration in ns; `value` is a number of seconds or a `timedelta`, the limits are in seconds.

    Raises TypeError for any other type, ValueError out of range.
    """
    expected = f"expected {least_s:g} to {most_s:g} seconds, as a number or a timedelta"
    if isinstance(value, bool) or not isinstance(value, timedelta | Real):
        raise TypeError(f"{name} was {value!r}, {expected}")
    if isinstance(value, timedelta):
        micros = (value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds
        found = micros * 1_000
    elif math.isfinite(value):
        found = round(float(value) * 1e9)
    else:
        raise ValueError(f"{name} was {value!r}, {expected}")
    if not round(least_s * 1e9) <= found <= round(most_s * 1e9):
        raise ValueError(f"{name} was {value!r}, {expected}")
    return found


@overload
def seconds(name: str, value: Duration) -> float: ...


@overload
def seconds(name: str, value: Duration | None) -> float | None: ...


def seconds(name: str, value: object) -> float | None:
    """Return a duration in seconds, None as it is. Raises TypeError for anything but a number or a `timedelta`."""
    if value is None or isinstance(value, float):
        return value
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} was {value!r:.80}, expected seconds, as a number or a timedelta")
    return float(value)


def as_bytes(name: str, value: object) -> bytes:
    """Return a topic, prefix or symbol as bytes; text is encoded as UTF-8. Raises TypeError for any other type."""
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise TypeError(f"{name} was {value!r:.80} ({type(value).__name__}), expected str or bytes")
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} was {value!r:.80}, expected text that UTF-8 can encode, or bytes") from None


def all_as_bytes(name: str, values: Iterable[object]) -> list[bytes]:
    """Return topics, prefixes or symbols as bytes. Raises TypeError as `as_bytes`, or when they are a single one."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise TypeError(f"{name} was {values!r:.80}, expected a list or tuple of str or bytes")
    return [value if type(value) is bytes else as_bytes(name, value) for value in values]


def decorator_prefix(prefix: object, decorator: str) -> bytes:
    """Return a decorator's prefix as bytes. Raises TypeError as `as_bytes`."""
    if callable(prefix):
        raise TypeError(
            f'prefix was {prefix!r}, expected str or bytes: write @subscriber.{decorator}("") to receive all topics'
        )
    return as_bytes("prefix", prefix)


def name_of(function: object) -> str:
    """Return the name of a function for messages; for a lambda also file and line."""
    name = getattr(function, "__qualname__", None) or repr(function)
    code = getattr(function, "__code__", None)
    if code is None or getattr(function, "__name__", "") != "<lambda>":
        return name
    return f"{name} ({Path(code.co_filename).name}, line {code.co_firstlineno})"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " (did you mean ...?)" with the nearest of the known names, or "" if none is near."""
    near = get_close_matches(name, known, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def names_of(setting: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return some names as a tuple. Raises TypeError for a single text or anything else, ValueError if empty."""
    found = () if isinstance(names, str | bytes) else tuple(names)
    if not all(isinstance(name, str) for name in found) or isinstance(names, str | bytes):
        raise TypeError(f"{setting} was {names!r}, expected names, such as ('ts_event', 'price')")
    if not found:
        raise ValueError(f"{setting} was {names!r}, expected at least one name")
    return found


def message_types_of(message_type: str | Iterable[str]) -> tuple[str, ...]:
    """Return one or several message types as a tuple. Raises ConfigError for anything else."""
    given: Any = message_type
    found = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else ()
    if not found or not all(found) or not all(isinstance(each, str) for each in found) or len(set(found)) < len(found):
        raise ConfigError(f"message_type was {given!r:.80}, expected a message type, or a list of several, each once")
    return found


def check_function(function: object, *arguments: str) -> None:
    """Raise TypeError unless `function` can be called with these arguments and runs when called."""
    expected = f"expected a function of ({', '.join(arguments)})"
    if not callable(function):
        raise TypeError(f"callback was {function!r}, {expected}")
    name = name_of(function)
    is_lazy = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
    if is_lazy or inspect.isgeneratorfunction(function):
        kind = "async" if is_lazy else "a generator"
        raise TypeError(f"callback {name} was {kind}, {expected}: a call of it would do nothing")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # some C functions have no signature
    try:
        signature.bind(*arguments)
    except TypeError:
        raise TypeError(f"callback {name} takes {signature}, {expected}") from None
