"""The expected messages of a DBN stream, from Databento's own decoder and plain rules: topic, time, payload, fields."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import databento_dbn

UNDEFINED: Final = (1 << 64) - 1
DAY_NS: Final = 86_400 * 10**9
BARS: Final = {
    0x11: DAY_NS,
    0x20: 10**9,
    0x21: 60 * 10**9,
    0x22: 3_600 * 10**9,
    0x23: DAY_NS,
    0x24: DAY_NS,
}
"""Interval of the bars of each type. Unit: ns."""
EVENTS: Final = {0x00: 32, 0x01: 32, 0x0A: 32, 0xA0: 40}
"""Offset of `ts_recv` in the types that the venue published at `ts_event`."""
RECEIVED: Final = {
    **dict.fromkeys((0xC3, 0xC4, 0xB1, 0xC0, 0xC1, 0xC2), 32),
    **dict.fromkeys((0x12, 0x13, 0x14, 0x18), 16),
}
"""Offset of `ts_recv` in the types that are known from that time on."""
FLAGS: Final = {0x00: 30, 0x01: 30, 0x0A: 30, 0xA0: 36}
SNAPSHOT: Final = 1 << 5


def known_at(payload: bytes) -> int | None:
    """Return when the content of a record was known, ns since 1970-01-01 UTC; None if it has no time."""
    rtype = payload[1]
    (happened,) = struct.unpack_from("<Q", payload, 8)
    if rtype in BARS:
        return happened + BARS[rtype] if _is_time(happened) else None
    times = [happened]
    if rtype in EVENTS:
        times.append(*struct.unpack_from("<Q", payload, EVENTS[rtype]))
        if payload[FLAGS[rtype]] & SNAPSHOT:
            times.reverse()
    elif rtype in RECEIVED:
        times.insert(0, *struct.unpack_from("<Q", payload, RECEIVED[rtype]))
    return next((time for time in times if _is_time(time)), None)


def _is_time(time: int) -> bool:
    return 0 < time < 1 << 63


class Expected(NamedTuple):
    topic: str
    ts_event: int
    payload: bytes
    record: Any


def expected_messages(stream: bytes) -> list[Expected]:
    """Return the records of an unpacked stream, upgraded to version 3, in file order."""
    policy: Any = databento_dbn.VersionUpgradePolicy.UPGRADE_TO_V3
    decoder = databento_dbn.DBNDecoder(upgrade_policy=policy)
    decoder.write(stream)
    decoded: list[Any] = decoder.decode()
    metadata, *records = decoded
    last, found = metadata.start, []
    live: list[Mapped] = []
    live_since: int | None = None
    for record in records:
        payload = bytes(record)
        time = known_at(payload)
        last = last if time is None else time
        if isinstance(record, databento_dbn.SymbolMappingMsg):
            live_since = last if live_since is None else live_since
            mapped = _mapped_by(record)
            live = _in_force(live, mapped)
            name = mapped.name or _mapped(metadata, record, last)
        else:
            time = _index_time(record, last)
            name = next((each.name for each in live if each.holds(record.instrument_id, time)), "")
            name = name or _mapped(metadata, record, last)
        last = max(last, live_since or 0)
        found.append(Expected(f"{name}.{_kind(metadata, payload)}", last, payload, record))
    return found


class Mapped(NamedTuple):
    """A name that a symbol-mapping record gives an instrument for a time."""

    instrument: int
    name: str
    start: int
    end: int

    def holds(self, instrument: int, time: int) -> bool:
        return self.instrument == instrument and self.start <= time < self.end


def _mapped_by(record: Any) -> Mapped:
    out, asked, number = record.stype_out_symbol, record.stype_in_symbol, record.instrument_id
    name = asked if not out or out == str(number) else out
    start = record.start_ts if record.start_ts < 1 << 63 else -(1 << 63)
    end = record.end_ts if max(start, 0) < record.end_ts < 1 << 63 else (1 << 63) - 1
    return Mapped(number, name, start, end)


def _in_force(live: list[Mapped], new: Mapped) -> list[Mapped]:
    """Return the mappings in force with a new one of an output symbol."""
    kept = []
    start = new.start
    for old in live:
        meets = old.start <= new.end and new.start <= old.end
        if (old.instrument, old.name) == (new.instrument, new.name):
            if meets:
                start = min(start, old.start)
            else:
                kept.append(old)
        elif old.start < new.end and new.start < old.end and (old.instrument == new.instrument or old.name == new.name):
            kept.append(old._replace(end=new.start) if old.start <= new.start else old._replace(start=new.end))
        else:
            kept.append(old)
    return [*kept, new._replace(start=start)] if new.name else kept


def _index_time(record: Any, last: int) -> int:
    return next((int(time) for time in (record.ts_index, record.ts_event) if _is_time(time)), last)


def _mapped(metadata: Any, record: Any, last: int) -> str:
    if record.instrument_id == 0:
        return "#system"
    time = _index_time(record, last)
    day = datetime.fromtimestamp(time // 10**9, UTC).date()
    numbers_first = str(metadata.stype_in) == "instrument_id"
    for asked, intervals in metadata.mappings.items():
        for each in intervals:
            number, name = (asked, each["symbol"]) if numbers_first else (each["symbol"], asked)
            if number == str(record.instrument_id) and name and each["start_date"] <= day < each["end_date"]:
                return str(name)
    return str(record.instrument_id)


KINDS: Final = {
    0x00: "trades", 0x01: "mbp-1", 0x0A: "mbp-10", 0x11: "ohlcv", 0x12: "status", 0x13: "definition",
    0x14: "imbalance", 0x15: "error", 0x16: "symbol-mapping", 0x17: "system", 0x18: "statistics",
    0x20: "ohlcv-1s", 0x21: "ohlcv-1m", 0x22: "ohlcv-1h", 0x23: "ohlcv-1d", 0x24: "ohlcv-eod", 0xA0: "mbo",
    0xB1: "cmbp-1", 0xC0: "cbbo-1s", 0xC1: "cbbo-1m", 0xC2: "tcbbo", 0xC3: "bbo-1s", 0xC4: "bbo-1m",
}  # fmt: skip


def _kind(metadata: Any, payload: bytes) -> str:
    return "tbbo" if payload[1] == 0x01 and str(metadata.schema) == "tbbo" else KINDS[payload[1]]


def field_of(record: Any, name: str) -> Any:
    """Return a field of a decoded record as an integer or bytes."""
    if name == "length":
        return record.record_size() // 4
    kind, _, place = name.rpartition("_")
    if place.isdecimal() and len(place) == 2 and hasattr(record, "levels"):
        return getattr(record.levels[int(place)], kind)
    value = getattr(record, name)
    value = getattr(value, "value", value)
    if isinstance(value, str):
        return value.encode().rstrip(b"\0")
    return UNSET if value is None else int(value)


UNSET: Final = 255
"""The byte of an enumeration that Databento's classes show as None."""
