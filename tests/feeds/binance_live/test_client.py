"""Binance live: the client against a scripted venue that loses, breaks, repeats and delays what it can."""

import asyncio
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from blackbox_feeds.binance.live import client as client_module
from blackbox_feeds.binance.live import snapshots as snapshots_module
from blackbox_feeds.binance.live.source import BinanceWs, BinanceWss
from blackbox_feeds.dbn.live.source import KEY_VARIABLE, DbnLive
from blackbox_feeds.live import inbox as inbox_module
from blackbox_feeds.live.inbox import Inbox, Mark
from blackbox_feeds.live.retries import Retries
from websockets.sync.server import ServerConnection

from blackbox.errors import ConfigError, SourceError
from blackbox.feed.endpoint import _free_ports
from blackbox.feed.source import open_source
from blackbox.testing import wait_until
from tests.feeds.binance_live.venue import (
    Received,
    Venue,
    candle,
    combined,
    depth,
    running,
    sends,
    source,
    trade,
)
from tests.patience import PATIENCE_S


def stays(connection: ServerConnection) -> None:
    """Leave the connection open."""


def loses(connection: ServerConnection) -> None:
    """End the connection without a word."""
    connection.socket.close()


def test_frames_arrive_as_sent_with_topics_and_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots_module, "_FIRST_S", 60.0)  # no second request while the first answer is processed
    frames = [
        trade(1),
        candle(1),
        trade(2),
        depth(5, 9),
        '{"stream":"币@trade","data":{"e":"trade","E":1723161255343,"t":1}}'.encode(),
    ]
    venue = Venue(sends(*frames))
    venue.books = [b'{"lastUpdateId":9,"bids":[["1.0","2"]],"asks":[]}']
    with running(venue) as port, Received(source(port, "a@trade/a@kline_1m/a@depth/币@trade")) as received:
        received.wait(lambda: len(received.frames) == 6)
        now = received.source.statistics()
    snapshot = combined("a@snapshot", {"lastUpdateId": 9, "bids": [["1.0", "2"]], "asks": []})
    assert [frame for frame in received.frames if frame != snapshot] == frames
    assert received.topics[:4] == [b"a.trade", b"a.kline_1m", b"a.trade", b"a.depth"]
    assert b"a.snapshot" in received.topics
    assert received.gaps == []
    assert venue.requests == ["/api/v3/depth?symbol=A&limit=5000"]
    assert venue.targets == ["/stream?streams=a@trade/a@kline_1m/a@depth/%E5%B8%81@trade"]
    assert (now.packets, now.reconnects, now.malformed, now.connected) == (5, 0, 0, True)
    assert now.bytes == sum(map(len, frames))
    assert now.delay_p50_ns > 0


@pytest.mark.parametrize("streams", ["a@trade", "a@trade/a@kline_1m"])
def test_after_a_lost_connection_the_missing_trades_are_counted_and_other_frames_may_be_missing(streams: str) -> None:
    venue = Venue(sends(trade(1), trade(2), then=loses), sends(trade(7), trade(8)))
    with running(venue) as port, Received(source(port, streams)) as received:
        received.wait(lambda: len(received.frames) == 4)
        now = received.source.statistics()
    assert received.frames == [trade(1), trade(2), trade(7), trade(8)]
    assert received.gaps == ([(2, 4)] if streams == "a@trade" else [(2, 1), (2, 4)])
    assert (now.reconnects, now.gaps, now.missing) == (1, len(received.gaps), sum(n for _, n in received.gaps))


def test_a_refused_connection_is_tried_again_until_the_venue_is_there() -> None:
    (port,) = _free_ports(1)
    with Received(source(port, "a@trade")) as received:
        later = Venue(sends(trade(1)))
        later.start(port)
        try:
            received.wait(lambda: received.frames == [trade(1)])
        finally:
            later.stop()
    assert received.source.statistics().reconnects == 0
    assert received.gaps == []


