"""The notebooks compute what a plain loop computes; cells can be interrupted and repeated."""

from __future__ import annotations

import re
import struct
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import nbformat
import pytest
import zstandard
from blackbox_feeds.synthetic import Synthetic

from blackbox import Feed, Recording
from blackbox.archive.export.source_file import export
from blackbox.archive.importing.import_days import import_days
from blackbox.testing import wait_until
from tests.feeds.build import messages_of
from tests.feeds.dbn_reference import expected_messages
from tests.feeds.reference import decode_itch
from tests.project.notebooks import NOTEBOOKS, kernel, results_of
from tests.project.scripts import ROOT

NAMES = sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))
SHARED = ROOT.parent / "shared" / "data"
"""Real captures next to the repository. Without them, the notebooks read made-up sessions."""
MINUTE_NS = 60 * 10**9


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_stored_without_outputs_and_is_on_the_page(name: str) -> None:
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [(cell.outputs, cell.execution_count) for cell in code] == [([], None)] * len(code)
    assert [dict(cell.metadata) for cell in notebook.cells] == [{}] * len(notebook.cells)
    assert f"(../notebooks/{name}.ipynb)" in (ROOT / "docs" / "notebooks.md").read_text()


def made_up_file(place: Path, date: str) -> bytes:
    """Write a made-up session as the ITCH file that the notebooks read. Return its bytes."""
    feed = Feed.local("made", slices=1, schema="itch50")
    (made,) = import_days(feed, place / "made", [Synthetic(60_000, seed=3, symbols=10, date=date)])
    file = place / "day.NASDAQ_ITCH50"
    export(Recording.open(made.path), file)
    return file.read_bytes()


def test_two_symbols_trade_as_a_plain_loop_does_in_a_replay_and_live(tmp_path: Path) -> None:
    data = made_up_file(tmp_path, "2026-01-05")
    (changes, profit, same), shown = results_of(
        "back_test_two_symbols", tmp_path, "pair.changes", "pair.profit()", "live.changes == pair.changes"
    )
    assert (changes, profit) == plain_pair(data)
    assert len(changes) > 2
    assert same
    assert "the same live: True\n" in shown
    assert "60,000" in next(each for each in shown if "<strong>Recording</strong>" in each)


def plain_pair(data: bytes) -> tuple[list[list[Any]], float]:
    last: dict[bytes, float] = {}
    mean = cash = 0.0
    seen = side = 0
    changes: list[list[Any]] = []
    messages, _ = decode_itch(data, "2026-01-05", "{symbol}.{type}")
    for topic, ts_event, payload in messages:
        if topic not in (b"AAPL.P", b"MSFT.P"):
            continue
        last[topic] = int.from_bytes(payload[32:36], "big") / 10**4
        if len(last) == 2:
            first, second = last[b"AAPL.P"], last[b"MSFT.P"]
            seen += 1
            mean += (second / first - mean) / seen
            above = second / first / mean - 1
            wanted = -1 if above > 0.001 else 1 if above < -0.001 else side
            if wanted != side:
                cash -= (wanted - side) * (second - first)
                side = wanted
                changes.append([ts_event, side, first, second])
    return changes, cash + side * (last[b"MSFT.P"] - last[b"AAPL.P"])


@pytest.mark.long
def test_bars_and_spreads_in_polars_and_spark_are_those_of_a_plain_loop(tmp_path: Path) -> None:
    real = SHARED / "itch50" / "runk_locate-13-10k.bin"
    if real.exists():
        data = real.read_bytes()
        (tmp_path / "day.NASDAQ_ITCH50").symlink_to(real)
    else:
        data = made_up_file(tmp_path, "2020-01-30")
    columns = ["open", "high", "low", "close", "volume"]
    (bars, spark_bars, spreads, both), shown = results_of(
        "bars_and_spreads",
        tmp_path,
        f"[list(map(float, row)) for row in bars.select({columns}).rows()]",
        f"spark_bars[{columns}].astype(float).values.tolist()",
        "spreads.select('end', 'spread').rows()",
        "both.select('spark', 'spread').rows()",
    )
    expected_bars, expected_spreads = plain_minutes(data)
    assert bars == spark_bars == expected_bars
    assert len(bars) > 5
    found = dict(spreads)
    assert {end: found[end] for end in expected_spreads} == pytest.approx(expected_spreads)
    assert len(both) > 5
    assert [row[0] for row in both] == pytest.approx([row[1] for row in both])
    assert any("greatest difference 0.0000" in each for each in shown)


