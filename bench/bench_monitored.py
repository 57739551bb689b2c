"""The cost of watching a feed while it runs.

    without   PUB process ==blocks, TCP loopback==> SUB process, compiled callbacks
    scraped   the same, and its metrics <--HTTP, each second-- scraper
    watched   the same, and processes of `blackbox tap --rate`, `top --json` and `dashboard`, whose page a browser has

All use the same two cores. Traces are on where it is watched: one message in 2^20. Scraper and browser are threads of
the bench's own process. A round is void if one of them received nothing.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.request import urlopen

import msgspec

from bench.measure.contest import WAITS, Contest, Figure, Lost
from bench.processes.pair import Pair, Work
from bench.rivals.servers import free_port
from bench.workload.load import Load
from blackbox import Feed
from blackbox.feed.toml import to_toml

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_benchmark.fixture import BenchmarkFixture

MESSAGES: Final = 30_000_000
"""Enough for several scrapes in a round."""
PACED_MESSAGES: Final = 300_000
RATE: Final = 100_000
SCRAPED: Final = "metrics scraped each second"
WATCHED: Final = "metrics, tap, top, page and trace"
WITHOUT: Final = "none of these"
Run = Callable[[Pair, Load, str], Figure]
"""Runs a round whose receiver serves metrics at an address, if it is not empty."""
_EVERY_S: Final = 1.0
_FIRST_S: Final = 0.05


class Scraper:
    """Scrapes an address each second in a thread, as soon as there is a server, until the block is left."""

    def __init__(self, address: str) -> None:
        self.scrapes = 0
        self._url, self._over = f"http://{address}/metrics", threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        pause_s = _FIRST_S
        while not self._over.wait(pause_s):
            try:
                with urlopen(self._url, timeout=10) as answer:
                    self.scrapes += b"blackbox_subscriber_deliveries_total" in answer.read()
                pause_s = _EVERY_S
            except OSError:  # it does not serve yet, or no longer
                pause_s = _FIRST_S

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


class _Program:
    """A process of `blackbox`, and the lines that it prints. `begin` waits for the first."""

    def __init__(self, *words: str) -> None:
        command = [sys.executable, "-m", "blackbox.cli", *words]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)

    def begin(self) -> str:
        """Return the first line."""
        assert self._process.stdout is not None
        if not (first := self._process.stdout.readline()):
            raise Lost(f"{self._process.args!r} ended")
        self._reader.start()
        return first

    def _read(self) -> None:
        assert self._process.stdout is not None
        self.lines.extend(self._process.stdout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        if self._reader.ident is not None:
            self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process.wait()


class _Browser:
    """Receives the states of a page in a thread, until the block is left."""

    def __init__(self, url: str) -> None:
        from websockets.sync.client import connect
        from websockets.typing import Origin

        self.states = 0
        self._connection = connect(
            url.replace("http://", "ws://").rstrip("/") + "/state", origin=Origin(url.rstrip("/"))
        )
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        for _ in self._socket:
            self.states += 1

    def __enter__(self) -> Self:
        self._socket = self._connection.__enter__()
        self._socket.recv(timeout=60)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.__exit__(None, None, None)
        self._thread.join()


@contextmanager
def _watching(feed: Path, metrics: str) -> Iterator[None]:
    """Tap and show a feed in separate processes. Raises Lost if one of them received nothing."""
    watch = ("--watch", f"http://{metrics}")
    with ExitStack() as stack:
        tap = stack.enter_context(_Program("tap", str(feed), "--rate", "--json"))
        top = stack.enter_context(_Program("top", str(feed), *watch, "--json"))
        page = stack.enter_context(_Program("dashboard", str(feed), *watch, "--listen", "127.0.0.1:0"))
        (url,) = (word for word in page.begin().split() if word.startswith("http://"))
        browser = stack.enter_context(_Browser(url))
        for each in (tap, top):
            each.begin()
        yield
    tapped = [msgspec.json.decode(line)["received"] for line in tap.lines if line.startswith("{")]
    for name, told in (("tap", sum(tapped)), ("top", len(top.lines)), ("page", browser.states)):
        if not told:
            raise Lost(f"{name} received nothing")


def scraped(pair: Pair, load: Load, run: Run, address: str = "") -> Figure:
    """Run a round while its metrics are scraped."""
    address = address or f"127.0.0.1:{free_port()}"
    with Scraper(address) as scraper:
        figure = run(pair, load, address)
    if scraper.scrapes == 0:
        raise Lost("successful scrapes were 0, expected at least 1")
    return figure


def watched(pair: Pair, load: Load, run: Run, place: Path) -> Figure:
    """Run a round while all programs watch it, and its metrics are scraped."""
    address, file = f"127.0.0.1:{free_port()}", place / "feed.toml"
    assert load.feed is not None
    file.write_text(to_toml(load.feed))
    with _watching(file, address):
        return scraped(pair, load, run, address)


def _compare(
    contest: Contest,
    benchmark: BenchmarkFixture,
    place: Path,
    load: Load,
    runs: Callable[[str], Run],
    **settings: Any,
) -> None:
    """Run the three contenders: one pair of processes that is watched, and one with traces off that is not."""
    feed = Feed.local("monitored", slices=1)
    off = msgspec.structs.replace(Feed.local("monitored", slices=1), trace_every=0)
    on_load, off_load = (msgspec.structs.replace(load, feed=each) for each in (feed, off))
    with Pair.ours(feed, **settings) as pair, Pair.ours(off, **settings) as plain:
        contest.add(WATCHED, partial(watched, pair, on_load, runs(WATCHED), place), promise=WAITS)
        contest.add(SCRAPED, partial(scraped, plain, off_load, runs(SCRAPED)), promise=WAITS)
        contest.add(WITHOUT, partial(runs(WITHOUT), plain, off_load, ""), promise=WAITS)
        contest.run(benchmark)


def test_monitored(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """M messages/s from the publisher's first call to the last callback."""
    contest = Contest("Delivery while it is watched", "M messages/s", topology=__doc__)

    def run(pair: Pair, load: Load, address: str) -> Figure:
        return pair.round(load, Work(form="compiled", metrics=address))

    _compare(contest, benchmark, tmp_path, Load(messages=MESSAGES), lambda _: run, when_full="wait")
    for name in (WATCHED, SCRAPED):
        contest.show(f"{name} / {WITHOUT}", f"{contest.ratio(name, WITHOUT):.3f} x")


def test_monitored_latency(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """µs since due at 100,000 messages a second: the median over rounds of each round's p99, and the delivered rate."""
    contest = Contest("Latency while it is watched: p99", "µs", lower=True, topology=__doc__)
    rates: dict[str, list[float]] = {}

    def runs(name: str) -> Run:
        def run(pair: Pair, load: Load, address: str) -> Figure:
            figure = pair.late(contest, f"{name} at {RATE:,}", load, Work(form="late", metrics=address), "p99")
            seconds = (pair.heard.ended - pair.sent.began) / 1e9
            rates.setdefault(name, []).append(pair.heard.messages / seconds)
            return figure

        return run

    load = Load(messages=PACED_MESSAGES, rate=RATE, at_once=1)
    _compare(contest, benchmark, tmp_path, load, runs, hwm_blocks=1_000_000)
    for name in (WATCHED, SCRAPED):
        ratio = statistics.median(rates[name][1:]) / statistics.median(rates[WITHOUT][1:])
        contest.show(f"{name} / {WITHOUT}: delivered rate", f"{ratio:.3f} x")
