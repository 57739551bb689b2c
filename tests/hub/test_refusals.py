"""A refused put affects no other: the hub judges each put of a request on its own."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from blackbox import Feed, Hub, HubClient
from blackbox.block.form.layout import VERSION
from blackbox.block.position import NOWHERE
from blackbox.errors import ConflictError, RefusedError
from blackbox.feed.endpoint import free_endpoints
from blackbox.feed.schema.schema import load_schema
from blackbox.services.hub.protocol import (
    ANYWHERE,
    CONDITION,
    ENCODER,
    MOST_BYTES,
    REFUSED,
    Ended,
    Expected,
    Hello,
    Passive,
    Put,
    Stored,
    Welcome,
    offsets_of_one,
    unpack_places,
)
from tests.examples import examples
from tests.hub.hubs import hub_feed, published
from tests.hub.pairs import PATIENCE_S, hub_of, pair_feed, wait_in_step
from tests.hub.peer import Peer, refused_of

GOOD: Final = b"P" + bytes(load_schema("itch50").dtype("P").itemsize - 1)


def narrow(feed: Feed, most: int = 2) -> Feed:
    """Return a feed with room for few topics."""
    return msgspec.structs.replace(feed, max_topics=most)


def payloads(count: int) -> Any:
    return numpy.zeros((count, 1), numpy.uint8)


def test_a_topic_too_many_fails_only_its_own_put_and_its_id_is_judged_again(tmp_path: Path) -> None:
    """All puts share one request, because the hub is down."""
    feed = narrow(hub_feed(slices=1))
    topics = (b"A", b"B", b"C", b"A", b"D", b"B")
    with HubClient(feed) as client:
        futures = [client.put_soon(topic, b"%d" % at, b"id-%d" % at) for at, topic in enumerate(topics)]
        conflict = client.put_soon(b"A", b"6", if_at=NOWHERE)
        with Hub(feed, tmp_path) as hub:
            client.flush(60)
            for at, topic in ((2, "C"), (4, "D")):
                error = futures[at].exception()
                assert isinstance(error, RefusedError)
                assert error.topic == topic.encode()
                assert str(error) == (
                    f"topic {topic.encode()!r} was refused: slice 0 had 2 topics, its max_topics, and this one is new"
                )
            assert [futures[at].result().sequence for at in (0, 1, 3, 5)] == [0, 1, 2, 3]
            assert conflict.exception().found == futures[3].result()  # type: ignore[union-attr]
            statistics = hub.statistics()
            assert (statistics.stored, statistics.refused, statistics.conflicts) == (4, 2, 1)
    expected = [(b"A", b"0"), (b"B", b"1"), (b"A", b"3"), (b"B", b"5")]
    assert [row[3:] for row in published(tmp_path, feed)] == expected
    with Hub(narrow(feed, 3), tmp_path), HubClient(feed) as client:
        place = client.put(b"C", b"2", b"id-2", timeout=200)
        assert client.put(b"C", b"2", b"id-2") == place
    assert [row[3:] for row in published(tmp_path, feed)] == [*expected, (b"C", b"2")]


def test_a_topic_without_a_put_takes_no_room(tmp_path: Path) -> None:
    feed, index = narrow(hub_feed(slices=1)), numpy.arange(2, dtype=numpy.int32).tobytes()
    with Hub(feed, tmp_path), Peer(feed) as peer:
        assert refused_of(peer.ask(peer.puts(1, b"1", topics=[b"A", b"B"]))) == [False]
        one = peer.puts(2, b"2", b"", topics=[b"A", b"C", b"D"], index=index, offsets=offsets_of_one(1), is_one=True)
        assert refused_of(peer.ask(one)) == [False] * 2
        assert refused_of(peer.ask(peer.puts(4, b"3", topics=[b"D"]))) == [True]


def test_a_request_has_at_most_a_hundred_reasons(tmp_path: Path) -> None:
    feed = hub_feed(slices=1, schema="itch50")
    with Hub(feed, tmp_path), HubClient(feed) as client:
        rows = [bytes(size) for size in range(100, 300)]
        offsets = numpy.cumsum([0, *map(len, rows)])
        with pytest.raises(RefusedError, match="200 of 200 puts were refused") as refused:
            client.put_many((b"A",), [0] * 200, b"".join(rows), None, offsets)
    places = refused.value.places
    assert places is not None
    assert places["is_refused"].tolist() == [*range(REFUSED, REFUSED + 100), *[REFUSED + 100] * 100]


def test_the_error_of_a_call_names_the_first_conflict_or_refusal(tmp_path: Path) -> None:
    feed = narrow(hub_feed(slices=1))
    with Hub(feed, tmp_path), HubClient(feed) as client:
        taken = client.put(b"A", b"")
        with pytest.raises(ConflictError, match="2 of 4 puts were refused, the first: topic b'A' was at") as conflict:
            client.put_many((b"A", b"B", b"C"), [0, 1, 2, 1], payloads(4), if_at=[NOWHERE, NOWHERE, NOWHERE, None])
        error, places = conflict.value, conflict.value.places
        assert (error.topic, error.expected, error.found) == (b"A", NOWHERE, taken)
        assert places is not None
        assert places["is_refused"].tolist() == [1, 0, 2, 0]
        client.put_many((b"A", b"B"), [0, 1], payloads(2), if_at=places[[0, 3]])  # the place of A is its current one
        with pytest.raises(
            RefusedError, match="2 of 2 puts were refused, the first: topic b'C' was refused"
        ) as refused:
            client.put_many((b"C", b"A"), [0, 1], payloads(2), if_at=NOWHERE)
        assert not isinstance(refused.value, ConflictError)


def test_the_error_of_many_requests_names_the_first_refusal(tmp_path: Path) -> None:
    feed = hub_feed(slices=1, schema="itch50")
    rows = [GOOD] * 5_000
    rows[4_500], rows[4_900] = b"P", b"longer"
    offsets = numpy.cumsum([0, *map(len, rows)])
    with Hub(feed, tmp_path), HubClient(feed) as client:
        with pytest.raises(RefusedError, match="2 of 5000 puts .* payload had 1 bytes") as refused:
            client.put_many((b"A",), [0] * 5_000, b"".join(rows), None, offsets)
        assert refused.value.places is not None
        assert numpy.flatnonzero(refused.value.places["is_refused"]).tolist() == [4_500, 4_900]
    assert len(published(tmp_path, feed)) == 4_998


# Comparison with a slow reference.


def judged(answer: Any) -> tuple[list[tuple[int, ...]], list[str]]:
    """Return the places of an answer and its reasons."""
    assert isinstance(answer, Stored), answer
    return unpack_places(answer.places).tolist(), answer.why.split("\n")


def patiently(peer: Peer, request: Any) -> Any:
    """Repeat a request until the hub leads."""
    until = time.monotonic() + PATIENCE_S
    while isinstance(answer := peer.ask(request), Passive):
        assert time.monotonic() < until, "the hub does not take over"
        time.sleep(0.02)
    return answer


IMPOSSIBLE: Final = b"", b"\0", b"x" * 2_000


class Row(NamedTuple):
    topic: bytes
    payload: bytes | None
    id: bytes
    if_at: str
    """Condition: "" for none, "nowhere", "newest", or "wrong"."""


ROWS: Final = st.builds(
    Row,
    st.sampled_from([b"A", b"A", b"B", b"C", b"D.x", b"E.x", *IMPOSSIBLE]),
    st.sampled_from([GOOD, GOOD, GOOD, None, b"bad"]),
    st.sampled_from([b"", b"", b"", b"1", b"2"]),
    st.sampled_from(["", "", "", "nowhere", "newest", "wrong"]),
)
PLAIN: Final = st.builds(Row, st.sampled_from([b"A", b"B", b"C", b"D.x"]), st.just(GOOD), st.just(b""), st.just(""))
REQUESTS: Final = st.lists(st.lists(ROWS, min_size=1, max_size=8) | st.lists(PLAIN, min_size=1, max_size=8), max_size=8)


class Reference:
    """Judges each put on its own, with reasons in words."""

    def __init__(self, feed: Feed) -> None:
        self._feed, self.epoch = feed, 0
        self._topics: dict[int, set[bytes]] = {each: set() for each in range(len(feed.slices))}
        self._newest: dict[bytes, tuple[int, int]] = {}
        self._ids: dict[bytes, tuple[int, int]] = {}
        self.published: list[tuple[int, int, bytes, bytes | None]] = []

    def condition(self, row: Row) -> tuple[int, int]:
        """Return a row's condition on its topic, in the form sent to the hub."""
        if row.if_at == "newest":
            return self._newest.get(row.topic, NOWHERE[1:])
        return {"": ANYWHERE, "nowhere": NOWHERE[1:], "wrong": (7, 7)}[row.if_at]

    def judge(self, row: Row, if_at: tuple[int, int]) -> Any:
        """Return the expected answer: a place, the conflicting place, or a part of the reason."""
        if row.id in self._ids:
            return "there", *self._ids[row.id]
        if row.topic in IMPOSSIBLE:
            return "topic"
        if row.payload == b"bad":
            return "payload had 3 bytes"
        found = self._newest.get(row.topic, NOWHERE[1:])
        if if_at not in (ANYWHERE, found):
            return "conflict", *found
        slice_id = self._feed.slice_of(row.topic)
        if len(self._topics[slice_id] | {row.topic}) > self._feed.max_topics:
            return f"slice {slice_id} had {self._feed.max_topics} topics, its max_topics, and this one is new"
        self._topics[slice_id].add(row.topic)
        sequence = sum(each == slice_id for each, *_ in self.published)
        self.published.append((slice_id, sequence, row.topic, row.payload))
        if row.payload is None:
            self._newest.pop(row.topic, None)
        else:
            self._newest[row.topic] = self.epoch, sequence
        if row.id:
            self._ids[row.id] = slice_id, sequence
        return "stored", slice_id, sequence


