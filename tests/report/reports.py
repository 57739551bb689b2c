"""Reports of made-up days with everything that a page can show."""

from __future__ import annotations

import datetime
import math
import random

import msgspec

from blackbox.analysis.report.day_report import Bar, DayReport, Instrument, Lag, Missing, Mix, SpreadPoint

SECOND = 10**9
OPEN = int(datetime.datetime(2026, 11, 20, 14, 30, tzinfo=datetime.UTC).timestamp()) * SECOND
STEP = 300 * SECOND
KINDS = ("A", "D", "U", "E", "X", "P", "F", "C", "Q", "")
PERCENTILES = (0.0, 0.25, 0.5, 0.9, 0.99, 0.999, 0.9999, 1.0)
EMPTY = Mix(start_ns=0, step_ns=1, kinds=(), counts=(), outside=0)


def bars(chance: random.Random, price: float) -> tuple[Bar, ...]:
    """Return bars of five minutes from open to close, without two of them."""
    found = []
    for place in range(78):
        begin, price = price, price * (1 + chance.gauss(0, 0.002))
        high = max(begin, price) * (1 + abs(chance.gauss(0, 0.001)))
        low = min(begin, price) * (1 - abs(chance.gauss(0, 0.001)))
        volume = float(int(1_000 * math.exp(chance.gauss(3, 0.7))))
        found.append(Bar(OPEN + place * STEP, begin, high, low, price, volume, chance.randint(1, 400)))
    return tuple(found[:30] + found[32:])


def spreads(chance: random.Random) -> tuple[SpreadPoint, ...]:
    found = []
    for place in range(78):
        low = chance.uniform(0.4, 1)
        found.append(SpreadPoint(OPEN + place * STEP, low, low + 0.7, low + 2 + 6 * math.exp(-place / 4)))
    return tuple(found[:40] + found[42:])


def full_report() -> DayReport:
    """Return a report with two symbols, ten types, two lags, gaps and damage."""
    chance = random.Random(3)
    counts = tuple(
        tuple(int(900 / (kind + 1) * chance.uniform(0.6, 1.4)) for _ in range(390)) for kind in range(len(KINDS))
    )
    lag = tuple((p, int(40_000 * math.exp(1.1 * min(6.0, -math.log10(1.000_001 - p))))) for p in PERCENTILES)
    gaps = tuple(
        Missing(
            slice_id=number % 3,
            first=1_000 * number,
            count=chance.randint(1, 4_000),
            ts_out=OPEN + chance.randrange(23_400) * SECOND,
        )
        for number in range(17)
    )
    where = "/data/recordings/nasdaq/2026-11-20"
    return DayReport(
        feed="nasdaq",
        date="2026-11-20",
        schema="itch50",
        time_zone="America/New_York",
        recording=where,
        clock="market time",
        messages=sum(map(sum, counts)) + 31,
        symbols=8_123,
        slices=4,
        mix=Mix(start_ns=OPEN, step_ns=60 * SECOND, kinds=KINDS, counts=counts, outside=31),
        instruments=(
            Instrument(symbol="AAPL", step_ns=STEP, decimals=4, bars=bars(chance, 263.19), spreads=spreads(chance)),
            Instrument(symbol="<M&>", step_ns=STEP, decimals=2, bars=bars(chance, 149.6), spreads=()),
        ),
        prices="Bars are of the trades of type P.",
        lags=(
            Lag(name="sent to received", messages=10**6, negative=0, percentiles=lag),
            Lag(name="venue to sent", messages=10**6, negative=12, percentiles=tuple((p, 5 * ns) for p, ns in lag)),
        ),
        first_ts_out=OPEN,
        last_ts_out=OPEN + 23_400 * SECOND,
        gaps=gaps,
        damage=(f"{where}/slice-00000/000003.journal: the checksum did not match (1,234 bytes at 567,890)",),
        version="0.1.0",
    )


def raw_report() -> DayReport:
    """Return a report of fractions of a second, without prices, lags or types."""
    mix = Mix(start_ns=OPEN, step_ns=20_000_000, kinds=("",), counts=((1, 0, 5, 2, 3, 9, 1),), outside=0)
    return msgspec.structs.replace(
        full_report(), messages=21, symbols=1, schema="raw", mix=mix, instruments=(), lags=(), gaps=(), damage=()
    )


def empty_report() -> DayReport:
    return msgspec.structs.replace(
        raw_report(), messages=0, symbols=0, mix=EMPTY, first_ts_out=0, last_ts_out=0, prices=""
    )