def plain_minutes(data: bytes) -> tuple[list[list[float]], dict[int, float]]:
    """Return the bars of each minute with a trade, and the spread after each minute in which both sides rest."""
    orders: dict[int, tuple[int, int, int]] = {}
    trades: dict[int, list[tuple[float, int]]] = {}
    spreads: dict[int, float] = {}
    messages, _ = decode_itch(data, "2020-01-30", "{symbol}.{type}")
    messages = [message for message in messages if message[0].startswith(b"AAPL.")]
    for message, following in pairwise([*messages, messages[-1]]):
        apply_order(message[2], orders, trades.setdefault(message[1] // MINUTE_NS, []))
        minutes = following[1] // MINUTE_NS
        if minutes > message[1] // MINUTE_NS:
            bids, asks = ([price for side, price, _ in orders.values() if side == each] for each in b"BS")
            if bids and asks:
                spreads[(message[1] // MINUTE_NS + 1) * MINUTE_NS] = (min(asks) - max(bids)) / 10**4
    bars = []
    for _, found in sorted(trades.items()):
        prices = [price for price, _ in found]
        if found:
            bars.append([prices[0], max(prices), min(prices), prices[-1], float(sum(size for _, size in found))])
    return bars, spreads


def apply_order(payload: bytes, orders: dict[int, tuple[int, int, int]], trades: list[tuple[float, int]]) -> None:
    kind, reference = payload[:1], int.from_bytes(payload[11:19], "big")
    if kind in b"AF":
        orders[reference] = payload[19], *reversed(struct.unpack(">I8xI", payload[20:36]))
    elif kind == b"P":
        trades.append((int.from_bytes(payload[32:36], "big") / 10**4, int.from_bytes(payload[20:24], "big")))
    elif kind in b"ECX":
        side, price, left = orders[reference]
        size = int.from_bytes(payload[19:23], "big")
        if kind != b"X" and (kind == b"E" or payload[31:32] == b"Y"):
            at = price if kind == b"E" else int.from_bytes(payload[32:36], "big")
            trades.append((at / 10**4, size))
        orders[reference] = side, price, left - size
        if left == size:
            del orders[reference]
    elif kind == b"D":
        del orders[reference]
    elif kind == b"U":
        side, _, _ = orders.pop(reference)
        new, size, price = struct.unpack(">QII", payload[19:35])
        orders[new] = side, price, size


def test_a_live_feed_is_counted_without_loss_and_shown(tmp_path: Path) -> None:
    real = SHARED / "dbn/futures_mbp-1_2024-07-01T23-58.dbn.zst"
    if real.exists():
        (tmp_path / "day.dbn.zst").symlink_to(real)
        with zstandard.open(real) as opened:
            expected = Counter(message.topic for message in expected_messages(opened.read()))
    else:
        expected = Counter(topic.decode() for topic, _, _ in messages_of(Synthetic(20_000, symbols=20)))
    (counts, lost, states), shown = results_of(
        "watch_a_live_feed",
        tmp_path,
        "{topic.decode(): many for topic, many in counts.items()}",
        "subscriber.statistics().received.gaps",
        "[each.lines for each in view.slices]",
    )
    assert {topic: counts[topic] for topic in expected} == expected  # a DBN file also has a head
    assert lost == 0
    assert states == [{"A": "alive"}]
    assert "lost: 0 complete: True\n" in shown
    assert sum("<strong>Statistics</strong>" in each for each in shown) == 2


PRINTING = """
import threading

came = threading.Event()
printing = Subscriber(feed)

@printing.on("MSFT.")
def show(message):
    print("callback", message.payload.decode(), flush=True)
    came.set()

printing.start()
publisher.publish("MSFT.t", b"1")
came.wait(200)
"""
BUSY = """
count = 0
came.clear()
publisher.publish("MSFT.t", b"2")
while not came.is_set():
    count += 1
"""
LOOP = """
publisher.publish("AAPL.t", b"{0}")
{1} message in stream:
    print("read", message.payload.decode(), flush=True)
"""
RUN = """
import signal
import time

before = signal.getsignal(signal.SIGINT)

def report():
    while signal.getsignal(signal.SIGINT) is before:
        time.sleep(0.01)
    print("runs", flush=True)

threading.Thread(target=report, daemon=True).start()
subscriber.run()
"""


@pytest.mark.long
def test_cells_of_the_page_are_interrupted_and_repeated(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "notebooks.md").read_text()
    (start,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    with kernel(tmp_path) as cells:
        assert cells.run(start).error == ""
        assert "callback 1\n" in cells.run(PRINTING).text
        assert cells.run(BUSY).error == ""  # the callback runs while the cell computes

        again = cells.run("Publisher(feed).start()").error
        (endpoint,) = cells.run("print(feed.slices[0].endpoints[0])").text.split()
        assert f"endpoint {endpoint} is in use by this process: close the earlier publisher or server first" in again

        ended = cells.run(LOOP.format("1", "async for"), interrupt_at="read 1\n")
        assert ended.error.partition(":")[0] in ("KeyboardInterrupt", "CancelledError")
        ended = cells.run(LOOP.format("2", "for"), interrupt_at="read 2\n")  # the stream has gone on
        assert ended.error.partition(":")[0] == "KeyboardInterrupt"
        assert cells.run(RUN, interrupt_at="runs\n").error == ""
        assert cells.run("print(subscriber.state.value)").text == "ended\n"
        assert cells.run("publisher.close()\npublisher = Publisher(feed).start()").error == ""

        cells.end(wait_until)  # with a publisher and a subscriber that run
