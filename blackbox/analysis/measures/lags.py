"""Percentiles of the times between venue, publisher and receiver, approximated by sketches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions

from blackbox.analysis.measures.inputs import Length, check_free, instant, length_ns, ns_of, require
from blackbox.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PERCENTILES: Final = (0.5, 0.9, 0.99, 0.999)


def lag_percentiles(
    messages: DataFrame,
    begin: str = "ts_out",
    end: str = "ts_recv",
    by: Sequence[str] = (),
    every: Length | None = None,
    percentiles: Sequence[float] = PERCENTILES,
    accuracy: int = 10_000,
) -> DataFrame:
    """Return the distribution of `end` - `begin`, in ns: by default the lag from the publisher's send to the receiver.

    `begin="ts_event", end="ts_out"` is the latency of the publisher, or the age of the data in a replay. Messages
    without one of the two times (0 or null) are left out. A negative lag is caused by a difference of two clocks; it
    counts in the percentiles, and in `negative`.

    Percentile p is an observed lag: the smallest one that at least the fraction p of all lags do not exceed. A sketch
    (Greenwald and Khanna's) finds it, so its rank among n sorted lags may be off by n / `accuracy`. Sketches of
    partitions are merged: there is no global sort.

    Args:
        messages: rows with these columns.
        begin: bigint ns or timestamp.
        end: likewise.
        by: columns to group by.
        every: also group by intervals of `end` of this length, as in `message_rates`, with the column `start`.
        percentiles: from 0 to 1.
        accuracy: 1 / the error; memory grows with it.

    Columns: `by`, with `every` `start` and `start_time`, `messages`, `negative`, `min_ns`, `max_ns`, and for each
    percentile one such as `p50_ns` or `p99_9_ns`.

    Raises ConfigError if a column is missing or an argument is invalid.
    """
    if not percentiles or not all(0 <= p <= 1 for p in percentiles):
        raise ConfigError(f"percentiles were {list(percentiles)}, expected numbers from 0 to 1")
    if accuracy < 1:
        raise ConfigError(f"accuracy was {accuracy}, expected 1 or more")
    require(messages, [*by, begin, end], "messages")
    check_free(by, ("start", "start_time", "messages", "negative", "min_ns", "max_ns"))
    stop = ns_of(messages, end)
    groups = [functions.col(name) for name in by]
    if every is not None:
        step = functions.lit(length_ns(every, "every")).cast("bigint")
        groups.append((stop - functions.pmod(stop, step)).alias("start"))
    rows = messages.select(*groups, (stop - ns_of(messages, begin)).alias("_lag")).dropna(subset=["_lag"])
    lag = functions.col("_lag")
    found = rows.groupBy(*by, *["start"] * (every is not None)).agg(
        functions.count(lag).alias("messages"),
        functions.count_if(lag < 0).alias("negative"),
        functions.min(lag).alias("min_ns"),
        functions.max(lag).alias("max_ns"),
        functions.percentile_approx(lag, list(percentiles), accuracy).alias("_found"),
    )
    columns = [functions.col("_found")[place].alias(_name(p)) for place, p in enumerate(percentiles)]
    if every is not None:
        columns.insert(0, instant(functions.col("start")).alias("start_time"))
    return found.select("*", *columns).drop("_found")


def _name(percentile: float) -> str:
    return f"p{100 * percentile:.10g}_ns".replace(".", "_")
