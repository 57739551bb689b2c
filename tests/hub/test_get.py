"""Getting: durable subscriptions, from the place where they began until they are ended, each message once a commit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackbox import BlackBoxError, ConfigError, Feed, Hub, HubClient
from blackbox.block.batch import Message
from blackbox.errors import HubError
from blackbox.hub.inbox import name_of, prefix_of
from blackbox.native import waits
from blackbox.testing import wait_until
from tests.hub.hubs import hub_feed
from tests.support import Script

WAIT_S = 60.0


def numbers(client: HubClient, prefix: bytes, count: int) -> list[int]:
    return [int(client.get(prefix, WAIT_S).payload) for _ in range(count)]


def put_numbers(client: HubClient, begin: int, stop: int, topic: bytes = b"A.x") -> None:
    for number in range(begin, stop):
        client.put_soon(topic, b"%d" % number)
    client.flush()


def reader(feed: Feed, place: Path) -> HubClient:
    return HubClient(feed, "reader", place / "reader")


def test_all_that_is_put_after_subscribe_is_got_once(tmp_path: Path) -> None:
    feed = hub_feed(slices=1)
    with Hub(feed, tmp_path / "hub"), reader(feed, tmp_path) as client:
        put_numbers(client, 0, 10)
        client.subscribe(b"A.")
        client.subscribe(b"A.")
        put_numbers(client, 10, 1_000)
        put_numbers(client, 0, 5, b"B.x")
        assert numbers(client, b"A.", 990) == list(range(10, 1_000))
        with pytest.raises(TimeoutError):
            client.get(b"A.", 0.1)
        assert client.subscriptions == [b"A."]


def test_what_was_got_since_the_last_commit_comes_again(tmp_path: Path) -> None:
    feed = hub_feed(slices=1)
    with Hub(feed, tmp_path / "hub"):
        with reader(feed, tmp_path) as client:
            client.subscribe(b"")
            put_numbers(client, 0, 100)
            assert numbers(client, b"", 30) == list(range(30))
            client.commit()
            assert numbers(client, b"", 20) == list(range(30, 50))
        with reader(feed, tmp_path) as client:
            assert client.subscriptions == [b""]
            assert numbers(client, b"", 70) == list(range(30, 100))
            client.commit()
        with reader(feed, tmp_path) as client:
            put_numbers(client, 100, 110)
            assert numbers(client, b"", 10) == list(range(100, 110))


def test_subscriptions_each_have_their_own_position(tmp_path: Path) -> None:
    feed = hub_feed(slices=1)
    with Hub(feed, tmp_path / "hub"), reader(feed, tmp_path) as client:
        client.subscribe(b"A")
        client.subscribe(b"A.x")
        put_numbers(client, 0, 20)
        assert numbers(client, b"A.x", 20) == list(range(20))
        client.commit()
        assert numbers(client, b"A", 20) == list(range(20))


def test_what_is_here_is_got_while_the_hub_is_away_and_the_rest_when_it_is_back(tmp_path: Path) -> None:
    feed = hub_feed(slices=1)
    with reader(feed, tmp_path) as client:
        with Hub(feed, tmp_path / "hub"):
            client.subscribe(b"")
            put_numbers(client, 0, 50)
            assert numbers(client, b"", 1) == [0]
            # All have come by the time the hub has ended in order: it sends before it says that it ends.
        assert numbers(client, b"", 49) == list(range(1, 50))
        with pytest.raises(TimeoutError, match=r"nothing of b'.*' came in"):
            client.get(b"", 0.2)
        with Hub(feed, tmp_path / "hub"):
            put_numbers(client, 50, 60)
            assert numbers(client, b"", 10) == list(range(50, 60))


def test_a_subscription_that_begins_while_the_hub_is_away_says_so(tmp_path: Path) -> None:
    feed = hub_feed(slices=1)
    with Hub(feed, tmp_path / "hub"), reader(feed, tmp_path) as client:
        client.subscribe(b"")
        put_numbers(client, 0, 5)
    with reader(feed, tmp_path) as client:
        with pytest.raises(TimeoutError, match="the hub is away"):
            client.get(b"", 0.5)
        with Hub(feed, tmp_path / "hub"):
            assert numbers(client, b"", 5) == list(range(5))


def test_who_asks_again_and_again_for_a_moment_gets_all_the_same(tmp_path: Path) -> None:
    feed = hub_feed(slices=1)
    got = list[bytes | None]()

    def look() -> bool:
        with suppress(TimeoutError):
            got.append(client.get(b"", 0.0).payload)
        return bool(got)

    with Hub(feed, tmp_path / "hub"), reader(feed, tmp_path) as client:
        client.subscribe(b"")
        put_numbers(client, 0, 1)
        wait_until(look, 60)
    assert got == [b"0"]


@pytest.mark.parametrize(("end", "left"), [(HubClient.end, [b""]), (lambda client: client.unsubscribe(b""), [])])
def test_a_subscription_that_is_being_started_can_be_ended(
    tmp_path: Path, end: Callable[[HubClient], None], left: list[bytes]
) -> None:
    feed = hub_feed(slices=1)
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
        assert client.subscriptions == left
        assert [numbers(client, prefix, 1) for prefix in left] == [[0] for _ in left]


def test_a_get_behind_the_end_of_its_client_begins_nothing(tmp_path: Path) -> None:
    """Else its subscription would go on, and have its name, with nobody left to end it."""
    feed = hub_feed(slices=1)
    with Hub(feed, tmp_path / "hub"):
        with reader(feed, tmp_path) as client:
            client.subscribe(b"")
        with pytest.raises(HubError, match="subscription b'' was closed, expected one of a client that is open"):
            client.get(b"", 0.0)
        assert not [each for each in threading.enumerate() if each.name == "blackbox-inbox"]
        with reader(feed, tmp_path) as client:
            put_numbers(client, 0, 1)
            assert numbers(client, b"", 1) == [0]


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("timeout", [None, 0.0, 0.01])
@pytest.mark.parametrize("end", [HubClient.end, lambda client: client.unsubscribe(b"")])
def test_who_gets_while_the_client_is_closed_hears_of_it_and_begins_nothing(
    tmp_path: Path, end: Callable[[HubClient], None], timeout: float | None, is_there: bool
) -> None:
    feed = hub_feed(slices=1)
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
        assert asks.wait(60)
        end(client)
        thread.join(60)
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


def test_unsubscribe_is_durable_and_subscribe_begins_anew(tmp_path: Path) -> None:
    feed = hub_feed(slices=1)
    with Hub(feed, tmp_path / "hub"):
        with reader(feed, tmp_path) as client:
            client.subscribe(b"A")
            client.subscribe(b"B")
            put_numbers(client, 0, 10)
            numbers(client, b"A", 1)
            client.unsubscribe(b"A")
            with pytest.raises(HubError, match=r"prefix was b'A', expected one that is subscribed to: \[b'B'\]"):
                client.get(b"A")
        with reader(feed, tmp_path) as client:
            assert client.subscriptions == [b"B"]
            with pytest.raises(HubError):
                client.unsubscribe(b"A")
            client.subscribe(b"A")
            put_numbers(client, 10, 12)
            assert numbers(client, b"A", 2) == [10, 11]


def test_a_client_killed_behind_subscribe_is_still_subscribed(tmp_path: Path) -> None:
    feed = hub_feed(slices=1)
    code = f"""
    client = HubClient(feed, "reader", {str(tmp_path / "reader")!r}).start()
    client.subscribe(b"A")
    say("subscribed")
    os.kill(os.getpid(), signal.SIGKILL)
    """
    with Hub(feed, tmp_path / "hub"):
        with Script(code, feed) as script:
            script.expect("subscribed")
            assert script.finish()[0] == -9
        with reader(feed, tmp_path) as client:
            put_numbers(client, 0, 3)
            assert numbers(client, b"A", 3) == [0, 1, 2]


def test_a_client_without_a_name_or_directory_cannot_subscribe(tmp_path: Path) -> None:
    feed = hub_feed()
    with pytest.raises(ConfigError, match="expected both to subscribe"):
        HubClient(feed, directory=tmp_path)
    with HubClient(feed, "desk") as client, pytest.raises(ConfigError, match="directory was None"):
        client.subscribe(b"A")


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9.-]{0,31}", fullmatch=True), st.binary(max_size=12), st.text(max_size=5))
def test_a_consumer_s_name_tells_client_and_prefix(client: str, prefix: bytes, other: str) -> None:
    name = name_of(client, prefix)
    assert prefix_of(client, name) == prefix
    if other and not client.startswith(other) and "_" not in other:
        assert prefix_of(other, name) is None


def get_in_thread(client: HubClient, prefixes: list[str]) -> Future[Message]:
    """Get a message in another thread; returns when that thread waits for one of several subscriptions."""
    got: Future[Message] = Future()

    def run() -> None:
        try:
            got.set_result(client.get(prefixes, WAIT_S))
        except BaseException as error:  # noqa: BLE001 - it is for the thread that waits
            got.set_exception(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    wait_until(lambda: client._arrivals._changed._waiters or got.done(), what="the get")  # type: ignore[attr-defined]
    return got


def test_the_first_message_of_any_of_several_subscriptions_ends_the_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waits, "STEP_S", 1e6)  # a wait that looks again now and then would end at its limit
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


def test_several_subscriptions_take_turns_and_none_starves(tmp_path: Path) -> None:
    feed = hub_feed(slices=1)
    with Hub(feed, tmp_path / "hub"), reader(feed, tmp_path) as client:
        for prefix in (b"A.", b"B."):
            client.subscribe(prefix)
        put_numbers(client, 0, 100, b"A.x")
        put_numbers(client, 0, 100, b"B.x")
        first = client.get(b"A.", WAIT_S), client.get(b"B.", WAIT_S)  # both are here
        rest = [client.get([b"A.", b"B."], WAIT_S) for _ in range(198)]
        for topic in (b"A.x", b"B.x"):
            assert [int(each.payload) for each in (*first, *rest) if each.topic == topic] == list(range(100))
        assert {each.topic for each in rest[:4]} == {b"A.x", b"B.x"}


def test_several_subscriptions_are_waited_for_until_the_limit(tmp_path: Path) -> None:
    feed = hub_feed(slices=1)
    with reader(feed, tmp_path) as client, Hub(feed, tmp_path / "hub"):
        for prefix in ("A.", "B."):
            client.subscribe(prefix)
        put_numbers(client, 0, 1, b"A.x")
        put_numbers(client, 0, 1, b"B.x")
        assert {client.get(["A.", "B."], WAIT_S).topic for _ in range(2)} == {b"A.x", b"B.x"}
        for timeout in (0.0, 0.1):
            with pytest.raises(TimeoutError, match=rf"^nothing of b'A\.', b'B\.' came in {timeout} s$"):
                client.get(["A.", "B."], timeout)
        with pytest.raises(HubError, match=r"prefix was b'C\.'"):
            client.get(["A.", "C."], 0.0)
        with pytest.raises(ValueError, match="one prefix or more"):
            client.get([])
    with reader(feed, tmp_path) as client, pytest.raises(TimeoutError, match="has not confirmed all subscriptions"):
        client.get(["A.", "B."], 0.1)


@pytest.mark.parametrize("is_here", [True, False])
def test_a_get_of_several_subscriptions_ends_with_the_client(tmp_path: Path, is_here: bool) -> None:
    feed = hub_feed(slices=1)
    client = reader(feed, tmp_path).start()
    with Hub(feed, tmp_path / "hub"):
        for prefix in ("A.", "B."):
            client.subscribe(prefix)
        if is_here:
            put_numbers(client, 0, 1, b"A.x")
            put_numbers(client, 0, 1, b"B.x")
            assert {client.get(["A.", "B."], WAIT_S).topic for _ in range(2)} == {b"A.x", b"B.x"}
        got = get_in_thread(client, ["A.", "B."])
        client.end()
        with pytest.raises(HubError, match="was closed"):
            got.result(WAIT_S)
