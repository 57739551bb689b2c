"""A report computed by Spark, compared with the same figures from the recording's columns in pandas."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy
import pytest
from blackbox_feeds.iex import Iex
from pyspark.sql import SparkSession

from blackbox.analysis.measure_day import measure_day
from blackbox.analysis.report.page import page
from blackbox.cli.ui.drawing import draw
from blackbox.cli.ui.status import Status
from blackbox.errors import JournalError
from tests.cli.commands import assert_one_line, invoke
from tests.damaged import damage_body
from tests.deals import DEALS, Deal
from tests.journals import Day, Put, Row, feed_of
from tests.recorded import AS_SENT, recorded

TOPS = "iex/goiex_TOPS16.pcapng.gz"


def test_quotes_and_trades_of_iex(spark: SparkSession, tmp_path: Path, shared_data: Path) -> None:
    recording = recorded(tmp_path, lambda: Iex(shared_data / TOPS), time_zone="America/New_York")
    steps: list[str] = []
    report = measure_day(spark, recording.path, most=2, progress=steps.append)
    messages = recording.to_pandas(**AS_SENT)
    trades, quotes = (recording.to_pandas(message_type=kind, **AS_SENT) for kind in "TQ")
    assert (report.messages, report.clock, report.slices) == (57_674, "market time", 2)
    assert report.symbols == len({*messages["symbol"]} - {"#system"})
    mix = report.mix
    inside = messages[messages["ts_event"].between(mix.start_ns, mix.stop_ns - 1)]
    kinds = Counter(inside["type"])
    assert dict(zip(mix.kinds, map(sum, mix.counts), strict=True)) == dict(kinds)
    assert mix.outside == len(messages) - len(inside) < 600
    rows = (inside["ts_event"].to_numpy() - mix.start_ns) // mix.step_ns
    assert mix.totals == numpy.bincount(rows, minlength=len(mix.totals)).tolist()
    busiest = trades["symbol"].value_counts()
    assert [each.symbol for each in report.instruments] == sorted(busiest.index, key=lambda s: (-busiest[s], s))[:2]
    for each in report.instruments:
        own = trades[(trades["symbol"] == each.symbol) & trades["ts_event"].between(mix.start_ns, mix.stop_ns - 1)]
        price, start = own["price"] / 10_000, own["ts_event"] // each.step_ns * each.step_ns
        groups = price.groupby(start)
        assert [bar.start_ns for bar in each.bars] == list(groups.groups)
        for name, told in (("high", groups.max()), ("low", groups.min()), ("trades", groups.size())):
            assert [getattr(bar, name) for bar in each.bars] == pytest.approx(told.tolist())
        assert [bar.volume for bar in each.bars] == own["size"].groupby(start).sum().tolist()
        both = quotes[(quotes["symbol"] == each.symbol) & (quotes["bid_price"] > 0) & (quotes["ask_price"] > 0)]
        both = both[both["ts_event"].between(mix.start_ns, mix.stop_ns - 1)]
        points = 20_000 * (both["ask_price"] - both["bid_price"]) / (both["ask_price"] + both["bid_price"])
        means = points.groupby(both["ts_event"] // each.step_ns * each.step_ns).mean()
        assert [point.start_ns for point in each.spreads] == means.index.tolist()
        assert [point.mean for point in each.spreads] == pytest.approx(means.tolist())
    (lag,) = report.lags  # these messages were sent years after the events, which is not a lag
    lags = messages["ts_recv"] - messages["ts_out"]
    assert (lag.messages, lag.percentiles[0], lag.percentiles[-1]) == (57_674, (0.0, lags.min()), (1.0, lags.max()))
    assert [ns for _, ns in lag.percentiles] == sorted(ns for _, ns in lag.percentiles)
    assert report.prices == "Bars are of the trades of type T. Spreads are of the quotes of type Q."
    assert steps[0] == "looking for gaps and damage"
    assert report.instruments[0].symbol in page(report)


def test_gaps_damage_and_plain_bytes(spark: SparkSession, tmp_path: Path) -> None:
    day = Day(tmp_path / "day", feed_of(time_zone="America/New_York"))
    sent = [10**18 + k * 10**9 for k in range(6)]
    puts = [Put((Row(b"A.t", b""),), sequence=2 * k, ts_out=at, ts_recv=at + 5) for k, at in enumerate(sent)]
    day.put(0, *puts)
    damage_body(day.segments[0], 2)
    report = measure_day(spark, day.path)
    assert (report.messages, report.clock, report.mix.kinds) == (5, "time of sending", ("t",))
    assert report.mix.totals[0] == report.mix.totals[-1] == 1
    assert [(gap.first, gap.count) for gap in report.gaps] == [(1, 1), (3, 3), (7, 1), (9, 1)]
    assert len(report.damage) == 1
    assert report.instruments == ()
    assert report.prices == "There are no bars and spreads: the schema 'raw' declares no trades and quotes."
    assert report.lags[0].percentiles[0] == (0.0, 5)
    assert "1 damaged part<" in page(report)


def test_a_record_of_a_wrong_size_is_not_an_error(spark: SparkSession, tmp_path: Path) -> None:
    day = Day(tmp_path, feed_of(schema=DEALS))
    first, short, last = (Deal("A", "T", number, time=10**9).row for number in (1, 2, 3))
    day.put(0, Put((first, Row(short.topic, (short.payload or b"")[:-1], short.ts_event), last)))
    report = measure_day(spark, day.path)
    assert report.left_out == ((1, "of a wrong size"),)
    assert sum(bar.trades for bar in report.instruments[0].bars) == 2


def test_a_day_without_readable_messages(spark: SparkSession, tmp_path: Path) -> None:
    for has_index in (True, False):
        day = Day(tmp_path / str(has_index), feed_of())
        damage_body(day.put(0, Put((Row(b"A.t", b"", 10**18),)), index=has_index), 0)
        report = measure_day(spark, day.path)
        assert (report.messages, report.mix.counts, report.mix.outside, len(report.damage)) == (0, (), 0, 1)
        assert "No message has a time." in page(report)


def test_a_day_without_market_times(spark: SparkSession, tmp_path: Path) -> None:
    day = Day(tmp_path, feed_of(schema=DEALS))
    day.put(0, Put((Deal("A", "T", 1, time=0).row, Row(b"#system.S", b"S")), ts_out=10**18))
    for symbols in ((), ("A",)):
        report = measure_day(spark, day.path, symbols)
        assert report.instruments == ()
        assert report.prices == "There are no bars and spreads: no message has a market time."
        assert report.symbols == 1


def test_an_empty_day_and_a_missing_day(spark: SparkSession, tmp_path: Path) -> None:
    report = measure_day(spark, Day(tmp_path / "day", feed_of()).path)
    assert (report.messages, report.symbols, report.mix.counts, report.lags) == (0, 0, (), ())
    assert "No message has a time." in page(report)
    with pytest.raises(JournalError, match="was not found"):
        measure_day(spark, tmp_path / "nothing")


def test_command_reports_damage_and_gaps(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    day = Day(tmp_path / "day", feed_of())
    day.put(0, *(Put((Row(b"A.t", b"", k),), sequence=k, ts_out=k, ts_recv=k) for k in (1, 2, 5, 9)))
    damage_body(day.segments[0], 1)
    monkeypatch.setattr("blackbox.cli.ui.drawing._SETTINGS", {})
    ended = invoke("analyse", day.path, "--out", tmp_path / "day.html")
    assert ended.status == Status.LOST
    assert ended.errors.splitlines()[-2:] == [
        f"wrote {tmp_path}/day.html",
        f"lost: {day.path}: 1 part damaged; 6 messages missing in 2 gaps",
    ]


def test_command_warns_if_the_connector_cannot_be_built(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cache").write_text("a file")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("blackbox.cli.ui.drawing._SETTINGS", {})  # the tests' session has the settings already
    draw(Day(tmp_path / "day", feed_of()).path, tmp_path / "day.html")
    assert (
        "warning: the slower Python engine reads recordings: the connector for Spark could not be made in "
        f"{tmp_path}/cache/blackbox: "
    ) in capfd.readouterr().err


def test_command_without_a_recording_does_not_start_spark(tmp_path: Path) -> None:
    ended = invoke("analyse", tmp_path / "nothing", "--out", tmp_path / "day.html")
    assert ended.status == Status.ERROR
    assert_one_line(ended, "was not found")
