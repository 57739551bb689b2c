"""The metadata at the start of a DBN stream: its version, and the symbols of its instruments.

    DBN 3 | version 1 | length 4 | decoded by `databento_dbn` | records ...

The records are read by `blackbox_feeds.dbn.scan`.
"""

from __future__ import annotations

from datetime import date, time
from types import ModuleType
from typing import Any, Final

from blackbox.errors import ConfigError, SourceError
from blackbox.timestamps import ns_on
from blackbox_feeds.dbn.records import METADATA, NEWEST, SAME_IN_ALL_VERSIONS, VERSIONS
from blackbox_feeds.io.window import FileWindow

_HEAD_BYTES: Final = 8
_LONGEST: Final = 16 << 20
"""Longer metadata counts as damage; it must fit into a message."""
_ALWAYS, _NEVER = -(1 << 63), (1 << 63) - 1

_KEPT: Final = SAME_IN_ALL_VERSIONS | {"tbbo"}
"""Schemas without records that are upgraded."""

Interval = tuple[int, int, bytes]
"""Start and end (ns since 1970-01-01 UTC), and symbol."""


class DbnMetadata:
    """The metadata of a stream.

    Raises:
        SourceError: it cannot be decoded, or not be upgraded.
        ConfigError: `databento-dbn` is not installed.
    """

    def __init__(self, content: bytes, path: str) -> None:
        """`path`: name of the stream in errors."""
        self.path = path
        self._decoded, self._mappings = _decoded(content, path)
        self.size: int = len(content)
        """Its length in the stream. Unit: bytes."""
        self.version: int = self._decoded.version
        """The version of the records in the file."""
        self.schema: str | None = None if self._decoded.schema is None else str(self._decoded.schema)
        """Databento's schema of the records; None in a stream of several, such as a live session."""
        self.payload: bytes = content if self.schema in _KEPT or self.version == NEWEST else self._upgraded(content)
        """The message that holds it: its bytes in the file, or of the newest version if records may be upgraded."""
        self.start: int = self._decoded.start if self._decoded.start <= _NEVER else 0
        """The start of the requested time range; 0 if it is undefined. Unit: ns since 1970-01-01 UTC."""
        self.ts_out: bool = self._decoded.ts_out
        """True if a send time is appended to each record."""
        self.intervals: dict[int, list[Interval]] = self._by_instrument()
        """The symbols of each instrument."""
        bounds = {bound for each in self.intervals.values() for start, end, _ in each for bound in (start, end)}
        self.bounds: list[int] = sorted(bounds)
        """Times at which the symbol of an instrument may change. Unit: ns since 1970-01-01 UTC."""

    def symbol(self, instrument: int, segment: int) -> bytes | None:
        """Return the symbol of an instrument between `bounds[segment - 1]` and `bounds[segment]`, or None.

        Raises:
            SourceError: it has two symbols at that time.
        """
        time = self.bounds[segment - 1] if segment else _ALWAYS
        names = {name for start, end, name in self.intervals.get(instrument, ()) if start <= time < end}
        if len(names) > 1:
            raise two_symbols(self.path, instrument, *sorted(names)[:2])
        return names.pop() if names else None

    def _by_instrument(self) -> dict[int, list[Interval]]:
        """Return the mapped symbols of each instrument: requested symbols with delivered ids, or the reverse."""
        known: dict[int, list[Interval]] = {}
        numbers_first = str(self._decoded.stype_in) == "instrument_id"
        for asked, intervals in self._mappings.items():
            for interval in intervals:
                number, name = (asked, interval["symbol"]) if numbers_first else (interval["symbol"], asked)
                if number.isdecimal() and name:
                    bounds = _ns(interval["start_date"]), _ns(interval["end_date"])
                    known.setdefault(int(number), []).append((*bounds, name.encode()))
        return known

    def _upgraded(self, content: bytes) -> bytes:
        """Return the metadata of the same stream in the newest version."""
        library: Any = databento_dbn()
        policy = library.VersionUpgradePolicy.UPGRADE_TO_V3
        try:
            encoded: bytes = library.Metadata.decode(content, upgrade_policy=policy).encode()
        except library.DBNError as error:
            raise SourceError(f"{self.path}: its DBN metadata cannot be upgraded to version 3: {error}") from error
        return encoded


def read_metadata(window: FileWindow) -> DbnMetadata:
    """Return the metadata at the start of a window, which slides until all of it is in view.

    Raises:
        SourceError: it is missing, incomplete, or of an unknown version.
        ConfigError: `databento-dbn` is not installed.
    """
    size = _size(window)
    while len(window.data) < size and not window.last:
        window.slide(0)
    content: bytes = window.data[:size].tobytes()
    if len(content) < size:
        raise SourceError(window.ending(0, "metadata") or f"{window.path}: it ends inside its metadata")
    return DbnMetadata(content, window.path)


def two_symbols(path: str, instrument: int, first: bytes, second: bytes) -> SourceError:
    """Return the error for an instrument with two symbols."""
    told = [name.decode(errors="backslashreplace") for name in (first, second)]
    return SourceError(
        f"{path}: instrument {instrument} has two symbols at the same time, {told[0]!r} and {told[1]!r}: request "
        "one of them, or choose a topic template without {symbol}"
    )


def _ns(day: date) -> int:
    return max(_ALWAYS, min(ns_on(day, time(), "UTC"), _NEVER))


def _size(window: FileWindow) -> int:
    """Return the size of the metadata from its head."""
    while len(window.data) < _HEAD_BYTES and not window.last:
        window.slide(0)
    head = window.data[:_HEAD_BYTES].tobytes()
    if head[:3] != METADATA[: len(head)] or len(head) < 3:
        raise SourceError(f"{window.path}: the first 3 bytes were {head[:3]!r}, expected {METADATA!r}, those of DBN")
    if len(head) < _HEAD_BYTES:
        raise SourceError(window.ending(0, "metadata") or f"{window.path}: it ends inside its metadata")
    if head[3] not in VERSIONS:
        raise SourceError(f"{window.path}: DBN version was {head[3]}, expected 1 to {NEWEST}")
    size = _HEAD_BYTES + int.from_bytes(head[4:], "little")
    if size > _LONGEST:
        raise SourceError(f"{window.path}: DBN metadata had {size} bytes, expected at most {_LONGEST}")
    return size


def _decoded(payload: bytes, path: str) -> tuple[Any, dict[str, Any]]:
    """Return the metadata, and its mappings, each a list of intervals."""
    library: Any = databento_dbn()
    try:
        metadata = library.Metadata.decode(payload, upgrade_policy=library.VersionUpgradePolicy.AS_IS)
        return metadata, metadata.mappings
    except library.DBNError as error:
        raise SourceError(f"{path}: its DBN metadata cannot be decoded: {error}") from error


def databento_dbn() -> ModuleType:
    """Return the library. Raises ConfigError if it is not installed."""
    try:
        import databento_dbn as library
    except ImportError as error:
        raise ConfigError(
            f"reading DBN needs databento-dbn, which is not installed: pip install 'blackbox-md[dbn]' ({error})"
        ) from error
    return library