def test_invalid_frames_are_counted_and_the_others_are_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "MOST_FRAME_BYTES", 10_000)

    def script(connection: ServerConnection) -> None:
        sends(trade(1), b"", b"nonsense", then=stays)(connection)
        connection.send(b"\xff\xfe\x00")  # binary
        sends(trade(2), trade(3)[:-1] + b" " * 20_000 + b"}")(connection)  # the last one ends the connection

    venue = Venue(script, sends(trade(3)))
    with running(venue) as port, Received(source(port, "a@trade")) as received:
        received.wait(lambda: len(received.frames) == 3)
    now = received.source.statistics()
    assert received.frames == [trade(1), trade(2), trade(3)]
    assert received.gaps == []
    assert (now.malformed, now.reconnects) == (3, 1)


def limit_requests(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Make this many requests of an order book without long delays, and no further one."""

    class Few(Retries):
        def delay_s(self) -> float:
            self.failed += 1
            return 0.01 if self.failed < count else 2 * PATIENCE_S

    monkeypatch.setattr(snapshots_module, "Retries", Few)


def test_an_order_book_is_requested_again_after_a_break_and_if_it_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_requests(monkeypatch, 4)
    go_on = threading.Event()

    def script(connection: ServerConnection) -> None:
        sends(depth(10, 12), depth(13, 13), then=lambda _: go_on.wait(PATIENCE_S))(connection)
        sends(depth(20, 22), depth(23, 25))(connection)

    book = b'{"lastUpdateId":%d,"bids":[],"asks":[]}'
    venue = Venue(script)
    venue.books = [500, book % 8, 429, book % 9, book % 19]
    with running(venue) as port, Received(source(port, "a@depth")) as received:
        received.wait(lambda: b"a.snapshot" in received.topics)
        snapshots_of = received.source._client._snapshots
        assert snapshots_of is not None
        queue = snapshots_of._queue
        wait_until(lambda: not queue._wanted, PATIENCE_S)
        queue._earliest.clear()  # the next request may follow at once
        go_on.set()
        received.wait(lambda: received.topics.count(b"a.snapshot") == 2)
    now = received.source.statistics()
    snapshots = [frame for frame in received.frames if b"@snapshot" in frame]
    assert [frame.partition(b'"data":')[2] for frame in snapshots] == [book % 9 + b"}", book % 19 + b"}"]
    assert [count for _, count in received.gaps] == [1]
    assert received.frames[received.gaps[0][0]] == depth(20, 22)
    assert len(venue.requests) == 5
    assert now.duplicates == 1  # the order book that was too old


def test_an_answer_that_is_no_order_book_is_counted_and_requested_again(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_requests(monkeypatch, 6)
    venue = Venue(sends(depth(5, 9)))
    bad = [
        b'{"code":-1003,"msg":"x"}',
        b'{"lastUpdateId":9}',
        b'{"lastUpdateId":9,"bids":[["1.0","2"]],"asks":[',
        b'{"lastUpdateId":9,"bids":[],\n"asks":[]}',
        b'{"lastUpdateId":-1,"bids":[],"asks":[]}',
    ]
    venue.books = [*bad, b'{"lastUpdateId":9,"bids":[],"asks":[]}']
    with running(venue) as port, Received(source(port, "a@depth")) as received:
        received.wait(lambda: len(received.frames) == 2)
    assert received.frames == [depth(5, 9), combined("a@snapshot", {"lastUpdateId": 9, "bids": [], "asks": []})]
    assert received.source.statistics().malformed == len(bad)


def test_a_failed_task_of_order_books_ends_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(_: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(snapshots_module.Snapshots, "run", fail)
    with running(Venue(sends(depth(5, 9)))) as port, Received(source(port, "a@depth")) as received:
        wait_until(lambda: received.error is not None, PATIENCE_S)
    assert isinstance(received.error, SourceError)
    assert str(received.error).endswith("failed: MemoryError('no room')")


def test_a_silent_connection_is_replaced() -> None:
    arrived: list[Received] = []

    def script(connection: ServerConnection) -> None:
        sends(trade(2) if arrived[0].frames else trade(1))(connection)

    with running(Venue(script)) as port:
        arrived.append(Received(source(port, "a@trade", "&stale=0.3")))
        with arrived[0] as received:
            received.wait(lambda: len(received.frames) == 2)
            now = received.source.statistics()
    assert now.stale >= 1
    assert now.reconnects >= 1
    assert received.gaps == []


def test_a_connection_that_is_about_to_end_is_replaced_without_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "OVERLAP_S", 5.0)
    has_second = threading.Event()
    shutdown = combined("!serverShutdown", {"e": "serverShutdown", "E": 1_770_123_456_789})

    def both(begin: int, end: int) -> list[bytes]:
        return [each for n in range(begin, end) for each in (trade(n), candle(n))]

    def first(connection: ServerConnection) -> None:
        sends(*both(0, 50), shutdown, then=lambda _: has_second.wait(PATIENCE_S))(connection)
        sends(*both(50, 80))(connection)

    def second(connection: ServerConnection) -> None:
        has_second.set()
        sends(*both(40, 120))(connection)

    venue = Venue(first, second)
    with running(venue) as port, Received(source(port, "a@trade/a@kline_1m")) as received:
        received.wait(lambda: len(received.frames) == 241)
    now = received.source.statistics()
    frames = [frame for frame in received.frames if frame != shutdown]
    assert frames == both(0, 120)
    assert received.gaps == []
    assert (now.reconnects, now.duplicates) == (1, 80)


def test_a_second_connection_that_ends_at_once_is_not_opened_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_AGAIN_S", PATIENCE_S)
    has_ended = threading.Event()

    def first(connection: ServerConnection) -> None:
        sends(shutdown, then=lambda _: has_ended.wait(PATIENCE_S))(connection)
        time.sleep(0.5)
        sends(trade(1))(connection)

    def second(connection: ServerConnection) -> None:
        loses(connection)
        has_ended.set()

    shutdown = combined("!serverShutdown", {"e": "serverShutdown", "E": 1_770_123_456_789})
    venue = Venue(first, second)
    with running(venue) as port, Received(source(port, "a@trade")) as received:
        received.wait(lambda: received.frames == [shutdown, trade(1)])
        assert venue.connected == 2


class Endless:
    """A connection that receives trades for ever, and cannot be connected again."""

    transport = None

    def __init__(self) -> None:
        self.received = 0

    async def recv(self, decode: bool) -> bytes:
        assert not decode
        self.received += 1
        return trade(self.received)

    async def close(self) -> None:
        pass


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> client_module.Client:
    """A client with an inbox that is full after the first frame."""
    monkeypatch.setattr(inbox_module, "MOST_BYTES", 0)
    client = source(1, "a@trade", "&stale=0.05")._client
    client.inbox = Inbox()
    return client


def test_frames_that_a_full_inbox_left_in_a_replaced_connection_may_be_missing(
    full: client_module.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def connect(_: client_module.Client, *, is_first: bool) -> Endless:
        assert not is_first
        return Endless()

    async def replace() -> None:
        link = client_module.Link(Endless(), None)
        reading = asyncio.create_task(full._read(link))
        after = await full._replace(link, reading)
        assert after is not None
        after[1].cancel()

    monkeypatch.setattr(client_module, "OVERLAP_S", 0.01)
    monkeypatch.setattr(client_module, "_CLOSE_S", 0.01)
    monkeypatch.setattr(client_module, "_MOST_HELD", 5)
    monkeypatch.setattr(client_module.Client, "_connect", connect)
    asyncio.run(replace())
    marks = [each for each in full.inbox._items if isinstance(each, Mark)]
    assert marks == [Mark.INTERRUPTED, Mark.OVERLAP, Mark.END_OF_OVERLAP]


def test_a_connection_is_not_silent_while_the_inbox_is_full(full: client_module.Client) -> None:
    async def wait() -> None:
        link = client_module.Link(Endless(), None)
        reading = asyncio.create_task(full._read(link))
        with suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                await full._wait_for_end(link, reading)
        reading.cancel()

    asyncio.run(wait())
    assert full._counts.stale == 0


def test_a_source_that_is_never_iterated_leaves_no_descriptor_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "key")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(50):
        source(1, "a@trade")
        DbnLive("GLBX.MDP3?schema=trades&symbols=ESH4")
    assert len(list(Path("/proc/self/fd").iterdir())) < before + 20  # other threads of the tests have some


def test_a_second_connection_reads_no_more_once_many_bytes_are_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frames = [trade(n)[:-2] + b',"x":"%b"}}' % (b"x" * 1_000) for n in range(100)]

    class Endless:
        async def recv(self, decode: bool) -> bytes:
            received.append(frames[len(received)])
            return received[-1]

    async def read() -> None:
        held = list[bytes]()
        link = client_module.Link(Endless(), held)
        reading = asyncio.create_task(made._client._read(link))
        await asyncio.sleep(0)
        assert len(held) == len(received) == 10
        link.held = None
        link.is_released.set()
        await asyncio.wait({reading})  # to the end of the frames
        assert isinstance(reading.exception(), IndexError)

    received = list[bytes]()
    monkeypatch.setattr(client_module, "_MOST_HELD_BYTES", 9 * len(frames[10]) + 500)
    made = source(1, "a@trade")
    made._client.inbox = Inbox()
    asyncio.run(read())
    assert len(made._client.inbox._items) == 100 - 10


def test_a_rejected_url_is_an_error_and_a_stopped_source_ends() -> None:
    def reject(connection: ServerConnection, request: object) -> object:
        return connection.respond(400, "no such stream")

    venue = Venue(sends())
    venue._http = reject  # type: ignore[method-assign, assignment]
    with running(venue) as port:
        with pytest.raises(SourceError, match="rejected with HTTP status 400: b'no such stream"):
            list(source(port, "a@trade").chunks())
        stopped = source(port, "a@trade")
        stopped.stop()
        assert list(stopped.chunks()) == []
        with pytest.raises(SourceError, match="iterated before"):
            list(stopped.chunks())


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("127.0.0.1:1/stream", "expected binance"),
        ("127.0.0.1:1/ws?streams=a@trade", "expected binance"),
        ("user@127.0.0.1:1/stream?streams=a@trade", "expected binance"),
        ("127.0.0.1:0/stream?streams=a@trade", "expected binance"),
        ("a..b:1/stream?streams=a@trade", "expected binance"),
        ("127.0.0.1:1/stream?streams=a@trade&streams=b@trade", "each parameter once"),
        ("127.0.0.1:1/stream?streams=a", "expected SYMBOL@TYPE"),
        ("127.0.0.1:1/stream?streams=a@trade/a@trade", "several times"),
        ("127.0.0.1:1/stream?streams=BTCUSDT@trade", "lower case: btcusdt@trade"),
        ("127.0.0.1:1/stream?streams=" + "/".join(f"a{n}@trade" for n in range(1025)), "at most 1024"),
        ("127.0.0.1:1/stream?streams=a@depth", "is not a host of Binance"),
        ("127.0.0.1:1/stream?streams=a@depth&rest=ftp://x", "rest was 'ftp://x'"),
        ("127.0.0.1:1/stream?streams=a@trade&stale=0", "stale was 0"),
        ("127.0.0.1:1/stream?streams=a@trade&stale=soon", "stale was 'soon'"),
    ],
)
def test_a_wrong_url_is_an_error_that_says_what_is_expected(url: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        BinanceWs(url)


def test_binances_own_hosts_have_their_own_order_books() -> None:
    for host, rest in (
        ("stream.binance.com:9443", "https://api.binance.com/api/v3/depth"),
        ("fstream.binance.com", "https://fapi.binance.com/fapi/v1/depth"),
        ("dstream.binance.com", "https://dapi.binance.com/dapi/v1/depth"),
    ):
        made = BinanceWss.from_spec(f"//{host}/stream?streams=btcusdt@depth@100ms&timeUnit=MICROSECOND")
        target = made._client._target
        assert target.rest == rest
        assert target.url == f"wss://{host}/stream?streams=btcusdt@depth@100ms&timeUnit=MICROSECOND"


def test_the_source_is_known_by_its_scheme() -> None:
    assert isinstance(open_source("binance+ws://127.0.0.1:1/stream?streams=a@trade"), BinanceWs)
