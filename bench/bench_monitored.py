"""The cost of metrics that are scraped each second from a subscriber.

    scraped   PUB process ==blocks, TCP loopback==> SUB process, compiled callbacks <--HTTP, each second-- scraper
    without   PUB process ==blocks, TCP loopback==> SUB process, compiled callbacks

The scraper is a thread of the bench's own process. A round whose scrapes did not succeed is void.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Final, Self
from urllib.request import urlopen

from bench.measure.contest import WAITS, Contest, Figure, Lost
from bench.processes.pair import Pair, Work
from bench.rivals.servers import free_port
from bench.workload.load import Load
from blackbox import Feed

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

MESSAGES: Final = 30_000_000
"""Enough for several scrapes in a round."""
PACED_MESSAGES: Final = 300_000
RATE: Final = 100_000
SCRAPED: Final = "metrics scraped each second"
WITHOUT: Final = "without metrics"
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


def scraped(pair: Pair, load: Load, work: Work, contest: Contest | None) -> Figure:
    """Run a round while its metrics are scraped. With a contest, note the percentiles of a paced load."""
    address = f"127.0.0.1:{free_port()}"
    monitored = Work(form=work.form, prefixes=work.prefixes, workers=work.workers, metrics=address)
    with Scraper(address) as scraper:
        figure = _figure(pair, load, monitored, contest, SCRAPED)
    if scraper.scrapes == 0:
        raise Lost("successful scrapes were 0, expected at least 1")
    return figure


def _figure(pair: Pair, load: Load, work: Work, contest: Contest | None, name: str) -> Figure:
    if contest is None:
        return pair.round(load, work)
    percentiles, figure = pair.late(load, work)
    contest.percentiles(f"{name} at {load.rate:,}", percentiles)
    return Figure(percentiles["p99"], figure.spent)


def test_monitored(benchmark: BenchmarkFixture) -> None:
    """M messages/s from the publisher's first call to the last callback."""
    feed = Feed.local("monitored", slices=1)
    load, work = Load(feed=feed, messages=MESSAGES), Work(form="compiled")
    contest = Contest("Delivery while metrics are scraped", "M messages/s", topology=__doc__)
    with Pair.ours(feed, when_full="wait") as pair:
        contest.add(SCRAPED, partial(scraped, pair, load, work, None), promise=WAITS)
        contest.add(WITHOUT, partial(pair.round, load, work), promise=WAITS)
        contest.run(benchmark)
        contest.show("scraped / without", f"{contest.ratio(SCRAPED, WITHOUT):.3f} x")


def test_monitored_latency(benchmark: BenchmarkFixture) -> None:
    """µs since due at 100,000 messages a second: the median over rounds of each round's p99."""
    feed = Feed.local("monitored", slices=1)
    load, work = Load(feed=feed, messages=PACED_MESSAGES, rate=RATE, at_once=1), Work(form="late")
    contest = Contest("Latency while metrics are scraped: p99", "µs", lower=True, topology=__doc__)
    with Pair.ours(feed, hwm_blocks=1_000_000) as pair:
        contest.add(SCRAPED, partial(scraped, pair, load, work, contest), promise=WAITS)
        contest.add(WITHOUT, partial(_figure, pair, load, work, contest, WITHOUT), promise=WAITS)
        contest.run(benchmark)
