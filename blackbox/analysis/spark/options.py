"""The options of the data source."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from blackbox.documents import DecodeError, Decoder
from blackbox.errors import ConfigError
from blackbox.feed.schema.prices import Prices

MEGABYTE: Final = 1 << 20
_SIZE: Final = re.compile(r"0*([0-9]{1,19})(?:([kmgtp]?)b?|([kmgtp])ib)")
"""Sizes in Spark's notation."""
_MOST: Final = (1 << 63) - 1


class Options(NamedTuple):
    """The options of one `load`, checked."""

    paths: tuple[str, ...]
    """Days, feeds or roots of recordings, or patterns for them."""
    message_type: str | None = None
    """Read only messages of this type, with its fields instead of the payload."""
    prices: Prices = "decimal"
    """The form of prices in the fields of `message_type`."""
    on_damage: Literal["error", "skip"] = "error"
    """Handling of damage: an error, or skip it."""
    partition_bytes: int = 64 * MEGABYTE
    """Maximum stored bytes of a partition; a larger record gets its own partition."""
    metrics: str | None = None
    """Directory for JSON files in which planner and tasks report what they read and skipped."""
    starting: Literal["earliest", "latest"] = "earliest"
    """Start of a stream without a checkpoint."""
    max_bytes: int | None = None
    """Maximum stored bytes of a batch of a stream; a larger record gets its own batch."""

    @classmethod
    def of(cls, told: Mapping[str, str]) -> Options:
        """Return the options passed by Spark. Keys are case-insensitive. Raises ConfigError naming an invalid one."""
        given = {key.lower(): value for key, value in told.items()}
        for key in given:
            if key not in _KNOWN and not key.startswith("__"):  # Spark's own options
                near = difflib.get_close_matches(key, _KNOWN, n=1)
                hint = f" (did you mean {_KNOWN[near[0]]!r}?)" if near else ""
                raise ConfigError(f"option was {key!r}, expected one of: {', '.join(_KNOWN.values())}{hint}")
        if "engine" in given and _one_of(given, "engine", "java", "python") == "java":
            what = "this session lacks the connector's jar, or the query is a stream"
            raise ConfigError(f"option 'engine' was 'java', expected 'python': {what}")
        _one_of(given, "checksums", "true", "false")  # this engine always checks them
        return cls(
            _paths(given),
            given.get("messagetype"),
            _one_of(given, "prices", "decimal", "float", "integer"),  # type: ignore[arg-type]
            _one_of(given, "onDamage", "error", "skip"),  # type: ignore[arg-type]
            _size(given, "partitionBytes") or 64 * MEGABYTE,
            _directory(given, "metrics"),
            _one_of(given, "startingOffsets", "earliest", "latest"),  # type: ignore[arg-type]
            _size(given, "maxBytesPerTrigger"),
        )


NAMES: Final = (
    "path",
    "paths",
    "engine",
    "messageType",
    "prices",
    "onDamage",
    "checksums",
    "partitionBytes",
    "metrics",
    "startingOffsets",
    "maxBytesPerTrigger",
)
_KNOWN: Final = {name.lower(): name for name in NAMES}


_PATHS: Final = Decoder[list[str]]("json", list[str])


def _paths(given: dict[str, str]) -> tuple[str, ...]:
    found = [given["path"]] if "path" in given else []
    if "paths" in given:
        try:
            found += _PATHS.decode(given["paths"])
        except DecodeError:
            raise ConfigError(f"option 'paths' was {given['paths']!r}, expected a JSON list of texts") from None
    if not found:
        raise ConfigError("there was no path, expected load(path), load([path, ...]) or OPTIONS (path '...')")
    return tuple(found)


def _one_of(given: dict[str, str], name: str, *values: str) -> str:
    """Return one of `values`. The first is the default."""
    value = given.get(name.lower(), values[0]).lower()
    if value not in values:
        raise ConfigError(f"option {name!r} was {value!r}, expected one of: {', '.join(values)}")
    return value


def _directory(given: dict[str, str], name: str) -> str | None:
    text = given.get(name.lower())
    if text == "":
        raise ConfigError(f"option {name!r} was '', expected a directory")
    return text


def _size(given: dict[str, str], name: str) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    found = _SIZE.fullmatch(text.strip().lower())
    size = int(found[1]) << 10 * " kmgtp".index(found[2] or found[3] or " ") if found else 0
    if not 1 <= size <= _MOST:
        raise ConfigError(f"option {name!r} was {text!r}, expected bytes, such as 64m or 67108864")
    return size