def request_of(peer: Peer, first: int, rows: list[Row], conditions: list[tuple[int, int]]) -> Put:
    """Return a request; some name an impossible topic that no row has."""
    topics = sorted({row.topic for row in rows}, reverse=True) + [b"unused" * 300] * (len(rows) % 2)
    return peer.puts(
        first,
        *(row.payload or b"" for row in rows),
        topics=topics,
        index=numpy.array([topics.index(row.topic) for row in rows], numpy.int32).tobytes(),
        valid=bytes(row.payload is not None for row in rows),
        ids=[row.id for row in rows] if any(row.id for row in rows) else [],
        if_at=numpy.array(conditions, CONDITION).tobytes() if any(row.if_at for row in rows) else b"",
    )


def as_told(place: tuple[int, ...], why: list[str]) -> Any:
    slice_id, is_new, code, epoch, sequence = place
    if code == 1:
        return "conflict", epoch, sequence
    return why[code - 2] if code else ("stored" if is_new else "there", slice_id, sequence)


def check(peer: Peer, reference: Reference, requests: list[list[Row]]) -> list[tuple[Put, Stored]]:
    """Put all requests, each twice, compare the answers, and return them."""
    asked, first = list[tuple[Put, Stored]](), 1
    for rows in requests:
        conditions, expected = list[tuple[int, int]](), list[Any]()
        for row in rows:  # "newest" is the state after the row before
            conditions.append(reference.condition(row))
            expected.append(reference.judge(row, conditions[-1]))
        put = request_of(peer, first, rows, conditions)
        answer = peer.ask(put)
        assert peer.ask(put) == answer
        told = [as_told(place, judged(answer)[1]) for place in judged(answer)[0]]
        for row, found, hoped in zip(rows, told, expected, strict=True):
            assert (hoped in found) if isinstance(hoped, str) else (found == hoped), (row, found, hoped)
        asked.append((put, answer))
        first += len(rows)
    return asked


