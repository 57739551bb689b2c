"""Market times as people write them, and as they read them."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_NS = (1 << 63) - 1
_DATE_DIGITS = 8


def market_time_ns(text: str, start_ns: int, stop_ns: int, time_zone: str = "UTC") -> int:
    """Nanoseconds since the epoch of a number of them, or of an ISO 8601 time, exact to the microsecond.

    A time without an offset is one of `time_zone`. A time of day alone means the first one from `start_ns` to
    `stop_ns`, or if there is none that of the day of `start_ns`. Raises ValueError when it is no such time.
    """
    zone = ZoneInfo(time_zone)
    try:
        if "T" not in text and "-" not in text and ":" in text:
            return _time_of_day_ns(time.fromisoformat(text), start_ns, stop_ns, zone)
        is_ns = text.isdecimal() and len(text) > _DATE_DIGITS
        ns = int(text) if is_ns else _since_epoch_ns(datetime.fromisoformat(text), zone)
    except (ValueError, OverflowError):
        ns = -1
    if not 0 <= ns <= _LAST_NS:
        raise ValueError(
            f"time was {text!r}, expected ns since 1970 or an ISO 8601 time such as 2019-12-30T14:30:00Z or 14:30"
        )
    return ns


def time_text(ts_ns: int) -> str:
    """A market time as ISO 8601 in UTC, to the microsecond: what `market_time_ns` takes."""
    return (_EPOCH + timedelta(microseconds=ts_ns // 1_000)).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _time_of_day_ns(moment: time, start_ns: int, stop_ns: int, zone: ZoneInfo) -> int:
    first = (_EPOCH + timedelta(microseconds=start_ns // 1_000)).astimezone(moment.tzinfo or zone).date()
    days = [_since_epoch_ns(datetime.combine(first + timedelta(day), moment), zone) for day in (0, 1)]
    return next((ns for ns in days if start_ns <= ns <= stop_ns), days[0])


def _since_epoch_ns(moment: datetime, zone: ZoneInfo) -> int:
    since = (moment if moment.tzinfo else moment.replace(tzinfo=zone)) - _EPOCH
    return since // timedelta(microseconds=1) * 1_000
