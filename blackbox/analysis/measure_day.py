"""Compute the figures of a recorded day for the page that `blackbox.analysis.report.page` draws."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy
from pyspark.sql import functions

from blackbox import __version__
from blackbox.analysis.measures.bars import time_bars
from blackbox.analysis.measures.books import order_book
from blackbox.analysis.measures.counts import message_mix
from blackbox.analysis.measures.lags import lag_percentiles
from blackbox.analysis.measures.prices import typed_quotes, typed_trades
from blackbox.analysis.measures.quotes import with_spread
from blackbox.analysis.report.axis import STEPS_NS
from blackbox.analysis.report.day_report import (
    BASIS_POINTS,
    PRICE,
    Bar,
    DayReport,
    Instrument,
    Lag,
    Missing,
    Mix,
    SpreadPoint,
)
from blackbox.archive.read.filter import Clock
from blackbox.archive.recording import Recording
from blackbox.book.feed import load_book_feed
from blackbox.errors import ConfigError
from blackbox.feed.schema.schema import QuoteFields, TradeFields

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_INTERVALS: Final = 420
"""Most intervals of the chart of messages over time."""
_BARS: Final = 100
"""Most bars of one symbol."""
_OUTSIDE: Final = 0.005
"""Fraction of the messages at either end that may be left out of the chart."""
_PERCENTILES: Final = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9995, 0.9999)
_LONGEST_LAG_NS: Final = 3_600 * 10**9
"""Messages sent later than this after the event were not sent live."""
_LEAST_GAIN: Final = 1.5
"""Factor by which the rest must widen at least, to leave out the messages at the ends."""
_MOST_DECIMALS: Final = 6
_HALF: Final = 0.5
_SAME: Final = 1e-9
_TEN_THOUSAND: Final = 10_000
_REASONS: Final = {
    "misfit": "of a wrong size",
    "not_trades": "that are not trades",
    "no_size": "without a size",
    "no_price": "without a price",
    "other_type": "of a type that repeats another",
    "repeated": "that repeat an earlier one",
    "broken": "cancelled by the venue",
}
"""Reasons for leaving messages out, by name of the count."""

Progress = Callable[[str], object]
"""Called with the name of the next step."""


def measure_day(
    spark: SparkSession,
    path: str | Path,
    symbols: Sequence[str] = (),
    most: int = 3,
    progress: Progress | None = None,
    broken: bool = False,
) -> DayReport:
    """Compute a day's report with Spark.

    Args:
        spark: the session; its workers must be able to read the recording.
        path: the day's directory.
        symbols: the symbols to show bars and spreads of. Default: the `most` traded ones, or else the most quoted.
        most: number of symbols to choose if none are given.
        progress: called with the name of each step before it begins.
        broken: True to include trades that the venue cancelled in the bars.

    Raises JournalError if the day does not exist, ConfigError if it has no such symbol. Damage is not an error: the
    report lists it.
    """
    return _Day(spark, Path(path), progress or (lambda _: None), broken).report(tuple(symbols), most)


class _Day:
    """One day being measured."""

    def __init__(self, spark: SparkSession, path: Path, progress: Progress, broken: bool) -> None:
        self._spark, self._path, self._progress, self._broken = spark, path, progress, broken
        self._recording = Recording.open(path)
        low, high = self._recording.time_range()
        self._clock: Clock = "ts_event" if high >= low else "ts_out"

    def report(self, symbols: tuple[str, ...], most: int) -> DayReport:
        recording = self._recording
        self._progress("looking for gaps and damage")
        damage, gaps, _ = recording.examine()
        summary = recording.summary()
        self._progress("counting topics")
        counts = recording.counts()
        self._progress("counting messages over time")
        mix = self._mix(sum(counts.values()))
        self._progress("measuring lags")
        lags = self._lags()
        instruments, prices = self._instruments(symbols, most, mix)
        return DayReport(
            feed=recording.feed.name,
            date=str(recording.date),
            schema=recording.feed.schema_name,
            time_zone=recording.feed.time_zone,
            recording=str(self._path),
            clock="market time" if self._clock == "ts_event" else "time of sending",
            messages=sum(counts.values()),
            symbols=len(recording.feed.symbol_rule.symbols(counts)),
            slices=len(recording.feed.slices),
            mix=mix,
            instruments=instruments,
            prices=prices,
            left_out=self._left_out(),
            lags=lags,
            first_ts_out=summary.first_ts_out or 0,
            last_ts_out=summary.last_ts_out or 0,
            gaps=tuple(
                Missing(
                    slice_id=gap.slice_id,
                    first=gap.sequence,
                    count=gap.count,
                    ts_out=gap.ts_out,
                )
                for gap in gaps
            ),
            damage=tuple(map(str, damage)),
            version=__version__,
        )

    def _messages(self, columns: str) -> DataFrame:
        reader = self._spark.read.format("blackbox").option("onDamage", "skip")
        return reader.schema(columns).load(str(self._path))

    def _mix(self, messages: int) -> Mix:
        low, high = self._recording.time_range(self._clock)
        frame = self._messages(f"type string, {self._clock} bigint")
        step = step_of(high - low, _INTERVALS)
        found = _counted(frame, step, self._clock)
        if not found:
            return Mix(start_ns=0, step_ns=1, kinds=(), counts=(), outside=messages)
        first, last = _most_of(found)
        if (last - first) * _LEAST_GAIN < high - low:  # a few outliers would squeeze everything else
            time = functions.col(self._clock)
            frame = frame.where((time >= first) & (time < last + step))
            step = step_of(last + step - first, _INTERVALS)
            found = _counted(frame, step, self._clock)
        return _mix_of(found, step, messages)

    def _lags(self) -> tuple[Lag, ...]:
        frame = self._messages("ts_event bigint, ts_out bigint, ts_recv bigint")
        found = [_lag("sent to received", lag_percentiles(frame, "ts_out", "ts_recv", percentiles=_PERCENTILES))]
        if self._clock == "ts_event":
            found.append(_lag("venue to sent", lag_percentiles(frame, "ts_event", "ts_out", percentiles=_PERCENTILES)))
        return tuple(lag for lag in found if lag is not None and _middle(lag) <= _LONGEST_LAG_NS)

    def _instruments(self, asked: tuple[str, ...], most: int, mix: Mix) -> tuple[tuple[Instrument, ...], str]:
        schema, said = self._recording.schema, []
        trades = typed_trades(self._spark, self._path, "skip", self._broken)
        quotes = typed_quotes(self._spark, self._path, "skip")
        book = not schema.quotes and _has_book(schema.name)
        self._progress("looking for the busiest symbols")
        chosen = asked or _busiest(trades, most) or _busiest(quotes, most)
        if not mix.counts or not chosen:
            return (), "" if trades is not None or quotes is not None else _NO_PRICES.format(schema.name)
        if self._clock == "ts_out":
            return (), _NO_TIMES
        step = step_of(mix.stop_ns - mix.start_ns, _BARS)
        inside = functions.col("ts_event").between(mix.start_ns, mix.stop_ns - 1)
        wanted = functions.col("symbol").isin(*chosen) & inside
        bars: dict[str, list[Bar]] = {}
        spreads: dict[str, tuple[str, list[SpreadPoint]]] = {}
        if trades is not None:
            self._progress("making bars")
            bars = _bars(trades.where(wanted), step)
            if bars:
                said.append(f"Bars are of the trades of type {_types(trades.where(wanted), schema.trades)}.")
        if book:
            self._progress("keeping books")
            payloads = self._messages(
                "date date, symbol string, ts_event bigint, ts_recv bigint, sequence bigint, payload binary"
            )
            quotes = order_book(payloads.where(functions.col("symbol").isin(*chosen)), schema=schema.name)
            said.append("Spreads are of the order book, a quote for each change of its best prices or sizes.")
        if quotes is not None:
            self._progress("measuring spreads")
            spreads = _spreads(quotes.where(wanted), step)
            if spreads and not book:
                said.append(f"Spreads are of the quotes of type {_types(quotes.where(wanted), schema.quotes)}.")
        self._check(asked, bars, spreads)
        made = [_instrument(name, step, bars.get(name, []), *spreads.get(name, (BASIS_POINTS, []))) for name in chosen]
        return tuple(each for each in made if each.bars or each.spreads), " ".join(said)

    def _left_out(self) -> tuple[tuple[int, str], ...]:
        if not self._recording.schema.trades:
            return ()
        self._progress("counting what is left out of trades")
        found = self._recording.trades.left_out()
        counts = {name: getattr(found, name) for name in _REASONS if not (self._broken and name == "broken")}
        return tuple((count, _REASONS[name]) for name, count in counts.items() if count)

    def _check(self, asked: tuple[str, ...], *found: dict[str, Any]) -> None:
        for name in asked:
            if not any(name in each for each in found):
                known = sorted({*found[0], *found[1]})
                there = f", such as {', '.join(known)}" if known else ""
                raise ConfigError(f"symbol was {name!r}, expected one with trades or quotes on that day{there}")


def step_of(span_ns: int, most: int) -> int:
    """Return the shortest round interval (ns) that divides a span into at most `most` parts; else the longest one."""
    longest: int = STEPS_NS[-1]
    return next((step for step in STEPS_NS if span_ns / step <= most), longest)


# Messages over time

_Counted = dict[tuple[int, str], int]
"""Number of messages by (start of interval, type)."""


def _counted(frame: DataFrame, step: int, clock: str) -> _Counted:
    rows = (
        message_mix(frame, step / 1e9, time=clock)
        .select("start", "type", "messages")
        .dropna(subset=["start"])
        .collect()
    )
    return {(start, kind or ""): messages for start, kind, messages in rows}


def _most_of(found: _Counted) -> tuple[int, int]:
    """Return the starts of the first and last interval that remain without the outermost messages at each end."""
    totals: Counter[int] = Counter()
    for (start, _), messages in found.items():
        totals[start] += messages
    starts = sorted(totals)
    reached = numpy.cumsum([totals[start] for start in starts])
    low, high = numpy.searchsorted(reached, (_OUTSIDE * reached[-1], (1 - _OUTSIDE) * reached[-1]))
    return starts[low], starts[min(high, len(starts) - 1)]


def _mix_of(found: _Counted, step: int, messages: int) -> Mix:
    totals: Counter[str] = Counter()
    for (_, kind), many in found.items():
        totals[kind] += many
    kinds = [kind for kind, _ in totals.most_common()]
    first, last = min(start for start, _ in found), max(start for start, _ in found)
    counts = numpy.zeros((len(kinds), (last - first) // step + 1), numpy.int64)
    for (start, kind), many in found.items():
        counts[kinds.index(kind), (start - first) // step] = many
    return Mix(
        start_ns=first,
        step_ns=step,
        kinds=tuple(kinds),
        counts=tuple(map(tuple, counts.tolist())),
        outside=messages - int(counts.sum()),
    )


# Lags


def _lag(name: str, frame: DataFrame) -> Lag | None:
    (row,) = frame.collect()
    if not row["messages"]:
        return None
    values = [row["min_ns"], *row[4:], row["max_ns"]]
    points = zip((0.0, *_PERCENTILES, 1.0), values, strict=True)
    return Lag(name=name, messages=row["messages"], negative=row["negative"], percentiles=tuple(points))


def _middle(lag: Lag) -> int:
    middle: int = next(ns for p, ns in lag.percentiles if p >= _HALF)
    return middle


# Prices

_NO_PRICES: Final = "There are no bars and spreads: the schema {!r} declares no trades and quotes."
_NO_TIMES: Final = "There are no bars and spreads: no message has a market time."


def _has_book(schema: str) -> bool:
    try:
        load_book_feed(schema)
    except ConfigError:
        return False
    return True


def _types(rows: DataFrame, fields: Sequence[TradeFields | QuoteFields]) -> str:
    """Return the message types of these rows, in the order of the schema."""
    names = [each.message_type for each in fields]
    if len({each.rank for each in fields}) > 1:
        there = {row["type"] for row in rows.select("type").distinct().collect()}
        names = [name for name in names if name in there]
    return _listed(names)


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _busiest(frame: DataFrame | None, most: int) -> tuple[str, ...]:
    if frame is None:
        return ()
    rows = frame.groupBy("symbol").count().orderBy(functions.desc("count"), "symbol").limit(most).collect()
    return tuple(row["symbol"] for row in rows)


def _bars(trades: DataFrame, step: int) -> dict[str, list[Bar]]:
    found: dict[str, list[Bar]] = {}
    trades = trades.withColumns({name: functions.col(name).cast("double") for name in ("price", "size")})
    for row in time_bars(trades, step / 1e9).orderBy("symbol", "start").collect():
        prices = row["open"], row["high"], row["low"], row["close"]
        found.setdefault(row["symbol"], []).append(Bar(row["start"], *prices, float(row["volume"]), row["trades"]))
    return found


def _spreads(quotes: DataFrame, step: int) -> dict[str, tuple[str, list[SpreadPoint]]]:
    """Return the spreads of each symbol and their unit: basis points of the mid, if all its mids are positive."""
    price = functions.col("spread").cast("double")
    rows = (
        with_spread(quotes)
        .where("mid is not null")
        .select(
            "symbol",
            (functions.col("ts_event") - functions.pmod("ts_event", functions.lit(step).cast("bigint"))).alias("start"),
            "mid",
            price.alias("price"),
            functions.when(functions.col("mid") > 0, price / functions.col("mid") * _TEN_THOUSAND).alias("points"),
        )
    )
    measures = [functions.min("mid").alias("least")]
    for unit in ("price", "points"):
        measures.append(functions.mean(unit).alias(unit))
        measures.append(functions.percentile_approx(unit, [0.1, 0.9]).alias(f"{unit}_tenths"))
    summed = rows.groupBy("symbol", "start").agg(*measures).orderBy("symbol", "start").collect()
    below = {row["symbol"] for row in summed if row["least"] <= 0}
    found: dict[str, tuple[str, list[SpreadPoint]]] = {}
    for row in summed:
        symbol = row["symbol"]
        unit, name = (PRICE, "price") if symbol in below else (BASIS_POINTS, "points")
        low, high = row[f"{name}_tenths"]
        found.setdefault(symbol, (unit, []))[1].append(SpreadPoint(row["start"], low, row[name], high))
    return found


def _instrument(symbol: str, step: int, bars: list[Bar], unit: str, spreads: list[SpreadPoint]) -> Instrument:
    prices = [price for bar in bars for price in (bar.open, bar.high, bar.low, bar.close)]
    decimals = next(
        (d for d in range(2, _MOST_DECIMALS) if all(abs(round(price, d) - price) < _SAME for price in prices)),
        _MOST_DECIMALS,
    )
    return Instrument(
        symbol=symbol, step_ns=step, decimals=decimals, bars=tuple(bars), spreads=tuple(spreads), spread_unit=unit
    )