@settings(max_examples=examples(40))
@example(
    requests=[[Row(topic, GOOD, b"", "") for topic in (b"A", b"B", b"C", b"D.x", b"E.x")]]
)  # too many for 2 slices
@given(requests=REQUESTS)
def test_each_put_is_judged_like_a_slow_reference(
    tmp_path_factory: pytest.TempPathFactory, requests: list[list[Row]]
) -> None:
    feed, place = narrow(hub_feed(schema="itch50")), tmp_path_factory.mktemp("hub")
    reference = Reference(feed)
    with Hub(feed, place) as hub, Peer(feed) as peer:
        reference.epoch = hub.epoch
        asked = check(peer, reference, requests)
    assert [row[1:] for row in published(place, feed)] == sorted(reference.published, key=lambda each: each[:2])
    with Hub(narrow(feed, 99), place), Peer(feed) as peer:  # also of puts that it has room for
        assert all(peer.ask(put) == answer for put, answer in asked)


@settings(max_examples=examples(16))
@given(requests=REQUESTS)
def test_each_put_is_judged_the_same_by_both_hubs_of_a_pair(
    tmp_path_factory: pytest.TempPathFactory, requests: list[list[Row]]
) -> None:
    feed = narrow(msgspec.structs.replace(pair_feed(), schema="itch50"))
    place, reference = tmp_path_factory.mktemp("pair"), Reference(feed)
    (links,) = free_endpoints("tcp", "link", 1, 2)
    with ExitStack() as stack:
        backup = stack.enter_context(hub_of(feed, place, links, "backup"))
        with hub_of(feed, place, links) as primary:
            wait_in_step(primary, backup)
            reference.epoch = primary.epoch
            with Peer(feed) as peer:
                asked = check(peer, reference, requests)
        with Peer(msgspec.structs.replace(feed, hub=feed.hub_backup), greets=False) as peer:
            assert all(patiently(peer, put) == answer for put, answer in asked)
    for role in ("primary", "backup"):
        said = [row[1:] for row in published(place / role, feed)]
        assert said == sorted(reference.published, key=lambda each: each[:2])


