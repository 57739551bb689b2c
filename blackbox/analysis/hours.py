"""Trading hours: a session of every day, told by the clock on the wall of the market's zone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import time
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions

from blackbox.analysis.inputs import floor_div
from blackbox.errors import ConfigError
from blackbox.timestamps import zone_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SESSION: Final = "session"
OPENS: Final = "_opens"
CLOSES: Final = "_closes"
_DAY_US: Final = 86_400 * 10**6


@dataclass(frozen=True)
class Hours:
    """A session from `open` to `close` of every day in `zone`.

    The instant of the open belongs to it, that of the close does not. A session that closes at or before the time at
    which it opens ends on the next day; its date is that of its open. Open and close are times on the wall: across a
    change of the clocks the session has an hour less or more. A time that the clocks skip is taken as the one an hour
    later; of one that they show twice, the first.

    Raises ConfigError when a time or the zone is not one.
    """

    open: str = "09:30"
    """Such as "09:30" or "09:30:00.5"."""
    close: str = "16:00"
    zone: str = "America/New_York"

    def __post_init__(self) -> None:
        _microseconds(self.open)
        _microseconds(self.close)
        try:
            zone_of(self.zone)
        except ValueError:
            raise ConfigError(f"zone was {self.zone!r}, expected one such as 'America/New_York'") from None

    def select(self, frame: DataFrame, ns: Column) -> DataFrame:
        """The rows of which the time `ns` is in a session; with its date, and its bounds in ns, in new columns."""
        opens, closes = _microseconds(self.open), _microseconds(self.close)
        wall = functions.unix_micros(
            functions.from_utc_timestamp(functions.timestamp_micros(floor_div(ns, 1_000)), self.zone)
        )
        day = functions.col("_day")
        # Near a change of the clocks the one on the wall tells a neighbour of the day meant: what opened last decides.
        nearby = (ns >= self._ns(day + 1, opens)).cast("bigint") - (ns < self._ns(day, opens)).cast("bigint")
        return (
            frame.withColumn("_day", floor_div(wall - opens, _DAY_US))
            .withColumn("_day", day + nearby)
            .withColumn(OPENS, self._ns(functions.col("_day"), opens))
            .withColumn(CLOSES, self._ns(functions.col("_day"), closes + _DAY_US * (closes <= opens)))
            .where((ns >= functions.col(OPENS)) & (ns < functions.col(CLOSES)))
            .withColumn(SESSION, functions.date_from_unix_date(functions.col("_day").cast("int")))
            .drop("_day")
        )

    def _ns(self, day: Column, of_day: int) -> Column:
        wall = functions.timestamp_micros(day * _DAY_US + of_day)
        return functions.unix_micros(functions.to_utc_timestamp(wall, self.zone)) * 1_000


def _microseconds(text: str) -> int:
    try:
        at = time.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is not None:
        raise ConfigError(f"a time of day was {text!r}, expected one such as '09:30'")
    return ((at.hour * 60 + at.minute) * 60 + at.second) * 10**6 + at.microsecond
