"""A recorded day served as Binance does: foreign clients and our own receive what was recorded, byte for byte."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy
import pytest
from blackbox_feeds.binance import Binance
from blackbox_feeds.binance.server import books as books_module
from blackbox_feeds.binance.server import hall as hall_module
from blackbox_feeds.binance.server.books import Book, RecordedBooks
from blackbox_feeds.binance.server.connection import Connection
from blackbox_feeds.binance.server.server import BinanceServer
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from blackbox import Recording
from blackbox.errors import BlackBoxError, ConfigError
from blackbox.feed.venue_url import Address
from blackbox.replay.play.to_venue import VenuePlayer, order_for_venue
from blackbox.replay.play.venue_server import VenueMessages
from blackbox.replay.replay import Replay
from blackbox.testing import wait_until
from tests.patience import PATIENCE_S
from tests.recorded import recorded

DATA = Path(__file__).resolve().parents[4] / "shared" / "data" / "binance" / "spot_btcusdt_20240808.gz"
NS = 1_723_161_256_000_000_000
MS = NS // 1_000_000
BOOK = {"lastUpdateId": 104, "bids": [["9.00", "1.5"], ["8.00", "2.0"]], "asks": [["11.00", "1.0"], ["12.00", "3.0"]]}
"""The order book that was requested after the frame with the numbers 102 to 106."""


def compact(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def wrapped(stream: str, data: dict[str, Any]) -> bytes:
    return compact({"stream": stream, "data": data})


def depth(number: int, first: int, last: int, bids: list[list[str]], asks: list[list[str]]) -> bytes:
    data = {"e": "depthUpdate", "E": MS + number, "s": "BTCUSDT", "U": first, "u": last, "b": bids, "a": asks}
    return wrapped("btcusdt@depth@100ms", data)


FRAMES = [
    wrapped("btcusdt@trade", {"e": "trade", "E": MS + 1, "s": "BTCUSDT", "t": 1, "p": "10.00", "q": "1"}),
    depth(2, 99, 101, [["7.00", "1.0"]], []),
    depth(3, 102, 106, [["9.00", "2.5"]], [["11.00", "0.00"]]),
    compact(BOOK),
    wrapped("ethusdt@trade", {"e": "trade", "E": MS + 4, "s": "ETHUSDT", "t": 8, "p": "2.00", "q": "1"}),
    wrapped("btcusdt@trade", {"e": "trade", "E": MS + 5, "s": "BTCUSDT", "t": 2, "p": "10.50", "q": "x" * 70_000}),
    depth(6, 107, 107, [["8.00", "0.0"]], [["11.50", "4.0"]]),
    wrapped("币安人生usdt@trade", {"e": "trade", "E": MS + 7, "s": "币安人生USDT", "t": 3, "p": "1", "q": "y" * 200}),
]
LINES = [b"%d %b\n" % (NS + 1_000_000 * place, frame) for place, frame in enumerate(FRAMES, 1)]
STREAMED = [frame for frame in FRAMES if frame != compact(BOOK)]


def streams_of(frames: Sequence[bytes]) -> list[str]:
    return list(dict.fromkeys(json.loads(frame)["stream"] for frame in frames))


def data_of(frame: bytes) -> bytes:
    return frame.partition(b'"data":')[2][:-1]


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    directory = tmp_path_factory.mktemp("binance")
    file = directory / "btcusdt.txt"
    file.write_bytes(b"".join(LINES))
    return recorded(directory, lambda: Binance(file), slices=1)


class Client:
    """Collects the frames of one connection until the server closes it."""

    def __init__(self, port: int, path: str, *requests: str) -> None:
        self.connection: ClientConnection = connect(
            f"ws://127.0.0.1:{port}{path}", max_size=None, proxy=None, ping_interval=None
        ).__enter__()
        self.frames: list[bytes] = []
        for request in requests:
            self.connection.send(request)
            self.frames.append(self.connection.recv(decode=False))
        self.code = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while True:
                self.frames.append(self.connection.recv(decode=False))
        except ConnectionClosed as closed:
            self.code = closed.rcvd.code if closed.rcvd is not None else -1

    def join(self) -> list[bytes]:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        return self.frames


@contextmanager
def serving(day: Recording, **options: float) -> Iterator[BinanceServer]:
    with BinanceServer(Address("127.0.0.1", 0), [day], BinanceServer.Options(**options)) as server:
        yield server


def play(server: BinanceServer, day: Recording, clients: int, **settings: Any) -> None:
    server.wait_for(clients, PATIENCE_S)
    Replay([day], order=order_for_venue([day]), **settings).run(VenuePlayer(server, [day]))


def get(port: int, path: str) -> tuple[int, bytes]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_S) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_clients_get_the_recorded_bytes_of_their_streams(day: Recording) -> None:
    with serving(day) as server:
        whole = Client(server.port, "/stream?streams=" + "/".join(streams_of(STREAMED)))
        one = Client(server.port, "/ws/btcusdt@trade")
        asks = Client(
            server.port,
            "/stream",
            '{"method":"SUBSCRIBE","params":["ethusdt@trade","btcusdt@trade","other@trade"],"id":0}',
            '{"method":"UNSUBSCRIBE","params":["btcusdt@trade"],"id":1}',
        )
        raw = Client(server.port, "/ws", '{"method":"SUBSCRIBE","params":["btcusdt@depth@100ms"],"id":"a1"}')
        play(server, day, 4)
        status, book = get(server.port, "/api/v3/depth?symbol=BTCUSDT&limit=2")
        server.end(at_once=False)
        counts = server.counts()
    assert whole.join() == STREAMED
    assert one.join() == [data_of(frame) for frame in STREAMED if b"btcusdt@trade" in frame]
    assert asks.join()[:2] == [b'{"result":null,"id":0}', b'{"result":null,"id":1}']
    assert asks.frames[2:] == [frame for frame in STREAMED if b"ethusdt@trade" in frame]
    assert raw.join()[0] == b'{"result":null,"id":"a1"}'
    assert raw.frames[1:] == [data_of(frame) for frame in STREAMED if b"@depth" in frame]
    assert {each.code for each in (whole, one, asks, raw)} == {1001}
    assert (status, json.loads(book)) == (
        200,
        {"lastUpdateId": 107, "bids": [["9.00", "2.5"]], "asks": [["11.50", "4.0"], ["12.00", "3.0"]]},
    )
    assert counts["frames"] == len(STREAMED) + 2 + 1 + 3
    assert (counts["connections"], counts["requests"], counts["slow_clients"]) == (5, 1, 0)
    assert counts["messages_without_stream"] == 1


def test_a_client_that_does_not_read_is_disconnected_and_the_others_get_everything(
    day: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [b"%d %b\n" % (NS, wrapped("a@trade", {"t": n, "p": "1" * 60_000})) for n in range(400)]
    has_progressed = Connection.has_progressed

    def judge(connection: Connection) -> bool:
        assert connection._transport is not None
        is_reader = connection._transport.get_extra_info("peername")[1] == reads.connection.local_address[1]
        return has_progressed(connection) or is_reader  # which may be late on a busy machine

    monkeypatch.setattr(Connection, "has_progressed", judge)
    with serving(day, patience_s=0.5) as server:
        reads = Client(server.port, "/stream?streams=a@trade")
        sleeps = socket.create_connection(("127.0.0.1", server.port))
        sleeps.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        sleeps.sendall(
            b"GET /ws/a@trade HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        server.wait_for(2, PATIENCE_S)
        data = numpy.frombuffer(b"".join(lines), numpy.uint8)
        lengths = numpy.array([len(each) for each in lines], numpy.int32)
        addresses = data.ctypes.data + numpy.cumsum(lengths, dtype=numpy.int64) - lengths
        server.send(
            VenueMessages(
                numpy.full(len(lines), NS), addresses, lengths, numpy.zeros(len(lines), numpy.int32), (b"a.trade",)
            )
        )
        wait_until(lambda: len(reads.frames) == len(lines), PATIENCE_S)
        server.end(at_once=False)
        counts = server.counts()
    sleeps.close()
    assert [json.loads(frame)["data"]["t"] for frame in reads.join()] == list(range(len(lines)))
    assert counts["slow_clients"] == 1


LINE = numpy.frombuffer(LINES[0], numpy.uint8)
ONE_TRADE = VenueMessages(
    numpy.array([NS]),
    numpy.array([LINE.ctypes.data]),
    numpy.array([len(LINE)], numpy.int32),
    numpy.zeros(1, numpy.int32),
    (b"btcusdt.trade",),
)


@pytest.mark.parametrize("where", ["deliver", "ping"])
def test_a_failed_thread_is_an_error_of_each_call_and_closes_the_sockets(
    day: Recording, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(hall_module, "_PING_S", 0.05)
    with serving(day) as server:
        client = Client(server.port, "/ws/btcusdt@trade")
        server.wait_for(1, PATIENCE_S)
        if where == "deliver":
            monkeypatch.setattr(hall_module.Hall, "_deliver", fail)
        else:
            monkeypatch.setattr(Connection, "ping", fail)
        error = r"the server at 127\.0\.0\.1:0 failed: MemoryError\('no room'\)"
        with pytest.raises(BlackBoxError, match=error):
            while True:
                server.send(ONE_TRADE)
        client.join()

        def is_closed() -> bool:
            with suppress(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", server.port)).close()
                return False
            return True

        wait_until(is_closed, PATIENCE_S)
        with pytest.raises(BlackBoxError, match=error):
            server.wait_for(1, PATIENCE_S)
        with pytest.raises(BlackBoxError, match=error):
            server.end(at_once=False)


def test_a_client_leaves_nothing_behind_in_the_server(day: Recording) -> None:
    with serving(day) as server:
        for number in range(10):
            client = Client(server.port, f"/ws/btcusdt@trade/other{number}@trade")
            server.wait_for(1, PATIENCE_S)
            server.send(ONE_TRADE)
            wait_until(lambda: len(client.frames) == 1, PATIENCE_S)
            client.connection.close()
            wait_until(lambda: not server._hall.groups(), PATIENCE_S)
        assert len(server._wanted) == 1
        assert server.counts()["frames"] == 10


def test_a_client_that_subscribes_to_more_gets_the_frames_that_are_on_their_way(
    day: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(day) as server:
        client = Client(server.port, "/stream?streams=btcusdt@trade")
        server.wait_for(1, PATIENCE_S)
        before = server._hall.groups()
        client.connection.send('{"method":"SUBSCRIBE","params":["ethusdt@trade"],"id":1}')
        wait_until(lambda: len(client.frames) == 1, PATIENCE_S)
        monkeypatch.setattr(server._hall, "groups", lambda: before)
        server.send(ONE_TRADE)
        wait_until(lambda: len(client.frames) == 2, PATIENCE_S)
        client.connection.close()
        wait_until(lambda: not server._hall._connections, PATIENCE_S)
        server.send(ONE_TRADE)
    assert client.frames[1] == FRAMES[0]
    assert server.counts()["frames"] == 1


def test_a_client_without_a_handshake_is_silent_and_one_without_streams_is_not(
    day: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hall_module, "_PING_S", 0.1)
    with serving(day) as server:
        quiet = Client(server.port, "/ws")
        (answers,) = server._hall._connections
        since = answers.answered_at
        wait_until(lambda: answers.answered_at > since, PATIENCE_S)
        idle = socket.create_connection(("127.0.0.1", server.port), PATIENCE_S)
        wait_until(lambda: len(server._hall._connections) == 2, PATIENCE_S)
        (silent,) = server._hall._connections - {answers}
        silent.answered_at -= 1_000.0
        with idle, suppress(ConnectionResetError):
            assert idle.recv(1) == b""
        quiet.connection.send('{"method":"SUBSCRIBE","params":["btcusdt@trade"],"id":1}')
        server.wait_for(1, PATIENCE_S)
        assert server.counts()["silent_clients"] == 1


def test_a_step_back_disconnects_and_other_requests_have_binances_answers(day: Recording) -> None:
    with serving(day) as server:
        client = Client(server.port, "/ws/btcusdt@trade")
        play(server, day, 1)
        server.jump(is_back=True)
        client.join()
        assert client.code == 1001
        assert get(server.port, "/api/v3/ping") == (200, b"{}")
        assert "serverTime" in json.loads(get(server.port, "/fapi/v1/time")[1])
        assert get(server.port, "/api/v3/depth?symbol=XRPUSDT") == (400, b'{"code":-1121,"msg":"Invalid symbol."}')
        assert get(server.port, "/api/v3/depth?symbol=BTCUSDT&limit=0")[0] == 400
        assert get(server.port, "/api/v3/exchangeInfo")[0] == 404
        assert get(server.port, "//[/")[0] == 400


def test_frames_without_a_streams_name_are_wrapped_for_combined_connections(tmp_path: Path) -> None:
    data = compact({"e": "trade", "E": MS, "s": "BTCUSDT", "t": 1})
    (tmp_path / "raw.txt").write_bytes(b"%d %b\n" % (NS, data))
    day = recorded(tmp_path, lambda: Binance(tmp_path / "raw.txt"), slices=1)
    with serving(day) as server:
        combined, raw = Client(server.port, "/stream?streams=btcusdt@trade"), Client(server.port, "/ws/btcusdt@trade")
        play(server, day, 2)
        server.end(at_once=False)
    assert combined.join() == [b'{"stream":"btcusdt@trade","data":%b}' % data]
    assert raw.join() == [data]


def test_order_books_at_any_time_are_those_of_a_plain_loop(day: Recording) -> None:
    books = RecordedBooks([day])
    assert books.answer(b"btcusdt", NS + 3_000_000, 10) is None  # before the snapshot
    assert books.answer(b"btcusdt", NS + 4_000_000, 10) == compact(
        BOOK | {"lastUpdateId": 106, "bids": [["9.00", "2.5"], ["8.00", "2.0"]], "asks": [["12.00", "3.0"]]}
    )
    assert msgspec.json.decode(books.answer(b"btcusdt", NS + 9_000_000, 1) or b"")["bids"] == [["9.00", "2.5"]]
    assert msgspec.json.decode(books.answer(b"btcusdt", NS + 5_000_000, 1) or b"")["lastUpdateId"] == 106


def test_an_order_book_at_the_same_position_is_not_built_again(day: Recording) -> None:
    books = RecordedBooks([day])
    first = books.answer(b"btcusdt", NS + 4_000_000, 10)
    built = books._books[b"btcusdt"]
    assert books.answer(b"btcusdt", NS + 4_000_000, 10) == first
    assert books._books[b"btcusdt"][1] is built[1]


def test_an_order_book_that_cannot_be_read_is_an_error_of_the_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = compact(BOOK | {"bids": [["x", "1.5"]]})
    (tmp_path / "btcusdt.txt").write_bytes(b"".join([*LINES[:3], b"%d %b\n" % (NS + 4_000_000, wrong)]))
    day = recorded(tmp_path, lambda: Binance(tmp_path / "btcusdt.txt"), slices=1)
    with serving(day) as server:
        play(server, day, 0)
        status, body = get(server.port, "/api/v3/depth?symbol=BTCUSDT")
    assert (status, json.loads(body)["code"]) == (500, -1000)
    assert "order book of BTCUSDT cannot be read: ValueError" in caplog.text


def test_frames_before_a_snapshot_are_kept_up_to_a_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = [depth(n, n, n, [[f"{n}.00", "1.0" + "0" * 10_000]], []) for n in range(101, 121)]
    snapshot = compact({"lastUpdateId": 100, "bids": [], "asks": []})
    for most, kept in ((1 << 20, 20), (len(frames[0]) * 5, 5)):
        monkeypatch.setattr(books_module, "_REMEMBERED_BYTES", most)
        book = Book()
        for frame in [*frames, snapshot]:
            book.add(frame)
        assert (len(book._recent), book._recent_bytes) == (kept, kept * len(frames[0]))
        # Without the first frames after the snapshot there is no book, instead of a wrong one.
        assert book.update_id == (120 if kept == 20 else -1)


@pytest.mark.skipif(not DATA.exists(), reason="needs a recorded file")
def test_a_book_of_a_recorded_file_agrees_with_the_best_prices_that_binance_sent() -> None:
    book, seen = Book(), 0
    best: dict[int, tuple[str, str, str, str]] = {}
    lines = gzip.decompress(DATA.read_bytes()).splitlines()[:20_000]
    frames = [line.partition(b" ")[2] for line in lines]
    for document in map(msgspec.json.decode, frames):
        if document.get("stream") == "btcusdt@bookTicker":
            data = document["data"]
            best[data["u"]] = data["b"], data["B"], data["a"], data["A"]
    for frame in frames:
        book.add(frame)
        if book.update_id in best and b"@depth" in frame:
            now = book.document(1)
            assert (*now["bids"][0], *now["asks"][0]) == best[book.update_id]
            seen += 1
    assert seen > 100


def test_a_wrong_option_is_an_error(day: Recording) -> None:
    with pytest.raises(ConfigError, match="patience_s=0"):
        BinanceServer(Address("127.0.0.1", 0), [day], BinanceServer.Options(patience_s=0))


def test_binances_own_connector_runs_on_a_recorded_day(day: Recording) -> None:
    stream_client = pytest.importorskip("binance.websocket.spot.websocket_stream")
    spot = pytest.importorskip("binance.spot")
    got: list[str] = []
    closed = threading.Event()
    on_message: Callable[[object, str], None] = lambda _, text: got.append(text)  # noqa: E731 - its interface
    with serving(day) as server:
        client = stream_client.SpotWebsocketStreamClient(
            stream_url=f"ws://127.0.0.1:{server.port}",
            on_message=on_message,
            on_close=lambda *_: closed.set(),
            is_combined=True,
        )
        client.trade(symbol="btcusdt", id=1)
        play(server, day, 1)
        rest = spot.Spot(base_url=f"http://127.0.0.1:{server.port}")
        book = rest.depth("BTCUSDT", limit=5)
        rest.session.close()
        server.end(at_once=False)
        assert closed.wait(PATIENCE_S)
        client.stop()
        client.socket_manager.join(PATIENCE_S)
        client.socket_manager.ws.shutdown()
    assert json.loads(got[0]) == {"result": None, "id": 1}
    assert [text.encode() for text in got[1:]] == [frame for frame in STREAMED if b"btcusdt@trade" in frame]
    assert book["lastUpdateId"] == 107
