"""Members of JSON documents in payloads, as numbers, ids and strings."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from blackbox.documents import DecodeError, Decoder

_NUMBER: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")
_LIMIT: Final = 1 << 63

Members = Callable[[bytes | None], tuple[Any, ...]]


def reader_of(within: str, members: Sequence[str | None]) -> Members:
    """Return a function that reads members of the JSON document at the end of a payload; None if one is missing.

    The document begins at the first `{`. Members are looked up in the object `within`, then in the document. A payload
    without a valid document, such as one with text after it, has no members.
    """
    names = {each: f"member_{index}" for index, each in enumerate(members) if each}
    fields = [(name, Any, msgspec.field(name=each, default=None)) for each, name in names.items()]
    inner: Any = msgspec.defstruct("Inner", fields)
    either = inner | list[Any] | str | bool | int | float | None
    document = ("inner", either, msgspec.field(name=within, default=None))
    decode = Decoder[Any]("json", msgspec.defstruct("Document", [*fields, document])).decode
    attributes = [names[each] if each else "" for each in members]

    def read(payload: bytes | None) -> tuple[Any, ...]:
        found: Any = None
        if payload is not None and (start := payload.find(b"{")) >= 0:
            with suppress(DecodeError):
                found = decode(payload[start:])
        own = [getattr(getattr(found, "inner", None), name, None) for name in attributes]
        return tuple(
            getattr(found, name, None) if value is None else value for name, value in zip(attributes, own, strict=True)
        )

    return read


def columns_of(read: Members, payloads: Iterable[bytes | None], many: int) -> Iterator[tuple[Any, ...]]:
    """Yield a column for each member. `many`: number of members, needed if there are no payloads."""
    rows = [read(payload) for payload in payloads]
    return zip(*rows, strict=True) if rows else iter(((),) * many)


def number(value: Any) -> float | None:
    """Return a JSON number, which may be in a string; None for other values and for infinite doubles."""
    if isinstance(value, str):
        value = float(value) if _NUMBER.fullmatch(value) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def integer(value: Any) -> int | None:
    """Return a JSON integer, which may be in a string; None for other values and for more than 64 bits."""
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        value = int(value)
    fits = isinstance(value, int) and not isinstance(value, bool) and -_LIMIT <= value < _LIMIT
    return value if fits else None


def text(value: Any) -> str | None:
    """Return a JSON value as a string; None for null."""
    return value if value is None or isinstance(value, str) else msgspec.json.encode(value).decode()
