"""Puts: each message is stored once, at the place in its answer, in its client's order."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy
import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from blackbox import AsyncHubClient, ConfigError, Feed, Hub, HubClient, Recording
from blackbox.block.position import NOWHERE, Place
from blackbox.errors import HubError, JournalError, NotStoredError, RefusedError
from blackbox.feed.schema.schema import load_schema
from blackbox.services.hub.protocol import (
    CONDITION,
    ENCODER,
    MOST_BYTES,
    Ended,
    Refused,
    Stored,
    Welcome,
)
from blackbox.services.hub.server import frontend
from blackbox.testing import wait_until
from tests.examples import examples
from tests.hub.hubs import hub_feed, published, topics_of
from tests.hub.pairs import pair_feed
from tests.hub.peer import Peer


def test_a_put_without_a_time_is_now_and_0_is_unknown(tmp_path: Path, feed: Feed) -> None:

    async def put() -> None:
        async with AsyncHubClient(feed) as client:
            await client.put(b"A.x", b"")

    before = time.time_ns()
    with Hub(feed, tmp_path), HubClient(feed) as client:
        client.put(b"A.x", b"")
        client.put(b"A.x", None)
        client.put_soon(b"A.x", b"").result(200)
        client.put_many(["A.x"], [0, 0], numpy.zeros((2, 1), "u1"))
        asyncio.run(put())
        client.put(b"A.x", b"", ts_event=numpy.int64(0))  # type: ignore[arg-type]  # also an integer
        client.put_many([b"A.x"], [0, 0], numpy.zeros((2, 1), "u1"), [0, 7])
    after = time.time_ns()
    (manifest,) = (tmp_path / feed.name).glob("*/manifest.json")
    times = [message.ts_event for batch in Recording.open(manifest.parent).batches() for message in batch]
    assert all(before <= ts <= after for ts in times[:6])
    assert times[6:] == [0, 0, 7]


@settings(max_examples=examples(40))
@given(
    parts=st.lists(
        st.tuples(
            st.booleans(),
            st.lists(
                st.tuples(st.sampled_from([b"A.x", b"B", b"C.y"]), st.none() | st.binary(max_size=9)), max_size=40
            ),
        ),
        max_size=6,
    )
)
def test_columns_and_single_puts_are_stored_in_their_order(
    tmp_path_factory: pytest.TempPathFactory, parts: list[tuple[bool, list[tuple[bytes, bytes | None]]]]
) -> None:
    feed, place = hub_feed(), tmp_path_factory.mktemp("hub")
    found = []
    with Hub(feed, place) as hub, HubClient(feed) as client:
        for part, (is_columns, puts) in enumerate(parts):
            if is_columns:  # columns cannot express a message without a value
                puts = [(topic, data or b"") for topic, data in puts]  # noqa: PLW2901
                parts[part] = is_columns, puts
            topics = list(dict.fromkeys(topic for topic, _ in puts))
            if is_columns:
                index = [topics.index(topic) for topic, _ in puts]
                offsets = numpy.cumsum([0, *(len(data or b"") for _, data in puts)])
                placed = client.put_many(
                    topics, index, b"".join(data or b"" for _, data in puts) or b"-", None, offsets
                )
                found += [(int(each["slice"]), int(each["sequence"])) for each in placed]
            else:
                futures = [client.put_soon(topic, data) for topic, data in puts]
                client.flush()
                found += [(future.result().slice_id, future.result().sequence) for future in futures]
        flat = [put for _, puts in parts for put in puts]
        assert client.published_count() == hub.statistics().stored == len(flat)
    following: dict[int, int] = {}
    expected = []
    for topic, _ in flat:
        slice_id = feed.slice_of(topic)
        expected.append((slice_id, following.get(slice_id, 0)))
        following[slice_id] = expected[-1][1] + 1
    assert found == expected
    said = {(each[1], each[2]): each[3:] for each in published(place, feed)}
    assert [said[each] for each in found] == flat


def test_ten_thousand_pending_puts_are_all_stored(tmp_path: Path, feed: Feed) -> None:
    with Hub(feed, tmp_path), HubClient(feed) as client:
        futures = [client.put_soon(b"A.x", b"%d" % number) for number in range(10_000)]
        client.flush()
        assert [future.result().sequence for future in futures] == list(range(10_000))
        places = client.put_many((b"A.x",), numpy.zeros(10_000, int), numpy.zeros((10_000, 300), numpy.uint8))
        assert places["sequence"].tolist() == list(range(10_000, 20_000))
    said = published(tmp_path, feed)
    assert [payload for *_, payload in said[:10_000]] == [b"%d" % number for number in range(10_000)]
    assert len(said) == 20_000


def test_ids_and_requests_are_remembered_up_to_their_bounds(tmp_path: Path) -> None:
    feed = hub_feed()
    with Hub(feed, tmp_path, remember_ids=3, remember_puts=2), HubClient(feed) as client, Peer(feed) as peer:
        first = peer.puts(1, b"first")
        assert isinstance(peer.ask(first), Stored)
        kept = [client.put(b"A.x", b"", b"%d" % number) for number in range(4)]
        assert client.put(b"A.x", b"", b"1") == kept[1]
        assert client.put(b"A.x", b"", b"0") != kept[0]
        deadline = time.monotonic() + 60
        while isinstance(answer := peer.ask(first), Stored) and time.monotonic() < deadline:
            client.put(b"A.x", b"")
        assert isinstance(answer, Refused)
        assert "answered before" in answer.why


def test_a_hub_that_is_down_is_a_clear_error_and_a_later_retry_is_stored_once(tmp_path: Path) -> None:
    feed = hub_feed()
    client = HubClient(feed).start()
    with pytest.raises(NotStoredError, match=rf"hub {feed.hub} did not answer in time that it has the put of b'A.x'"):
        client.put(b"A.x", b"1", b"id", timeout=0.3)
    with pytest.raises(NotStoredError, match="1 puts"):
        client.flush(0.1)
    with Hub(feed, tmp_path):
        place = client.put(b"A.x", b"1", b"id", timeout=200)
        client.close(60)
    assert [each[:3] for each in published(tmp_path, feed)] == [(place.epoch, place.slice_id, place.sequence)]


def test_puts_made_while_the_hub_was_down_are_stored_in_order(tmp_path: Path, feed: Feed) -> None:
    with HubClient(feed, in_flight=50) as client:
        for number in range(50):
            client.put_soon(b"A.x", b"%d" % number)
        with pytest.raises(NotStoredError, match="the 50 puts that are on their way, so that there is room"):
            client.put_soon(b"A.x", b"50", timeout=0.1)
        with Hub(feed, tmp_path):
            client.flush(60)
    assert [each[-1] for each in published(tmp_path, feed)] == [b"%d" % number for number in range(50)]


def test_a_client_that_was_not_started_says_so() -> None:
    with pytest.raises(HubError, match="client 'desk' was not started, expected an open one"):
        HubClient(hub_feed(), "desk").put(b"A.x", b"1")


def test_a_client_that_ends_reports_unstored_puts_and_its_error_keeps_no_frame_of_earlier_calls() -> None:
    client, sizes = HubClient(hub_feed()).start(), list[int]()
    future = client.put_soon(b"A.x", b"1")
    with pytest.raises(NotStoredError):
        client.close(0.1)
    with pytest.raises(HubError, match="closed before the hub had answered"):
        future.result(10)
    for _ in range(3):
        with pytest.raises(HubError, match="closed before the hub had answered") as raised:
            client.put(b"A.x", b"1")
        sizes.append(len(raised.traceback))
    assert len(set(sizes)) == 1


def test_a_later_process_takes_over_a_name_and_the_earlier_one_raises(tmp_path: Path) -> None:
    feed = hub_feed()
    with Hub(feed, tmp_path):
        before = HubClient(feed, "desk").start()
        before.put(b"A.x", b"1")
        wait_until(lambda: not before._sender._driver.is_there)  # the next put owns the socket
        with HubClient(feed, "desk") as after:
            assert after.published_count() == 1
            for _ in range(2):
                with pytest.raises(HubError, match="client 'desk' was started elsewhere since"):
                    before.put(b"A.x", b"2", timeout=200)
            after.put(b"A.x", b"3")
            assert after.published_count() == 2
        with pytest.raises(HubError):
            before.close()
    assert [each[-1] for each in published(tmp_path, feed)] == [b"1", b"3"]


@pytest.mark.parametrize("restarts", [False, True])
def test_no_session_prevents_a_later_process_from_using_its_name(tmp_path: Path, restarts: bool) -> None:
    feed = hub_feed()
    hub = Hub(feed, tmp_path).start()
    with Peer(feed, "desk", session=(1 << 63) - 1) as before:
        assert isinstance(before.hello(), Welcome)
        assert isinstance(before.ask(before.puts(1, b"1")), Stored)
        if restarts:
            hub.close()
            hub = Hub(feed, tmp_path).start()
        for number in (2, 3):
            with HubClient(feed, "desk") as after:
                after.put(b"A.x", b"%d" % number, timeout=200)
                assert after.published_count() == number
        assert hub.statistics().refused == 0, "a restarted client is not refused"
    hub.close()


def test_a_late_hello_of_an_earlier_process_takes_over_no_name(tmp_path: Path) -> None:
    feed = hub_feed()
    with (
        Hub(feed, tmp_path),
        Peer(feed, session=9, greets=False) as first,
        Peer(feed, session=5, replaces=9, greets=False) as second,
    ):
        assert [isinstance(peer.hello(), Welcome) for peer in (first, first, second, second)] == [True] * 4
        assert first.hello() == Ended("client 'peer' was started elsewhere since", session=5)
        assert isinstance(second.ask(second.puts(1, b"1")), Stored)


def test_two_processes_that_replace_the_same_one_have_two_sessions(tmp_path: Path) -> None:
    feed = hub_feed()
    with Hub(feed, tmp_path), Peer(feed, session=2, greets=False) as one, Peer(feed, session=3, greets=False) as other:
        assert isinstance(one.hello(), Welcome)
        assert other.hello().session == 2
        other.replaces = 2
        assert isinstance(other.hello(), Welcome)
        assert isinstance(one.ask(one.puts(1, b"1")), Ended)


def test_a_hub_of_a_pair_that_answers_slowly_is_given_time() -> None:
    feed, slow_s = pair_feed(), 0.8  # longer than a client's first delay
    answers: deque[tuple[float, bytes, bytes]] = deque()
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.linger = 0
        socket.bind(feed.hub)
        with HubClient(feed) as client:
            asked = client._sender.ask(None)

            def answer() -> bool:
                if socket.poll(10):
                    peer, hello = socket.recv_multipart()
                    welcome = Welcome(msgspec.msgpack.decode(hello)[4], 7, 1, [])
                    answers.append((time.monotonic() + slow_s, peer, ENCODER.encode(welcome)))
                while answers and answers[0][0] < time.monotonic():
                    socket.send_multipart(answers.popleft()[1:])
                return asked.done()

            wait_until(answer)
            assert asked.result().last == 7


def test_a_payload_that_is_no_record_of_the_schema_is_refused(tmp_path: Path) -> None:
    feed = hub_feed(schema="itch50")
    size = load_schema("itch50").dtype("P").itemsize
    wrong = {
        b"P" + bytes(size): rf"payload had {size + 1} bytes, expected {size} of type 'P'",
        b"\0": "payload had 1 bytes, expected that of a type of the schema",
        b"": "payload had 0 bytes",
    }
    with HubClient(feed) as client:
        pending = [client.put_soon(b"AAPL.P", b"P" + bytes(size - 1))]
        for payload, why in wrong.items():
            with pytest.raises(ConfigError, match=why):  # by the client
                client.put_soon(b"AAPL.P", payload)
        pending.append(client.put_soon(b"AAPL.P", None))
        with Hub(feed, tmp_path):
            assert [each.result(200).sequence for each in pending] == [0, 1]
            for payload, why in wrong.items():
                with pytest.raises(HubError, match=why):  # by the hub
                    client.put_many((b"AAPL.P",), [0], payload, None, [0, len(payload)])
    assert len(published(tmp_path, feed)) == 2


DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    "put": {"topic": b"A.x", "payload": b"1"},
    "put_many": {"topics": (b"A", b"B"), "topic_index": [0, 1], "payloads": numpy.zeros((2, 1), "u1")},
}


@pytest.mark.parametrize(
    ("call", "given", "error", "why"),
    [
        ("put", {"payload": bytes(MOST_BYTES + 1)}, ConfigError, f"payload had {MOST_BYTES + 1} bytes, expected at mo"),
        ("put", {"payload": "text"}, TypeError, "payload was 'text', expected bytes"),
        ("put", {"topic": 5}, TypeError, r"topic was 5 \(int\), expected str or bytes"),
        *(("put", {"topic": topic}, TypeError, "expected str") for topic in (None, {b"A"}, (b"A", 7))),
        ("put", {"topic": ()}, ValueError, "expected 1 to 255, each once"),
        ("put", {"topic": (b"A", b"A")}, ValueError, "expected 1 to 255, each once"),
        ("put", {"topic": tuple(b"%d" % each for each in range(256))}, ValueError, "expected 1 to 255, each once"),
        ("put", {"id": bytes(65)}, ConfigError, "id had 65 bytes, expected at most 64"),
        ("put", {"id": "order-17"}, TypeError, "id was 'order-17', expected bytes"),
        ("put", {"id": 17}, TypeError, "id was 17, expected bytes"),
        ("put", {"ts_event": 1 << 63}, ValueError, "ts_event was"),
        ("put", {"ts_event": 1.5}, TypeError, "ts_event was 1.5, expected an integer"),
        ("put", {"ts_event": "x"}, TypeError, "ts_event was 'x', expected an integer"),
        ("put", {"if_at": (0, 1, 1)}, TypeError, "if_at was .*, expected a Place"),
        ("put", {"if_at": Place(0, -1, 0)}, ValueError, "if_at was .*, expected a Place"),
        ("put", {"if_at": Place(0, 1 << 63, 0)}, ValueError, "if_at was .*, expected a Place"),
        ("put", {"if_at": Place(0, 1, -2)}, ValueError, "if_at was .*, expected a Place"),
        *(("put", {"ttl": ttl}, ValueError, f"ttl was of {ttl} s, expected") for ttl in (0.0, -1.0, 1e12)),
        ("put", {"ttl": 1.0, "payload": None}, ValueError, "ttl was without a value, expected"),
        ("put_many", {"topics": "A.x"}, TypeError, "topics was 'A.x', expected a list or tuple of str or bytes"),
        ("put_many", {"payloads": b"12", "offsets": [0, 1, 3]}, ValueError, "offsets were"),
        ("put_many", {"ids": ["order-17", b""]}, TypeError, "id was 'order-17', expected bytes"),
        (
            "put_many",
            {"payloads": b"12", "offsets": [0, 1.5, 2]},
            ValueError,
            "offsets held float64, expected integers",
        ),
        ("put_many", {"ts_event": [1.5, 2]}, ValueError, "ts_event held float64, expected integers"),
        ("put_many", {"ts_event": numpy.array([1, 1 << 63], "u8")}, ValueError, "ts_event ran from 1 to"),
        ("put_many", {"if_at": [NOWHERE]}, ValueError, "if_at had 1 values, expected one Place, or 2"),
        ("put_many", {"if_at": [NOWHERE, (0, 1, 1)]}, TypeError, "if_at was .*, expected a Place"),
        ("put_many", {"if_at": Place(0, -1, 0)}, ValueError, "if_at was .*, expected a Place"),
        ("put_many", {"if_at": numpy.full(2, -2, CONDITION)}, ValueError, "if_at was .*, expected a Place"),
        ("put_many", {"ttl": [1.0]}, ValueError, r"ttl had shape \(1,\), expected one number, or 2"),
        ("put_many", {"ttl": [1.0, 0.0]}, ValueError, "ttl was of 0.0 s, expected above 0"),
        ("put_many", {"ttl": -1.0}, ValueError, "ttl was of -1.0 s, expected above 0"),
    ],
)
def test_wrong_arguments_are_refused_before_sending(
    call: str, given: dict[str, Any], error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why):
        getattr(HubClient(hub_feed()), call)(**DEFAULTS[call] | given)


def test_a_client_needs_a_valid_name_and_a_feed_with_a_hub() -> None:
    with pytest.raises(ConfigError, match="name was 'a_b'"):
        HubClient(hub_feed(), "a_b")
    with pytest.raises(ConfigError, match="had no hub"):
        HubClient(Feed.local("none"))


def test_a_hub_without_room_for_its_topics_names_the_first_too_many(tmp_path: Path, feed: Feed) -> None:
    with Hub(feed, tmp_path), HubClient(feed) as client:
        client.put(b"A", b"", ttl=3_600)
        client.put(b"B", b"", ttl=3_600)
    with pytest.raises(ConfigError, match="topic b'B' is in the journals: slice 0 had 1 topics, its max_topics"):
        Hub(msgspec.structs.replace(feed, max_topics=1), tmp_path).start()


def test_too_long_topics_for_a_slice_are_refused_and_the_hub_continues(tmp_path: Path) -> None:
    feed = msgspec.structs.replace(hub_feed(slices=1), max_topics=64)
    with Hub(feed, tmp_path), HubClient(feed) as client:
        client.put(b"A" * 1_024, b"")
        client.put(b"B" * 1_000, b"")
        with pytest.raises(RefusedError, match="slice 0 had topics of 3024 bytes with it, expected at most max_topics"):
            client.put(b"C" * 1_000, b"")
        client.put(b"C" * 24, b"")


def test_a_client_that_reads_no_answers_delays_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontend, "QUEUE_ANSWERS", 2)
    feed = hub_feed(slices=2)
    topics, index = topics_of(feed), numpy.tile(numpy.arange(2, dtype=numpy.int32), 2_048).tobytes()
    with Hub(feed, tmp_path) as hub, Peer(feed) as peer, HubClient(feed) as client:
        payloads = [b""] * 4_096  # an answer has 28 bytes for each, as their slices take turns
        for number in range(100):
            put = peer.puts(1 + 4_096 * number, *payloads, topics=topics, index=index)
            peer.socket.send(ENCODER.encode(put))
            client.put(b"A.x", b"", timeout=200)
        wait_until(lambda: hub.statistics().stored == 100 * 4_097)
        assert hub.statistics().unread > 0
        while peer.socket.poll(500):
            peer.socket.recv()
        assert isinstance(peer.ask(peer.puts(1, *payloads)), Stored)  # the client may ask again for unread answers


def test_two_hubs_of_one_directory_are_refused(tmp_path: Path) -> None:
    feed, other = hub_feed("hub"), hub_feed("hub")
    with Hub(feed, tmp_path), pytest.raises(JournalError):
        Hub(other, tmp_path).start()


def test_a_hub_with_an_endpoint_in_use_raises(tmp_path: Path) -> None:
    feed = hub_feed()
    with socket.socket() as taken:
        host, port = feed.hub.removeprefix("tcp://").split(":")
        taken.bind((host, int(port)))
        taken.listen()
        with pytest.raises(OSError, match=f"hub endpoint {feed.hub} is in use"):
            Hub(feed, tmp_path).start()
    with Hub(feed, tmp_path), HubClient(feed) as client:  # everything that the first hub held is free again
        client.put(b"A.x", b"")
