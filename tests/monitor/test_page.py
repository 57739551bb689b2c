"""The page's server: what it serves to whom, states for fast and slow browsers, prices and books of symbols."""

from __future__ import annotations

import asyncio
import http.client
import json
import signal
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from blackbox import ConfigError, Feed, Publisher
from blackbox.services.monitor.page.clients import MOST_CLIENTS, Clients
from blackbox.services.monitor.page.market import MOST_SYMBOLS, Market
from blackbox.services.monitor.watch.view import View
from blackbox.testing import wait_until
from tests.book.sessions import order
from tests.cli.commands import Command, assert_one_line, invoke, write_feed
from tests.cli.days import trade
from tests.monitor.pages import Served, page
from tests.monitor.test_watch_view import shown


def get(served: Served, path: str, host: str | None = None) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(served.url).port, timeout=200)
    connection.request("GET", path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    found = answer.status, dict(answer.getheaders()), answer.read().decode()
    connection.close()
    return found


def talk(served: Served, origin: str | None = "") -> ClientConnection:
    url = served.url.replace("http", "ws") + "state"
    allowed: Any = served.url.rstrip("/") if origin == "" else origin
    return connect(url, origin=allowed, max_size=1 << 26, compression=None)


def states(client: ClientConnection) -> Any:
    return json.loads(client.recv(60))


def until(client: ClientConnection, condition: Any) -> Any:
    """Return the first state for which a condition is true."""
    while not condition(state := states(client)):
        pass
    return state


def feed_of(schema: str = "raw") -> Feed:
    return msgspec.structs.replace(Feed.local("quotes", slices=1), schema=schema)


def test_the_page_is_complete_and_for_its_own_host_only() -> None:
    feed = feed_of()
    with page(feed) as served:
        status, headers, text = get(served, "/")
        assert (status, "http" in text.replace("http-equiv", "")) == (200, False)
        assert "script-src 'self'" in headers["content-security-policy"]
        for path in ("/page.css", "/page.js", "/chart.js"):
            assert get(served, path)[0] == 200
            assert "://" not in get(served, path)[2].replace("http://www.w3.org/2000/svg", "").replace(
                "${scheme}://", ""
            )
        assert get(served, "/../server.py")[0] == 404
        assert get(served, "/", host="evil.example:80")[0] == 421
        for host in ("localhost:80", "[::1]:80", "10.0.0.5", "desk", "desk.internal.:9500"):
            assert get(served, "/", host=host)[0] == 200
        for origin in (None, "http://evil.example"):
            with pytest.raises(InvalidStatus):
                talk(served, origin)


def test_a_browser_gets_states_with_what_is_wrong() -> None:
    feed = msgspec.structs.replace(feed_of(), heartbeat_ns=50_000_000)
    with page(feed) as served, talk(served) as client:
        first = states(client)
        assert (first["view"]["slices"][0]["feed"], first["history"], first["error"]) == ("quotes", [], "")
        assert msgspec.convert(first["view"], View).lost == 0
        late = until(client, lambda state: state["view"]["conditions"])
        assert late["view"]["conditions"][0]["kind"] == "late_publisher"
        assert "history" not in late
        with Publisher(feed) as publisher:
            publisher.publish(b"A.t", b"x")
            fine = until(client, lambda state: not state["view"]["conditions"])
        assert fine["view"]["slices"][0]["lines"] == {"A": "alive"}
        client.send("nonsense")
        assert "error" in until(client, lambda state: state["error"])


def test_prices_and_books_of_chosen_symbols() -> None:
    feed = feed_of("itch50")
    with Publisher(feed) as publisher, page(feed) as served, talk(served) as client:
        client.send(json.dumps({"do": "show", "feed": "quotes", "symbol": "AAPL"}))
        until(client, lambda state: state["instruments"] and state["instruments"][0]["state"] == "live")
        publisher.publish(b"AAPL.A", order(1, b"B", 1_899_900, 300))
        publisher.publish(b"AAPL.A", order(2, b"S", 1_900_100, 200))
        publisher.publish(b"AAPL.P", trade("AAPL", 100).payload)
        publisher.publish(b"MSFT.P", trade("MSFT", 100).payload)
        state = until(client, lambda state: state["instruments"][0]["messages"] == 3)
        (found,) = state["instruments"]
        assert (found["symbol"], found["price"], found["size"]) == ("AAPL", 12.345, 100.0)
        assert (found["bids"], found["asks"]) == ([[189.99, 300.0]], [[190.01, 200.0]])
        assert found["prices"][-1][1] == 12.345
        client.send(json.dumps({"do": "show", "feed": "other", "symbol": "AAPL"}))
        assert "feed was 'other', expected one of quotes" in until(client, lambda state: state["error"])["error"]
        client.send(json.dumps({"do": "remove", "feed": "quotes", "symbol": "AAPL"}))
        until(client, lambda state: not state["instruments"])
        wait_until(lambda: not served.server.clients.market.instruments(), what="the end of the subscription")


def test_json_payloads_have_prices_too() -> None:
    feed = feed_of("binance")
    with Publisher(feed) as publisher, page(feed) as served, talk(served) as client:
        client.send(json.dumps({"do": "show", "feed": "quotes", "symbol": "btcusdt"}))
        until(client, lambda state: state["instruments"] and state["instruments"][0]["state"] == "live")
        trade = b'{"stream":"btcusdt@trade","data":{"e":"trade","p":"61000.5","q":"0.25","X":"MARKET","t":1}}'
        quote = b'{"stream":"btcusdt@bookTicker","data":{"b":"61000.0","B":"2","a":"61001.0","A":"3"}}'
        publisher.publish(b"btcusdt.trade", trade)
        publisher.publish(b"btcusdt.bookTicker", quote)
        (found,) = until(client, lambda state: state["instruments"][0]["messages"] == 2)["instruments"]
    assert (found["price"], found["size"], found["in_sync"]) == (61_000.5, 0.25, None)
    assert (found["bids"], found["asks"]) == ([[61_000.0, 2.0]], [[61_001.0, 3.0]])


def test_a_slow_browser_gets_fewer_states_and_delays_no_other() -> None:
    view = shown()[1]

    async def play() -> None:
        clients = Clients(Market(()))
        fast, slow = clients.enter(), clients.enter()
        taken = asyncio.Queue[str]()
        gate = asyncio.Event()

        async def take(text: str) -> None:
            taken.put_nowait(text)

        async def wait(_: str) -> None:
            await gate.wait()

        tasks = [asyncio.ensure_future(fast.send_all(take)), asyncio.ensure_future(slow.send_all(wait))]
        for number in range(50):
            clients.publish(msgspec.structs.replace(view, now_ns=number))
            assert json.loads(await taken.get())["view"]["now_ns"] == number
        assert (fast.passed_over, slow.passed_over) == (0, 48)
        for task in tasks:
            task.cancel()
        clients.leave(fast)
        assert clients.count == 1

    asyncio.run(play())


def test_the_numbers_of_browsers_and_symbols_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = feed_of()
    market = Market((feed,))
    for number in range(MOST_SYMBOLS):
        market.choose("quotes", f"S{number}")
    with pytest.raises(ConfigError, match="16 symbols are shown, the most of all browsers"):
        market.choose("quotes", "one more")
    with pytest.raises(ConfigError, match="symbol had 65 bytes"):
        market.choose("quotes", "x" * 65)
    market.choose("quotes", "S1")
    market.close()
    clients = Clients(Market(()))
    for _ in range(MOST_CLIENTS):
        clients.enter()
    assert not clients.has_room
    monkeypatch.setattr("blackbox.services.monitor.page.clients.MOST_CLIENTS", 1)
    with page(feed) as served, talk(served) as first:
        assert isinstance(states(first)["view"], dict)
        with pytest.raises(ConnectionClosed) as caught, talk(served) as second:
            second.recv(60)
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1013


def test_removed_symbols_count_until_they_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    monkeypatch.setattr("blackbox.services.monitor.page.market._Symbol._run", lambda _: gate.wait())
    market = Market((feed_of(),))
    for number in range(MOST_SYMBOLS):
        market.choose("quotes", f"S{number}")
        market.release("quotes", f"S{number}")
    assert market.instruments() == {}
    with pytest.raises(ConfigError, match="16 removed symbols have not ended yet: try again"):
        market.choose("quotes", "one more")
    gate.set()
    wait_until(lambda: all(each.has_ended for each in market._ending), what="the ends of removed symbols")
    market.choose("quotes", "one more")
    market.close()


def test_the_command_says_where_the_page_is_and_ends_cleanly(tmp_path: Path) -> None:
    path = write_feed(feed_of(), tmp_path / "feed.toml")
    with Command("dashboard", path, "--listen", "127.0.0.1:0") as command:
        assert command.process.stderr is not None
        line = next(line for line in command.process.stderr if "the page is at" in line)
        url = line.rpartition(" ")[2].strip()
        assert get(Served(url, None), "/")[0] == 200  # type: ignore[arg-type]
        used = invoke("dashboard", path, "--listen", url.removeprefix("http://").rstrip("/"))
        ended = command.interrupt(signal.SIGTERM)
    assert ended.status == 143, ended.errors
    assert_one_line(used, r"^error: address of the page 127\.0\.0\.1:\d+ is in use$")
