"""A client driven from outside by JSON over one socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import zmq
import zmq.asyncio

from blackbox import AsyncHubClient, ConfigError, Feed, Hub
from blackbox.feed.endpoint import free_endpoints
from blackbox.services.hub.client.driven_client import DrivenClient
from blackbox.testing import wait_until
from tests.hub.drivers import CLIENT, Driver
from tests.hub.hubs import hub_feed, published
from tests.torture.nursery import Nursery


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    with zmq.Context() as context:
        yield context


@pytest.fixture(scope="module")
def feed() -> Feed:
    return hub_feed(slices=1)


@pytest.fixture(scope="module")
def nursery(feed: Feed) -> Iterator[Nursery]:
    with Nursery(feed, CLIENT, 1) as client:
        yield client


@pytest.fixture
def drive(nursery: Nursery, tmp_path: Path, context: zmq.Context[zmq.Socket[bytes]]) -> Iterator[Callable[[], Driver]]:
    """Return a function that begins a driven client in a separate process and returns its driver."""
    endpoint, drivers = f"ipc://{tmp_path / 'desk'}", list[Driver]()

    def end() -> None:
        if drivers:
            drivers.pop().close()
            nursery.kill()

    def begin() -> Driver:
        end()
        nursery.begin((tmp_path / "positions", endpoint))
        drivers.append(Driver(context, endpoint))
        return drivers[0]

    yield begin
    end()


def test_all_verbs_of_a_client_from_a_plain_socket(tmp_path: Path, feed: Feed, drive: Callable[[], Driver]) -> None:
    with Hub(feed, tmp_path / "hub") as hub:
        driver = drive()
        assert driver.ask(do="subscribe", prefix="orders.") == {"prefix": "orders."}
        first = driver.ask(do="put", topic="orders.new", payload="YnV5", id="order-17", ts_event=5)
        assert first == {"slice": 0, "epoch": hub.epoch, "sequence": 0}
        assert driver.ask(do="put", topic="orders.new", payload="YnV5", id="order-17") == first
        assert driver.ask(do="put", topic="orders.gone", payload=None) == {**first, "sequence": 1}
        got = driver.ask(do="get", prefix="orders.")
        assert got == {"topic": "orders.new", "payload": "YnV5", "ts_event": 5, **first}
        assert (driver.ask(do="get", prefix="orders.") or {})["payload"] is None
        assert driver.ask(do="commit") == {}
        assert driver.ask(do="unsubscribe", prefix="orders.") == {"prefix": "orders."}
        symbols = ["AAPL", "BRK"]
        assert driver.ask(do="subscribe", symbols=symbols) == {"symbols": symbols}
        for topic in ("AAPLW.x", "BRK.B.x", ["BRK.x", "BRK.y"]):
            driver.ask(do="put", topic=topic, text="1")
        assert (driver.ask(do="get", symbols=symbols) or {})["topic"] == "BRK.x"
        assert driver.ask(do="unsubscribe", symbols=["BRK"]) == {"symbols": ["BRK"]}
        assert (driver.ask(do="get", symbols=symbols) or {})["error"] == "HubError"


def test_a_commit_includes_the_last_message(tmp_path: Path, feed: Feed, drive: Callable[[], Driver]) -> None:
    with Hub(feed, tmp_path / "hub"):
        driver = drive()
        driver.ask(do="subscribe", prefix="A")
        for text in ("first", "second"):
            driver.ask(do="put", topic="A", text=text)
        assert (driver.ask(do="get", prefix="A") or {})["payload"] == "Zmlyc3Q="
        assert driver.ask(do="commit") == {}
        assert (drive().ask(do="get", prefix="A") or {})["payload"] == "c2Vjb25k"


def test_an_unsubscribe_behind_a_get_says_what_it_waited_for(
    tmp_path: Path, feed: Feed, drive: Callable[[], Driver]
) -> None:
    with Hub(feed, tmp_path / "hub"):
        driver = drive()
        driver.ask(do="subscribe", prefix="A")
        driver.send(do="get", prefix="A", timeout_s=60, number=0)
        answer = driver.ask(do="unsubscribe", prefix="A", timeout_s=0.01)
        assert answer == {"error": "TimeoutError", "why": "requests before it were not done within 0.01 s"}


def test_a_second_put_receives_the_place_of_its_topic(tmp_path: Path, feed: Feed, drive: Callable[[], Driver]) -> None:
    with Hub(feed, tmp_path / "hub") as hub:
        driver = drive()

        def put(topic: str, payload: str | None, **words: Any) -> dict[str, Any]:
            return driver.ask(do="put", topic=topic, payload=payload, **words) or {}

        first = put("A", "YQ==", if_at="nowhere")
        assert first == {"slice": 0, "epoch": hub.epoch, "sequence": 0}
        conflict = put("A", "Yg==", if_at="nowhere")
        assert (conflict["error"], conflict["found"]) == ("ConflictError", first)
        assert "topic b'A' was at Place(" in conflict["why"]
        second = put("A", "Yg==", if_at=conflict["found"])
        assert second == {**first, "sequence": 1}
        put("A", None, if_at={**second, "number": 0})  # a whole answer
        assert put("A", "Yw==", if_at=second)["found"] == "nowhere"
        put("B", "YQ==", ttl_s=0.05)
        wait_until(lambda: hub.statistics().ended == 1)
        assert put("B", "YQ==", if_at="nowhere")["sequence"] == 5
        for words in ({"if_at": "somewhere"}, {"if_at": {"slice": 0, "epoch": -1, "sequence": 0}}, {"ttl_s": 0}):
            assert put("A", "YQ==", **words)["error"] in ("ValidationError", "ValueError")
        assert "found" not in put("A", "*")
    assert [each[-1] for each in published(tmp_path / "hub", feed)] == [b"a", b"b", None, b"a", None, b"a"]


def test_impossible_and_concurrent_requests_are_answered(
    tmp_path: Path, feed: Feed, drive: Callable[[], Driver]
) -> None:
    with Hub(feed, tmp_path / "hub"):
        driver = drive()

        def error(**asked: Any) -> str:
            answer = driver.ask(**asked) or {}
            return f"{answer['error']}: {answer['why']}"

        assert (
            error(do="get", prefix="A") == "HubError: client had no subscription of prefix b'A', expected one of: none"
        )
        assert error(do="put", topic="A", payload="*").startswith("ConfigError: payload was '*', expected base64")
        assert "unknown field `at_once`" in error(do="commit", at_once=True)
        assert error(do="put", topic="A" * 2_000, payload="").startswith("ConfigError: topic had 2000 bytes")
        driver.ask(do="subscribe", prefix="A")
        assert error(do="get", prefix="A", timeout_s=0.05) == "TimeoutError: no message arrived within 0.05 s"
        driver.send(nothing="of this is known")
        answer = driver.answer() or {}
        assert (answer["number"], answer["error"]) == (0, "ValidationError")
        driver.send(do="get", prefix="A", number=0)
        assert driver.ask(do="put", topic="A", payload="") is not None, "a waiting get blocks other requests"
        for _ in range(1_000):
            driver.send(do="get", prefix="A", timeout_s=600, number=0)
        assert "requests were more than 1000" in (driver.ask(do="commit") or {})["why"]


def test_a_put_without_a_hub_is_answered_in_time(drive: Callable[[], Driver]) -> None:
    answer = drive().ask(do="put", topic="A", payload="", timeout_s=0.1)
    assert answer == {"error": "NotStoredError", "why": "the hub did not answer within 0.1 s"}


@pytest.mark.parametrize("endpoint", ["tcp://0.0.0.0:5600", "tcp://10.0.0.1:5600", "inproc://here"])
def test_an_endpoint_reachable_from_other_hosts_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="expected"):
        DrivenClient(AsyncHubClient(hub_feed()), endpoint)


def test_an_endpoint_in_use_is_reported(tmp_path: Path, context: zmq.Context[zmq.Socket[bytes]]) -> None:
    ((endpoint,),) = free_endpoints("tcp", "driven", 1, 1)
    with context.socket(zmq.REP) as taken:
        taken.bind(endpoint)

        async def serve() -> None:
            async with AsyncHubClient(hub_feed()) as client:
                await DrivenClient(client, endpoint).serve()

        with pytest.raises(OSError, match=f"endpoint {endpoint} is in use"):
            asyncio.run(serve())


def test_no_answer_is_dropped_for_a_late_reader(tmp_path: Path) -> None:
    """Send more requests than both ends have room for before reading the first answer."""
    endpoint, count = f"ipc://{tmp_path}/driver", 6_000

    async def drive() -> set[int]:
        bound = asyncio.Event()
        client = AsyncHubClient(hub_feed(), "desk", tmp_path)
        serves = asyncio.ensure_future(DrivenClient(client, endpoint).serve(bound.set))
        await bound.wait()
        with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as socket:
            socket.linger = 0
            socket.connect(endpoint)
            sends = [socket.send(b'{"number": %d, "do": "nothing"}' % number) for number in range(count)]
            await asyncio.wait_for(asyncio.gather(*sends[:3_000]), 60)
            async with asyncio.timeout(200):
                found = {msgspec.json.decode(await socket.recv())["number"] for _ in range(count)}
        serves.cancel()
        await asyncio.wait((serves,))
        return found

    assert asyncio.run(drive()) == set(range(count))


HOSTILE: Final = (
    b"{" * 1_000,
    b'{"do": "commit", "number": 1, "x": ' + b"[" * 1_000 + b"]" * 1_000 + b"}",
    b'{"number": ' + b'{"a":' * 1_000,
    b"",
    b"\xff",
    b"null",
    b'{"do": "put", "number": 1}',
    b'{"do": "put", "topic": "A", "text": "x", "ts_event": 1180591620717411303424}',
    b'{"do": "put", "topic": "A", "text": "x", "ttl_s": 1e308}',
    b'{"do": "put", "topic": "A", "text": "x", "ttl_s": -1}',
    b'{"do": "put", "topic": "\\ud800", "text": "x"}',
    b'{"do": "put", "topic": "\\u0000", "text": "x"}',
    b'{"do": "put", "topic": "A", "text": "x", "if_at": {"slice": -1, "epoch": 1, "sequence": 1}}',
    b'{"do": "put", "topic": "A", "text": "x", "if_at": {"slice": 99999999999999999999, "epoch": 1, "sequence": 1}}',
    b'{"do": "put", "topic": "A", "text": "x", "if_at": {"slice": 0, "epoch": 18446744073709551615, "sequence": -5}}',
    b'{"do": "get", "prefix": "nobody", "timeout_s": 0}',
    b'{"do": "unsubscribe", "prefix": "\\u0000"}',
    b'{"do": "subscribe", "prefix": "\\u0000A"}',
    b'{"do": "subscribe", "prefix": "A", "timeout_s": 86401}',
)


def test_no_request_ends_a_driven_client(tmp_path: Path, context: zmq.Context[zmq.Socket[bytes]]) -> None:
    """One frame of 2 KB, nested 1,000 deep, once ended the client."""
    feed = hub_feed("desk", slices=1)
    (endpoint,) = free_endpoints("tcp", "driven", 1, 1)[0]

    def ask_all() -> list[Any]:
        driver = Driver(context, endpoint)
        try:
            assert driver.ask(do="put", topic="A.x", text="first") is not None
            answers = []
            for frame in HOSTILE:
                driver._socket.send(frame)
                answers.append(driver.answer())
            last = driver.ask(do="put", topic="A.x", text="last")
            return [*answers, last]
        finally:
            driver.close()

    async def run() -> list[Any]:
        async with AsyncHubClient(feed, "desk", tmp_path / "positions") as client:
            serves = asyncio.ensure_future(DrivenClient(client, endpoint).serve())
            answers = await asyncio.to_thread(ask_all)
            assert not serves.done(), serves.exception()
            serves.cancel()
            await asyncio.wait((serves,))
            return answers

    with Hub(feed, tmp_path / "hub"):
        *answers, last = asyncio.run(run())
    assert [HOSTILE[n] for n, answer in enumerate(answers) if answer is None or "error" not in answer] == []
    assert "sequence" in last
