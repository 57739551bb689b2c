"""Durable subscriptions: they last until they are ended, and deliver each message once per commit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackbox import BlackBoxError, ConfigError, Feed, Hub, HubClient
from blackbox.archive.consumer_positions import PositionFile
from blackbox.block.batch.batch import Message
from blackbox.block.position import Position
from blackbox.errors import HubError, PositionError
from blackbox.native.system import waits
from blackbox.services.hub.client.durable_subscription import Subscription
from blackbox.services.hub.client.subscriptions import Subscriptions
from blackbox.services.hub.protocol import Welcome
from blackbox.testing import wait_until
from tests.hub.hubs import hub_feed, leave

WAIT_S = 60.0


def numbers(client: HubClient, prefix: bytes, count: int) -> list[int]:
    return [int(client.get(prefix, WAIT_S).payload) for _ in range(count)]


def put_numbers(client: HubClient, begin: int, stop: int, topic: bytes = b"A.x") -> None:
    for number in range(begin, stop):
        client.put_soon(topic, b"%d" % number)
    client.flush()


def reader(feed: Feed, place: Path) -> HubClient:
    return HubClient(feed, "reader", place / "reader")


def test_subscriptions_each_have_their_own_position(tmp_path: Path, feed: Feed) -> None:
    with Hub(feed, tmp_path / "hub"), reader(feed, tmp_path) as client:
        client.subscribe(b"A")
        client.subscribe(b"A.x")
        put_numbers(client, 0, 20)
        assert numbers(client, b"A.x", 20) == list(range(20))
        client.commit()
        assert numbers(client, b"A", 20) == list(range(20))


def test_received_messages_are_delivered_while_the_hub_is_down(tmp_path: Path, feed: Feed) -> None:
    with reader(feed, tmp_path) as client:
        with Hub(feed, tmp_path / "hub"):
            client.subscribe(b"")
            put_numbers(client, 0, 50)
            assert numbers(client, b"", 1) == [0]
            # A hub that ends in order sends all messages before it reports its end.
        assert numbers(client, b"", 49) == list(range(1, 50))
        with pytest.raises(TimeoutError, match=r"no message of prefix b'.*' arrived in"):
            client.get(b"", 0.2)
        with Hub(feed, tmp_path / "hub"):
            put_numbers(client, 50, 60)
            assert numbers(client, b"", 10) == list(range(50, 60))


def test_a_subscription_that_begins_while_the_hub_is_down_raises(tmp_path: Path, feed: Feed) -> None:
    with Hub(feed, tmp_path / "hub"), reader(feed, tmp_path) as client:
        client.subscribe(b"")
        put_numbers(client, 0, 5)
    with reader(feed, tmp_path) as client:
        with pytest.raises(TimeoutError, match="the hub is away"):
            client.get(b"", 0.5)
        with Hub(feed, tmp_path / "hub"):
            assert numbers(client, b"", 5) == list(range(5))


def test_repeated_short_gets_still_receive_messages(tmp_path: Path, feed: Feed) -> None:
    got = list[bytes | None]()

    def look() -> bool:
        with suppress(TimeoutError):
            got.append(client.get(b"", 0.0).payload)
        return bool(got)

    with Hub(feed, tmp_path / "hub"), reader(feed, tmp_path) as client:
        client.subscribe(b"")
        put_numbers(client, 0, 1)
        wait_until(look)
    assert got == [b"0"]


@pytest.mark.parametrize(("end", "left"), [(HubClient.end, [b""]), (lambda client: client.unsubscribe(b""), [])])
def test_a_subscription_that_is_being_started_can_be_ended(
    tmp_path: Path, feed: Feed, end: Callable[[HubClient], None], left: list[bytes]
) -> None:
    with Hub(feed, tmp_path / "hub"), reader(feed, tmp_path) as client:
        client.subscribe(b"")
        put_numbers(client, 0, 1)
    client = reader(feed, tmp_path).start()
    with pytest.raises(TimeoutError, match="has not confirmed the subscription yet"):
        client.get(b"", 0.0)
    end(client)
    assert not [each for each in threading.enumerate() if each.name == "blackbox-inbox"]
    client.end()
    with Hub(feed, tmp_path / "hub"), reader(feed, tmp_path) as client:
        assert [each.text for each in client.subscriptions] == left
        assert [numbers(client, prefix, 1) for prefix in left] == [[0] for _ in left]


def test_a_get_after_the_end_of_its_client_starts_no_subscription(tmp_path: Path, feed: Feed) -> None:
    """Otherwise its subscription would continue under its name, and no client could end it."""
    with Hub(feed, tmp_path / "hub"):
        with reader(feed, tmp_path) as client:
            client.subscribe(b"")
        with pytest.raises(HubError, match="subscription of prefix b'' was closed, expected an open client"):
            client.get(b"", 0.0)
        assert not [each for each in threading.enumerate() if each.name == "blackbox-inbox"]
        with reader(feed, tmp_path) as client:
            put_numbers(client, 0, 1)
            assert numbers(client, b"", 1) == [0]


@pytest.mark.parametrize(
    ("end", "timeout", "is_there"),
    [
        (HubClient.end, None, True),
        (lambda client: client.unsubscribe(b""), 0.0, False),
        (HubClient.end, 0.01, False),
    ],
)
def test_a_get_during_close_raises_and_starts_no_subscription(
    tmp_path: Path, feed: Feed, end: Callable[[HubClient], None], timeout: float | None, is_there: bool
) -> None:
    raised = list[BlackBoxError]()
    asks = threading.Event()

    def get() -> None:
        while not raised:
            asks.set()
            try:
                client.get(b"", timeout)
            except TimeoutError:
                continue
            except BlackBoxError as error:
                raised.append(error)

    with Hub(feed, tmp_path / "hub") as hub:
        with reader(feed, tmp_path) as client:
            client.subscribe(b"")
        if not is_there:
            hub.close()
        client = reader(feed, tmp_path).start()
        thread = threading.Thread(target=get, daemon=True)
        thread.start()
        assert asks.wait(200)
        end(client)
        thread.join(200)
        assert not thread.is_alive()
        (error,) = raised
        assert isinstance(error, HubError), error
        for again in (lambda: client.get(b"", 0.0), client.commit):
            if client.subscriptions:
                with pytest.raises(HubError, match="was closed"):
                    again()
        client.end()
        HubClient(feed, "reader", tmp_path / "reader").start().end()
        assert not [each for each in threading.enumerate() if each.name in ("blackbox-inbox", "blackbox-consumer")]


def test_unsubscribe_is_durable_and_subscribe_starts_afresh(tmp_path: Path, feed: Feed) -> None:
    with Hub(feed, tmp_path / "hub"):
        with reader(feed, tmp_path) as client:
            client.subscribe(b"A")
            client.subscribe(b"B")
            put_numbers(client, 0, 10)
            numbers(client, b"A", 1)
            client.unsubscribe("A")
            with pytest.raises(HubError, match="no subscription of prefix b'A', expected one of: prefix b'B'"):
                client.get(b"A")
        with reader(feed, tmp_path) as client:
            assert client.subscriptions == [Subscription("prefix", b"B")]
            with pytest.raises(HubError):
                client.unsubscribe(b"A")
            client.subscribe(b"A")
            put_numbers(client, 10, 12)
            assert numbers(client, b"A", 2) == [10, 11]


def test_a_subscription_that_cannot_be_ended_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise PositionError("the disk is full")

    feed = hub_feed(slices=1)
    with Hub(feed, tmp_path / "hub"), reader(feed, tmp_path) as client:
        client.subscribe(b"A")
        with monkeypatch.context() as patch:
            patch.setattr(PositionFile, "end", fail)
            with pytest.raises(PositionError, match="disk is full"):
                client.unsubscribe(b"A")
        put_numbers(client, 0, 1)
        assert numbers(client, b"A", 1) == [0]
        client.commit()


def test_a_subscription_that_no_slice_can_hold_is_refused(tmp_path: Path, feed: Feed) -> None:
    """Also a stored one, if the feed held its topics before."""
    file = PositionFile(tmp_path, Subscription("prefix", b"B.").consumer("desk"))
    file.keep(feed.name, {0: Position(1, 0)})
    part = msgspec.structs.replace(feed.slices[0], share=None, prefixes=("A.",))
    narrow = msgspec.structs.replace(feed, slices=(part,))
    with pytest.raises(ConfigError, match="no slice can hold topics"):
        HubClient(narrow, "desk", tmp_path).start()
    assert not [each for each in threading.enumerate() if each.name == "blackbox-client"]
    with HubClient(narrow, "other", tmp_path) as client, pytest.raises(ConfigError, match="no slice can hold topics"):
        client.subscribe(b"Z")


def test_a_client_killed_after_subscribe_is_still_subscribed(tmp_path: Path, feed: Feed) -> None:
    with Hub(feed, tmp_path / "hub"):
        with reader(feed, tmp_path / "killed") as client:
            client.subscribe(b"A")
            leave(tmp_path / "killed", tmp_path / "left", {})
        with reader(feed, tmp_path / "left") as client:
            put_numbers(client, 0, 3)
            assert numbers(client, b"A", 3) == [0, 1, 2]


def test_a_client_without_a_name_or_directory_cannot_subscribe(tmp_path: Path) -> None:
    feed = hub_feed()
    with pytest.raises(ConfigError, match="subscriptions need both"):
        HubClient(feed, directory=tmp_path)
    with HubClient(feed, "desk") as client, pytest.raises(ConfigError, match="directory was None"):
        client.subscribe(b"A")


KINDS: Final[list[Literal["prefix", "symbol"]]] = ["prefix", "symbol"]


@given(
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9.-]{0,31}", fullmatch=True),
    st.sampled_from(KINDS),
    st.binary(max_size=12) | st.sampled_from([b"_symbol", b"symbol", b"aa"]),
    st.text(max_size=5),
)
def test_the_consumer_name_contains_client_and_subscription(
    client: str, kind: Literal["prefix", "symbol"], text: bytes, other: str
) -> None:
    subscription = Subscription(kind, text)
    name = subscription.consumer(client)
    assert Subscription.of_consumer(client, name) == subscription
    if other and not client.startswith(other) and "_" not in other:
        assert Subscription.of_consumer(other, name) is None


TOPICS: Final = ["AAPL", "AAPL.trade", "AAPLW.trade", "BRK.trade", "BRK.B.trade", "BRK.B.quote"]


def test_a_subscription_of_a_symbol_has_exactly_its_topics(tmp_path: Path) -> None:
    feed = hub_feed(slices=2)
    with Hub(feed, tmp_path / "hub"):
        with reader(feed, tmp_path) as client:
            client.subscribe(symbols=["AAPL", "BRK", b"BRK.B"])
            for topic in TOPICS:
                client.put(topic, b"1")
            assert [client.get(symbols=["AAPL"], timeout=WAIT_S).topic for _ in range(2)] == [b"AAPL", b"AAPL.trade"]
            client.commit()
        with reader(feed, tmp_path) as client:
            assert client.subscriptions == [Subscription("symbol", each) for each in (b"AAPL", b"BRK", b"BRK.B")]
            client.put("AAPL.quote", b"2")
            assert client.get(symbols=["AAPL"], timeout=WAIT_S).topic == b"AAPL.quote"
            got = {client.get(symbols=["BRK", "BRK.B"], timeout=WAIT_S).topic for _ in range(3)}
            assert got == {b"BRK.trade", b"BRK.B.trade", b"BRK.B.quote"}
            for symbol in ("AAPL", "BRK", "BRK.B"):
                with pytest.raises(TimeoutError, match=f"no message of symbol b'{symbol}' arrived"):
                    client.get(symbols=[symbol], timeout=0.0)
            client.unsubscribe(symbols=["AAPL", "BRK"])
        with reader(feed, tmp_path) as client:
            assert client.subscriptions == [Subscription("symbol", b"BRK.B")]
            with pytest.raises(HubError, match=r"no subscription of symbol b'AAPL', expected one of: symbol b'BRK\.B'"):
                client.get(symbols=["AAPL"])


def test_a_subscription_is_of_prefixes_or_of_symbols(tmp_path: Path) -> None:
    with reader(hub_feed(), tmp_path) as client:
        calls: list[Callable[..., object]] = [client.subscribe, client.get, client.unsubscribe]
        for call in calls:
            for words in ({}, {"prefix": b"A.", "symbols": ["A"]}):
                with pytest.raises(ConfigError, match="expected one of them"):
                    call(**words)
            with pytest.raises(TypeError, match="symbols was 'AAPL', expected a list"):
                call(symbols="AAPL")


def get_in_thread(client: HubClient, prefixes: list[str]) -> Future[Message]:
    """Get a message in another thread; return once that thread waits for one of several subscriptions."""
    got: Future[Message] = Future()

    def run() -> None:
        try:
            got.set_result(client.get(prefixes, WAIT_S))
        except BaseException as error:  # noqa: BLE001 - it is for the thread that waits
            got.set_exception(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    wait_until(lambda: client._durable.arrivals._changed._waiters or got.done(), what="the get")  # type: ignore[attr-defined]
    return got


def test_the_first_message_of_any_of_several_subscriptions_ends_the_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waits, "STEP_S", 1e6)  # a wait that polls would end at its limit
    feed = hub_feed(slices=2)
    prefixes = [f"{letter}." for letter in "ABCDEF"]
    with Hub(feed, tmp_path / "hub"), reader(feed, tmp_path) as client:
        for prefix in prefixes:
            client.subscribe(prefix)
        for number, prefix in enumerate(prefixes):
            got = get_in_thread(client, prefixes)
            client.put(prefix + "x", b"%d" % number)
            message = got.result(WAIT_S)
            assert (message.topic, message.payload) == (prefix.encode() + b"x", b"%d" % number)


def begin_two(client: HubClient) -> list[Message]:
    """Subscribe to two prefixes; put and return the first message of each."""
    for prefix in ("A.", "B."):
        client.subscribe(prefix)
    for topic in (b"A.x", b"B.x"):
        put_numbers(client, 0, 1, topic)
    return [client.get(prefix, WAIT_S) for prefix in ("A.", "B.")]


def test_several_subscriptions_take_turns_and_none_starves(tmp_path: Path, feed: Feed) -> None:
    with Hub(feed, tmp_path / "hub"), reader(feed, tmp_path) as client:
        first = begin_two(client)
        for topic in (b"A.x", b"B.x"):
            put_numbers(client, 1, 100, topic)
        inboxes = client._durable._inboxes.values()
        wait_until(
            lambda: all(each._opening and each._opening.stream._queue.messages == 99 for each in inboxes), WAIT_S
        )
        rest = [client.get([b"A.", b"B."], WAIT_S) for _ in range(198)]
        for topic in (b"A.x", b"B.x"):
            assert [int(each.payload) for each in (*first, *rest) if each.topic == topic] == list(range(100))
        assert {each.topic for each in rest[:99]} == {b"A.x", b"B.x"}  # 99 of A alone if B starved


def test_several_subscriptions_are_waited_for_until_the_limit(tmp_path: Path, feed: Feed) -> None:
    with reader(feed, tmp_path) as client, Hub(feed, tmp_path / "hub"):
        begin_two(client)
        for timeout in (0.0, 0.1):
            with pytest.raises(
                TimeoutError, match=rf"^no message of prefix b'A\.', prefix b'B\.' arrived in {timeout} s$"
            ):
                client.get(["A.", "B."], timeout)
        with pytest.raises(HubError, match=r"no subscription of prefix b'C\.'"):
            client.get(["A.", "C."], 0.0)
        with pytest.raises(ValueError, match="at least one prefix or symbol"):
            client.get([])
    with reader(feed, tmp_path) as client, pytest.raises(TimeoutError, match="has not confirmed all subscriptions"):
        client.get(["A.", "B."], 0.1)


@pytest.mark.parametrize("is_here", [True, False])
def test_a_get_of_several_subscriptions_ends_with_the_client(tmp_path: Path, feed: Feed, is_here: bool) -> None:
    client = reader(feed, tmp_path).start()
    with Hub(feed, tmp_path / "hub"):
        if is_here:
            begin_two(client)
        else:
            for prefix in ("A.", "B."):
                client.subscribe(prefix)
        got = get_in_thread(client, ["A.", "B."])
        client.end()
        with pytest.raises(HubError, match="was closed"):
            got.result(WAIT_S)


def test_a_second_subscribe_keeps_the_position_of_the_first(tmp_path: Path, feed: Feed) -> None:
    """Two threads subscribe at the same time."""
    durable = Subscriptions(feed, "desk", tmp_path, 10, keep=False)

    def answer_late(_: bytes) -> Welcome:
        durable.subscribe(b"A", None, lambda _: Welcome(0, 0, 7, [10]))
        return Welcome(0, 0, 7, [20])

    durable.subscribe(b"A", None, answer_late)
    durable.end_reports()
    kept = PositionFile(tmp_path, Subscription("prefix", b"A").consumer("desk")).read()
    assert kept is not None
    assert kept.slices == {0: Position(7, 10)}
