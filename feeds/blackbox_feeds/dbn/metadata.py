"""The metadata in front of a DBN stream: what it says of the records, and what their instruments are called.

    DBN 3 | version 1 | length 4 | what `databento_dbn` decodes | records ...

The records are those of `blackbox_feeds.dbn.scan`.
"""

from __future__ import annotations

from bisect import bisect_right
from datetime import date, time
from types import ModuleType
from typing import Any, Final

from blackbox.errors import ConfigError, SourceError
from blackbox.timestamps import ns_on
from blackbox_feeds.dbn.records import METADATA
from blackbox_feeds.io.window import FileWindow

VERSIONS: Final = (1, 2, 3)
_HEAD_BYTES: Final = 8
_LONGEST: Final = 16 << 20
"""Longer metadata is taken for damage; a message must hold it."""
_ALWAYS, _NEVER = -(1 << 63), (1 << 63) - 1

Interval = tuple[int, int, bytes]
"""From when, until when (ns since 1970-01-01 UTC), symbol."""


class DbnMetadata:
    """The metadata at the start of a window, which is moved on until all of it is in view.

    Raises:
        SourceError: it is not there, or not whole, or not of a known version.
        ConfigError: `databento-dbn` is not installed.
    """

    def __init__(self, window: FileWindow) -> None:
        size = _size(window)
        while len(window.data) < size and not window.last:
            window.slide(0)
        self.payload: bytes = window.data[:size].tobytes()
        """All of it, as it stands in the file."""
        if len(self.payload) < size:
            raise SourceError(window.ending(0, "metadata") or f"{window.path}: it ends inside its metadata")
        self._decoded, self._mappings = _decoded(self.payload, window.path)
        self.start: int = min(self._decoded.start, _NEVER)
        """Where the time range that was asked for starts. Unit: ns since 1970-01-01 UTC."""
        self.ts_out: bool = self._decoded.ts_out
        """Whether a send time is appended to each record."""
        self.is_tbbo = str(self._decoded.schema) == "tbbo"
        """Whether its `mbp-1` records are those of trades alone."""
        self._intervals = self._by_instrument()
        bounds = {bound for each in self._intervals.values() for start, end, _ in each for bound in (start, end)}
        self.bounds: list[int] = sorted(bounds)
        """When the symbol of an instrument may change. Unit: ns since 1970-01-01 UTC."""

    def symbol(self, instrument: int, segment: int) -> bytes:
        """Return what an instrument is called between `bounds[segment - 1]` and `bounds[segment]`; else its number."""
        time = self.bounds[segment - 1] if segment else _ALWAYS
        for start, end, name in self._intervals.get(instrument, ()):
            if start <= time < end:
                return name
        return b"%d" % instrument

    def segment(self, time: int) -> int:
        """Return the segment of a time, as `symbol` takes it."""
        return bisect_right(self.bounds, time)

    def _by_instrument(self) -> dict[int, list[Interval]]:
        """The mapped symbols of each instrument: symbols were asked for and ids delivered, or the other way round."""
        known: dict[int, list[Interval]] = {}
        numbers_first = str(self._decoded.stype_in) == "instrument_id"
        for asked, intervals in self._mappings.items():
            for interval in intervals:
                number, name = (asked, interval["symbol"]) if numbers_first else (interval["symbol"], asked)
                if number.isdecimal() and name:
                    bounds = _ns(interval["start_date"]), _ns(interval["end_date"])
                    known.setdefault(int(number), []).append((*bounds, name.encode()))
        return known


def _ns(day: date) -> int:
    return max(_ALWAYS, min(ns_on(day, time(), "UTC"), _NEVER))


def _size(window: FileWindow) -> int:
    """Return how many bytes the metadata takes, as its head says."""
    while len(window.data) < _HEAD_BYTES and not window.last:
        window.slide(0)
    head = window.data[:_HEAD_BYTES].tobytes()
    if head[:3] != METADATA[: len(head)] or len(head) < 3:
        raise SourceError(f"{window.path}: the first 3 bytes were {head[:3]!r}, expected {METADATA!r}, those of DBN")
    if len(head) < _HEAD_BYTES:
        raise SourceError(window.ending(0, "metadata") or f"{window.path}: it ends inside its metadata")
    if head[3] not in VERSIONS:
        raise SourceError(f"{window.path}: DBN version was {head[3]}, expected 1 to {VERSIONS[-1]}")
    size = _HEAD_BYTES + int.from_bytes(head[4:], "little")
    if size > _LONGEST:
        raise SourceError(f"{window.path}: DBN metadata had {size} bytes, expected at most {_LONGEST}")
    return size


def _decoded(payload: bytes, path: str) -> tuple[Any, dict[str, Any]]:
    """Return the metadata, and its mappings, each a list of intervals."""
    library: Any = _databento_dbn()
    try:
        metadata = library.Metadata.decode(payload, upgrade_policy=library.VersionUpgradePolicy.AS_IS)
        return metadata, metadata.mappings
    except library.DBNError as error:
        raise SourceError(f"{path}: its DBN metadata cannot be decoded: {error}") from error


def _databento_dbn() -> ModuleType:
    try:
        import databento_dbn
    except ImportError as error:
        raise ConfigError(
            f"reading DBN needs databento-dbn, which is not installed: pip install 'blackbox-md[dbn]' ({error})"
        ) from error
    return databento_dbn
