"""The demo: the figures that it prints are right, and it fails when something is lost."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections import Counter, defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy
import pytest
import typer
from blackbox_feeds.iex import Iex
from blackbox_feeds.itch50 import Itch50
from blackbox_feeds.synthetic import Synthetic

from blackbox import BlackBoxError, ConfigError, Feed, Publisher, Recording, Source, Subscriber
from blackbox.cli.demo.callbacks import DemoCallbacks
from blackbox.cli.demo.command import check
from blackbox.cli.demo.results import Results, SymbolResult
from blackbox.cli.demo.runs import DemoResult, DemoRunner, Received, Run, lost_of
from blackbox.cli.demo.session import SessionSummary, watched_symbols
from blackbox.cli.demo.storage import Storage
from blackbox.cli.demo.trades import MAX_TOPICS
from blackbox.cli.ui.status import Status
from blackbox.errors import JournalError
from blackbox.feed.routing.symbol import SymbolRule
from blackbox.testing import wait_until
from tests.cli.commands import ROOT, Command, assert_one_line, invoke
from tests.examples import first_of

TRADE_TYPES = {"itch50": "P", "iex_deep10": "T", "iex_tops16": "T"}


class Totals:
    """Sums of trades, one message at a time in plain Python, by the definition in `blackbox.cli.demo.trades`."""

    def __init__(self, source: Source) -> None:
        self.shares: Counter[str] = Counter()
        self.trades: Counter[str] = Counter()
        self.value: Counter[str] = Counter()
        self.last: dict[str, float] = {}
        self.types: Counter[str] = Counter()
        self.unpriced = 0
        prices: dict[int, int] = {}
        for chunk in source.chunks():
            for index, start, length in zip(chunk.topic_index, chunk.starts, chunk.lengths, strict=True):
                payload = chunk.payloads[start : start + length].tobytes()
                kind = chr(payload[0])
                self.types[kind] += 1
                record = numpy.frombuffer(payload, source.schema.dtype(kind), 1)[0]
                symbol = chunk.topics[index].decode().rpartition(".")[0]
                if source.schema.name == "itch50":
                    self._itch(kind, record, symbol, prices)
                elif kind == "T":
                    self._add(symbol, int(record["price"]), int(record["size"]))
                if kind == TRADE_TYPES[source.schema.name]:
                    self.last[symbol] = int(record["price"]) / 10_000

    def _itch(self, kind: str, record: Any, symbol: str, prices: dict[int, int]) -> None:
        if kind in "AF":
            prices[int(record["order_reference_number"])] = int(record["price"])
        elif kind == "U":
            prices[int(record["new_order_reference_number"])] = int(record["price"])
        elif kind == "P":
            self._add(symbol, int(record["price"]), int(record["shares"]))
        elif kind == "C" and record["printable"] == b"Y":
            self._add(symbol, int(record["execution_price"]), int(record["executed_shares"]))
        elif kind == "E":
            price = prices.get(int(record["order_reference_number"]))
            if price is None:
                self.unpriced += 1
            else:
                self._add(symbol, price, int(record["executed_shares"]))

    def _add(self, symbol: str, price: int, shares: int) -> None:
        self.value[symbol] += price * shares
        self.shares[symbol] += shares
        self.trades[symbol] += 1

    def results(self) -> list[SymbolResult]:
        """As `DemoCallbacks.symbols`."""
        rows = [
            SymbolResult(
                symbol, shares, self.trades[symbol], self.value[symbol] / shares / 10_000, self.last.get(symbol)
            )
            for symbol, shares in self.shares.items()
        ]
        return sorted(rows, key=lambda row: (-row.shares, row.symbol))


def assert_right(source: Source, watched: list[bytes]) -> DemoCallbacks:
    """Assert that every figure equals the one of plain Python."""
    feed = msgspec.structs.replace(Feed.local("demo", schema=source.schema.name), max_topics=MAX_TOPICS)
    subscriber = Subscriber(feed, workers=1)
    callbacks = DemoCallbacks(subscriber, [100_000, 100_000], watched)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start(60.0)
        source.publish(publisher)
    subscriber.run(until_end=True)
    expected = Totals(source)
    assert callbacks.mix() == expected.types
    assert callbacks.unpriced() == expected.unpriced
    found = callbacks.symbols()
    assert [row[:3] for row in found] == [row[:3] for row in expected.results()]
    for row, right in zip(found, expected.results(), strict=True):
        assert row.vwap == pytest.approx(right.vwap, rel=1e-12)
        assert row.last == right.last
    assert callbacks.seconds() > 0
    return callbacks


@pytest.mark.parametrize(
    ("source", "watched", "least"),
    first_of(
        [
            ("synthetic", b"NVDA", 100),
            ("itch50/runk_locate-13-10k.bin", b"AAPL", 10_000),
            ("itch50/jamison_12302019_SNIPPET.NASDAQ_ITCH50", b"SPY", 5),
            ("iex/goiex_TOPS16.pcapng.gz", b"SPY", 1),
        ]
    ),
)
def test_figures_of_a_session_are_right(shared_data: Path, source: str, watched: bytes, least: int) -> None:
    opened: Source = Synthetic(30_000, symbols=60)
    if source.startswith("itch50"):
        opened = Itch50(shared_data / source, date="2020-01-30" if "runk" in source else None)
    elif source.startswith("iex"):
        opened = Iex(shared_data / source)
    callbacks = assert_right(opened, [watched])
    assert sum(callbacks.watched[watched]) >= least
    assert (callbacks.unpriced() > 0) == ("jamison" in source)


def test_a_schema_without_known_trades_is_refused() -> None:
    with pytest.raises(ConfigError, match="the demo's source had schema 'raw', expected one of: itch50"):
        DemoRunner("words:x", [], None, "raw")


def test_watched_symbols_are_busy_but_a_small_share() -> None:
    messages: dict[bytes, int] = defaultdict(int, {b"#system.S": 5, b"BIG.A": 5_000, b"BIG.D": 4_000, b"A.B.A": 20})
    messages |= {b"C.A": 15, b"C.D": 15, b"E.A": 10, b"F.A": 1}
    numbers = numpy.array(list(messages.values()))
    assert watched_symbols(list(messages), numbers, SymbolRule()) == [b"C", b"A.B", b"E"]
    assert watched_symbols([b"ONE.A"], numpy.array([9]), SymbolRule()) == [b"ONE"]
    assert watched_symbols([], numpy.array([], int), SymbolRule()) == []


def children_of(demo: Command) -> list[int]:
    """Return the publishing process of a demo, once it exists."""
    task = Path(f"/proc/{demo.process.pid}/task/{demo.process.pid}/children")
    pids = task.read_text().split() if task.exists() else []
    return [int(pid) for pid in pids if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


RUNS = ("live", "live, over TCP", "recorded", "replayed on the wire", "replayed in process")


def test_demo_prints_and_keeps_its_results_even_if_its_report_fails(tmp_path: Path) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "pyspark.py").write_text("raise ImportError('no pyspark here')\n")
    (tmp_path / "temporary").mkdir()
    words = ("demo", "--count", 60_000, "--out", tmp_path, "--report", tmp_path / "x.html")
    path = f"{tmp_path}/modules:{ROOT}:{ROOT}/feeds"
    with Command(*words, TMPDIR=f"{tmp_path}/temporary", PYTHONPATH=path) as demo:
        ended = demo.end()
    needs = r"this needs pyspark: pip install 'blackbox-md\[spark\]' \(no pyspark"
    assert_one_line(ended, f"{tmp_path}/x.html was not written: {needs}")
    assert not (tmp_path / "x.html").exists()
    out = ended.out
    values = dict(re.findall(r"│ (\S[\w ]*?) +│ +([\d,]+) │", out))
    assert values["published"] == values["delivered"] == "60,000"
    for title in ("to callbacks", "lag p50", "largest volumes", "VWAP", "message mix"):
        assert title in out
    assert re.search(r"│ NVDA +│ +[\d,]+ │ +\d+ │ +\d+\.\d{4} │", out)
    figures = r"│ +[\d.]+ [kMG]/s │ +[\d,.]+ │ +(?:\d+ h )?(?:\d+ min )?\d+ s │"
    for name in RUNS:
        assert re.search(rf"│ {name} +│ +60,000 │ +0 │ +0 {figures}", out), name
    # The lag depends on the machine. It plays 20 s of market time, however long that takes.
    figures = r"│ replayed at 10 x +│ +(\d+) │ +0 │ +0 │ +([\d.]+)/s │ +([\d.]+) │ +(?:(\d+) h )?(\d+) min (\d+) s │"
    ((messages, rate, pace, *times),) = re.findall(figures, out)
    assert 15 < float(pace) * int(messages) / float(rate) < 20.5
    hours, minutes, seconds = (int(time or 0) for time in times)
    assert hours * 3_600 + minutes * 60 + seconds == pytest.approx(8 * 3_600 / float(pace), rel=0.01)
    assert re.search(r"results are equal: VWAP and last price of 476 symbols and message mix", out)

    (day,) = (tmp_path / "demo").glob("*-*-*")
    assert f"kept in {day}" in out
    assert sum(Recording.open(day).counts().values()) == 60_000
    assert list((tmp_path / "temporary").iterdir()) == []
    again = invoke("demo", "--count", 60_000, "--out", tmp_path)
    assert_one_line(again, f"{day} already holds a recording: choose another directory, or remove it")


@pytest.mark.long
def test_demo_ends_with_a_page_of_its_recording(tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    page = tmp_path / "pages" / "demo.html"
    with Command("demo", "--count", 5_000, "--report", page, TMPDIR=f"{tmp_path}/temporary") as demo:
        ended = demo.end()
    assert ended.status == 0, ended.errors
    assert re.search(r"recording: \d+ MB, removed again", ended.out)
    assert f"report: {page}, to be opened in a browser" in ended.out
    text = page.read_text()
    assert "synthetic:5000, by blackbox demo" in text
    assert "5,000</b><span>messages</span>" in text
    assert "Spreads are of the order book" in text
    assert list((tmp_path / "temporary").glob("blackbox-demo-*")) == []


@pytest.mark.long
def test_demo_publishes_at_most_count_messages(shared_data: Path) -> None:
    ended = invoke("demo", f"iex:{shared_data / 'iex' / 'goiex_DEEP10.pcap.gz'}", "--count", 200_000)
    assert (ended.status, ended.value("delivered")) == (0, 200_000), ended.errors


@pytest.mark.long
def test_killed_publishing_process_ends_the_demo() -> None:
    with Command("demo", "--count", 50_000_000) as demo:
        wait_until(lambda: children_of(demo), what="a publishing process")
        os.kill(children_of(demo)[0], signal.SIGKILL)
        assert_one_line(demo.end(), "the publishing process ended with status -9")


@pytest.mark.parametrize("moment", first_of(["preparing", "recording"]))
def test_interrupt_ends_both_processes(tmp_path: Path, moment: str) -> None:
    def has_come() -> bool:
        if moment == "preparing":
            return bool(children_of(demo))
        sizes = [path.stat().st_size for path in tmp_path.rglob("*.journal")]
        return bool(sizes) and min(sizes) > 64

    messages = 50_000_000 if moment == "preparing" else 1_000_000
    with Command("demo", "--count", messages, TMPDIR=str(tmp_path)) as demo:
        wait_until(has_come, 60.0, moment)
        (child,) = children_of(demo)
        assert demo.interrupt().status == 130
    wait_until(lambda: not Path(f"/proc/{child}").exists(), what="the end of the publishing process")
    assert list(tmp_path.iterdir()) == []


def test_undelivered_messages_count_as_lost() -> None:
    assert [lost_of(100, 0, 100), lost_of(100, 7, 93), lost_of(100, 0, 93), lost_of(100, 0, 100, 3)] == [0, 7, 7, 3]


def test_every_difference_of_results_is_named() -> None:
    row = SymbolResult("AAPL", 100, 2, 189.98, 190.02)
    found = Results([row], {"P": 2}, {b"AAPL": (0, 2)}, 0)
    assert found.difference(found) is None
    for other, text in (
        (found._replace(symbols=[row._replace(last=190.03)]), "AAPL was (100, 2, 189.98, 190.03), expected (100, 2"),
        (found._replace(symbols=[]), "0 symbols were traded, expected 1"),
        (found._replace(mix={"P": 1}), "the message mix was {'P': 1}, expected {'P': 2}"),
        (found._replace(watched={b"AAPL": (0, 1)}), "the message mix of the watched symbols"),
        (found._replace(unpriced=3), "3 executions were of unknown orders, expected 0"),
    ):
        assert text in str(found.difference(other))


def result_with(**changes: Any) -> DemoResult:
    results = Results([], {"A": 1}, {}, 0)
    session = SessionSummary(
        messages=1,
        payload_bytes=36,
        by_type={"A": 1},
        orders=[1, 0],
        watched=[],
        truncated=None,
        seconds=0.1,
        first_ns=0,
        last_ns=0,
        middle_ns=0,
    )
    feed = Feed.local("demo", schema="itch50")
    run = Run("live", 1, 0, 0, 1.0, 1.0)
    live = Received(run, Subscriber(feed).statistics(), results)
    return DemoResult("synthetic:1", feed, session, live, [run], {}, 0, [])._replace(**changes)


def test_different_results_and_lost_messages_of_any_run_are_errors() -> None:
    check(result_with())
    with pytest.raises(
        BlackBoxError, match="replayed on the wire: results differ from those of the live run: AAPL was"
    ):
        check(result_with(differences={"replayed on the wire": "AAPL was (1, 2), expected (1, 3)"}))
    with pytest.raises(typer.Exit) as ended:
        check(result_with(runs=[Run("recorded", 9, 1, 0, 1.0, 1.0)]))
    assert ended.value.exit_code == Status.LOST


def test_too_little_disk_space_is_reported_before_publishing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(tmp_path / "not" / "yet", Feed.local("demo"))
    storage.check_room(result_with().session)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=30_000_000))
    with pytest.raises(JournalError, match=r"recording 1 messages takes some 67 MB, but only 30 MB are free: choose"):
        storage.check_room(result_with().session)
