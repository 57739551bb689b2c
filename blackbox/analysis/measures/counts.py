"""Numbers of messages over time, in total and by type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Window, functions

from blackbox.analysis.measures.inputs import Length, check_free, instant, length_ns, ns_of, require

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def message_rates(
    messages: DataFrame, every: Length = "1s", by: Sequence[str] = (), time: str = "ts_event"
) -> DataFrame:
    """Return the number of messages in each interval [start, start + every) that has any.

    Intervals start at whole multiples of `every` since 1970-01-01 UTC. Messages without a known time (0 or null) are in
    one row with a null `start`. `per_second` is the number of messages divided by the length of the interval, a double.

    Columns: `by`, `start` (bigint ns), `start_time`, `messages`, `per_second`.
    """
    step = length_ns(every, "every")
    counts = _counted(messages, step, by, time, "messages")
    start, number = functions.col("start"), functions.col("messages")
    return counts.select(
        *by,
        start,
        instant(start).alias("start_time"),
        number,
        functions.when(start.isNotNull(), number * (10**9 / step)).alias("per_second"),
    )


def message_mix(
    messages: DataFrame,
    every: Length = "1m",
    by: Sequence[str] = (),
    message_type: str = "type",
    time: str = "ts_event",
) -> DataFrame:
    """Return the number of messages of each type in each interval of `message_rates`, and their share.

    `share` is the fraction of the messages of the same interval and `by`; the shares of an interval sum to 1. Messages
    without a type have the type null.

    Columns: `by`, `start` (bigint ns), `start_time`, the column `message_type`, `messages`, `share`.
    """
    step = length_ns(every, "every")
    counts = _counted(messages, step, [*by, message_type], time, "messages")
    start, number = functions.col("start"), functions.col("messages")
    whole = functions.sum(number).over(Window.partitionBy(*by, "start"))
    return counts.select(
        *by, start, instant(start).alias("start_time"), message_type, number, (number / whole).alias("share")
    )


def _counted(messages: DataFrame, step: int, by: Sequence[str], time: str, name: str) -> DataFrame:
    require(messages, [*by, time], "messages")
    check_free(by, ("start", "start_time", "messages", "per_second", "share"))
    start: Column = ns_of(messages, time)
    start = start - functions.pmod(start, functions.lit(step).cast("bigint"))
    return messages.groupBy(*by, start.alias("start")).agg(functions.count(functions.lit(1)).alias(name))