# Requests that are wrong as a whole


WRONG: Final[list[tuple[int, dict[str, Any], str]]] = [
    (1, {"topics": [b""]}, "topic"),
    (1, {"topics": [b"A" * 2_000]}, "topic had 2000 bytes, expected at most 1024"),
    (1, {"index": b"\1\0\0\0"}, "index was 1 to 1, expected places of 1 topics"),
    (1, {"index": b"\0"}, "index had 1 bytes, expected 4"),
    (1, {"offsets": b"\0" * 8}, "offsets had 8 bytes, expected 16"),
    (1, {"offsets": numpy.array([0, 9]).tobytes()}, "offsets were from 0 to 9, expected 0 to 2"),
    (3, {"offsets": numpy.array([0, (1 << 63) - 1, -2, 6]).tobytes()}, "ascending"),  # they wrap around
    (1, {"times": b"1"}, "times had 1 bytes, expected 8"),
    (1, {"valid": b"11"}, "valid had 2 bytes, expected 1"),
    (1, {"ids": [b"a", b"b"]}, "ids were 2, expected none or 1"),
    (1, {"count": 300, "index": bytes(1_200), "is_one": True}, "had 300 topics"),
    (
        1,
        {"payloads": bytes(MOST_BYTES + 1), "offsets": offsets_of_one(MOST_BYTES + 1)},
        "payloads had 1048577 bytes, expected at most 1048576",
    ),
]
"""Number of puts of a request, a change of its fields, and a part of the reason for which they are refused."""


def test_a_wrong_request_is_refused_with_a_reason_and_later_ones_succeed(tmp_path: Path, feed: Feed) -> None:
    first = 1
    with Hub(feed, tmp_path) as hub, Peer(feed) as peer:
        for puts, changes, why in WRONG:
            wrong = peer.puts(first, *[b"no"] * puts, **changes)
            answer = peer.ask(wrong)
            assert refused_of(answer) == [True] * wrong.count
            assert why in answer.why
            assert peer.ask(wrong) == answer
            assert isinstance(peer.ask(peer.puts(first + wrong.count, b"yes")), Stored)
            first += wrong.count + 1
        assert hub.statistics().refused == first - 1 - len(WRONG)
    assert [each[-1] for each in published(tmp_path, feed)] == [b"yes"] * len(WRONG)


def test_malformed_or_foreign_requests_are_answered_with_an_error(tmp_path: Path) -> None:
    feed = hub_feed()
    with Hub(feed, tmp_path) as hub, Peer(feed, greets=False) as peer, HubClient(feed) as client:
        assert "not understood" in peer.ask(b"\xff\xff").why
        peer.socket.send_multipart([b"1", b"2", b"3"])
        assert peer.answer().why == "request had 3 frames, expected 1"
        assert "was not known" in peer.ask(peer.puts(1, b"1")).why
        assert "feed was 'other', expected 'hub'" in peer.ask(Hello("peer", 1, "other", 1, VERSION)).why
        assert "client version was 2, expected 3: " in peer.ask(Hello("peer", 1, feed.name, 1, 2)).why
        assert "not understood" in peer.ask(ENCODER.encode(peer.puts(1, b"1", count=1 << 40))).why
        assert isinstance(peer.hello(), Welcome)
        assert peer.ask(peer.puts(3, b"3")) == Expected(1)
        assert isinstance(peer.ask(peer.puts(1, b"1", session=9)), Ended)
        assert client.put(b"A.x", b"1").sequence == 0
        assert hub.statistics().refused == 7
