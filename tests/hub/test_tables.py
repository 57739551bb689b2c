"""Tables written through a hub: conditions that it judges, and topics that end at a deadline."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy
import pytest

from blackbox import ConfigError, Feed, Hub, HubClient, Subscriber
from blackbox.block.position import NOWHERE, Place
from blackbox.errors import ConflictError
from blackbox.services.hub.server.deadlines import Deadlines
from blackbox.subscriber.table import Table
from blackbox.testing import wait_until
from tests.hub.hubs import hub_feed, leave, published, reboot, sizes


@pytest.fixture
def feed() -> Feed:
    return hub_feed()


@pytest.fixture
def may_end(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Return an event. Hubs end no topic before it is set."""
    event, due = threading.Event(), Deadlines.due
    monkeypatch.setattr(Deadlines, "due", lambda *about: due(*about) if event.is_set() else [])
    return event


@contextmanager
def kept(feed: Feed, prefix: bytes = b"") -> Iterator[Table]:
    """Yield a synced table, written through its own client."""
    with HubClient(feed) as client:
        subscriber = Subscriber(feed, on_gap="repair", repair_wait=60)
        table = subscriber.table(prefix, client=client)
        subscriber.start(60, snapshot="latest")
        assert table.wait_synced(200)
        yield table
        subscriber.terminate()


def test_puts_and_deletions_reach_every_table(tmp_path: Path, feed: Feed) -> None:
    with Hub(feed, tmp_path), kept(feed) as table, kept(feed, b"A") as part:
        assert table.revision(b"A.x") == NOWHERE
        places = [table.put(topic, topic.lower()) for topic in (b"A.x", b"B.x", b"A.y")]
        assert all(table.wait(place, 200) for place in places)
        assert [table.revision(topic) for topic in (b"A.x", b"B.x", b"A.y")] == places
        assert dict(table) == {b"A.x": b"a.x", b"B.x": b"b.x", b"A.y": b"a.y"}
        gone = part.delete(b"A.x")
        assert part.wait(gone, 60)
        assert part.snapshot()[0] == {b"A.y": b"a.y"}
        assert table.wait(gone, 200)
        with kept(feed) as late:
            assert late.digest() == table.digest()


def test_a_put_with_a_false_condition_is_refused_with_the_current_place(tmp_path: Path, feed: Feed) -> None:
    with Hub(feed, tmp_path) as hub, HubClient(feed) as client:
        first = client.put(b"A", b"1", if_at=NOWHERE)
        with pytest.raises(ConflictError, match=r"topic b'A' was at Place\(.*\), expected it without a") as refused:
            client.put(b"A", b"2", if_at=NOWHERE)
        assert (refused.value.topic, refused.value.expected, refused.value.found) == (b"A", NOWHERE, first)
        second = client.put(b"A", b"2", if_at=first)
        assert second.sequence == first.sequence + 1, "a refused put has no place"
        with pytest.raises(ConflictError) as refused:
            client.put(b"A", b"3", if_at=first)
        assert refused.value.found == second
        client.put(b"A", None, if_at=second)
        with pytest.raises(ConflictError) as refused:
            client.put(b"A", b"4", if_at=second)
        assert refused.value.found == NOWHERE
        client.put(b"A", b"5", if_at=NOWHERE)
        assert hub.statistics().conflicts == 3
    assert [each[-1] for each in published(tmp_path, feed)] == [b"1", b"2", None, b"5"]


def test_a_row_of_put_many_returns_the_place_of_its_topic(tmp_path: Path, feed: Feed) -> None:
    with Hub(feed, tmp_path), HubClient(feed) as client:
        rows = client.put_many((b"A", b"B"), [0, 1], numpy.zeros((2, 1), numpy.uint8))
        second = client.put(b"A", b"2", if_at=rows[0])
        again = client.put_many((b"A", b"B"), [0, 1], numpy.zeros((2, 1), numpy.uint8), if_at=[second, rows[1]])
        with pytest.raises(ConflictError):
            client.put(b"B", b"2", if_at=rows[1])
        assert client.put(b"B", b"2", if_at=again[1]).sequence == again[1]["sequence"] + 1


def test_a_table_stores_a_put_with_an_id_once(tmp_path: Path, feed: Feed) -> None:
    with Hub(feed, tmp_path), kept(feed) as table:
        places = [table.put(b"A", b"1", id=b"first", if_at=NOWHERE) for _ in range(2)]
        gone = [table.delete(b"A", id=b"second", if_at=places[0]) for _ in range(2)]
    assert places[0] == places[1]
    assert gone[0] == gone[1]
    assert [each[-1] for each in published(tmp_path, feed)] == [b"1", None]


@pytest.mark.parametrize("ends", ["killed", "in order"])
def test_the_next_hub_knows_all_revisions(tmp_path: Path, feed: Feed, ends: str) -> None:
    with Hub(feed, tmp_path / "hub") as hub, HubClient(feed) as client:
        places = {b"%d" % number: client.put(b"%d" % number, b"x") for number in range(20)}
        places[b"7"] = client.put(b"7", b"again")
        client.put(b"8", None)
        if ends == "killed":
            hub.server.store.publisher.flush()
            leave(tmp_path / "hub", tmp_path / "left", {})
    left = tmp_path / ("left" if ends == "killed" else "hub")
    for run in range(2):
        with Hub(feed, left), HubClient(feed) as client:
            client.put(b"other", b"%d" % run)
            for topic, place in places.items():
                with pytest.raises(ConflictError) as refused:
                    client.put(topic, b"y", if_at=Place(place.slice_id, place.epoch, place.sequence + 100))
                assert refused.value.found == (NOWHERE if topic == b"8" else place)
            places[b"3"] = client.put(b"3", b"y", if_at=places[b"3"])


def test_after_a_power_cut_the_revision_is_that_of_the_newest_remaining_message(tmp_path: Path) -> None:
    feed = hub_feed(slices=1)
    with Hub(feed, tmp_path / "hub"), HubClient(feed) as client:
        first = client.put(b"A.x", b"1")
        had = sizes(tmp_path / "hub")
        client.put(b"A.x", b"2")
        left = leave(tmp_path / "hub", tmp_path / "left", had, 0)
    reboot(left)
    with Hub(feed, left) as hub, HubClient(feed) as client:
        with pytest.raises(ConflictError) as refused:
            client.put(b"A.x", b"10", if_at=NOWHERE)
        assert refused.value.found == first
        assert client.put(b"A.x", b"10", if_at=first) == Place(0, hub.epoch, 0)


def test_counters_incremented_concurrently_are_exact(tmp_path: Path, feed: Feed) -> None:
    each, topics = 40, [b"counter.%d" % number for number in range(2)]

    def count(table: Table) -> None:
        for number in range(each):
            topic = topics[number % 2]
            while True:
                entry = table.entry(topic)
                at = NOWHERE if entry is None else entry.place
                try:
                    table.put(topic, b"%d" % (int(entry.payload if entry else b"0") + 1), if_at=at, timeout=200)
                    break
                except ConflictError as error:
                    table.wait(error.found, 200)

    with Hub(feed, tmp_path), kept(feed) as one, kept(feed) as other:
        threads = [threading.Thread(target=count, args=(table,)) for table in (one, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        for table in (one, other):
            wait_until(lambda table=table: table.snapshot()[0] == dict.fromkeys(topics, b"%d" % each), 60)  # type: ignore[misc]


def test_a_topic_with_a_ttl_ends_unless_it_is_put_again(tmp_path: Path, feed: Feed, may_end: threading.Event) -> None:
    with Hub(feed, tmp_path) as hub, kept(feed) as table:
        table.put(b"short", b"1", ttl=0.05)
        for topic in (b"anew", b"stays", b"deleted", b"longer"):
            table.put(topic, b"1", ttl=0.3)
        later = table.put(b"anew", b"2", ttl=0.6)
        table.put(b"stays", b"2")
        table.delete(b"deleted")
        table.put(b"longer", b"2", ttl=3_600)
        may_end.set()
        wait_until(lambda: hub.statistics().ended == 2)
        wait_until(lambda: table.snapshot()[0] == {b"stays": b"2", b"longer": b"2"})
        with pytest.raises(ConflictError):
            table.put(b"anew", b"3", if_at=later)
        table.put(b"anew", b"3", if_at=NOWHERE)
        assert hub.statistics().ended == 2
    ended = [each[3] for each in published(tmp_path, feed) if each[4] is None]
    assert sorted(ended) == [b"anew", b"deleted", b"short"]


def test_a_deadline_outlives_a_killed_hub_and_ends_no_later_value(
    tmp_path: Path, feed: Feed, may_end: threading.Event
) -> None:
    with Hub(feed, tmp_path / "hub"), HubClient(feed) as client:
        for topic, ttl in ((b"due", None), (b"later", 3_600), (b"kept", None)):
            client.put(topic, b"1", ttl=0.001)
            if topic != b"due":
                client.put(topic, b"2", ttl=ttl)
        left = leave(tmp_path / "hub", tmp_path / "left", {})
    may_end.set()
    with Hub(feed, left), kept(feed) as table:
        wait_until(lambda: table.snapshot()[0] == {b"later": b"2", b"kept": b"2"})
    assert [each[3] for each in published(left, feed) if each[4] is None] == [b"due"]


def test_many_topics_end_at_once(tmp_path: Path, feed: Feed) -> None:
    with Hub(feed, tmp_path) as hub, HubClient(feed) as client:
        for number in range(5_000):
            client.put_soon(b"%d" % number, b"x", ttl=0.001)
        client.flush()
        wait_until(lambda: hub.statistics().ended == 5_000)
    found = published(tmp_path, feed)
    assert len(found) == 10_000
    assert {each[3]: each[4] for each in found} == {b"%d" % number: None for number in range(5_000)}


def test_a_topic_that_columns_name_twice_is_judged_by_its_last_message(
    tmp_path: Path, feed: Feed, may_end: threading.Event
) -> None:
    rows = numpy.frombuffer(b"abc", numpy.uint8).reshape(3, 1)
    with Hub(feed, tmp_path) as hub, HubClient(feed) as client, kept(feed) as table:
        client.put(b"B", b"", if_at=NOWHERE)  # from now on the hub knows the place of each topic
        places = client.put_many((b"A", b"A"), [1, 1, 0], rows, ttl=[3_600, 3_600, 0.001])
        newest = Place(*places[2][["slice", "epoch", "sequence"]].tolist())
        assert table.wait(newest, 200)
        assert table.revision(b"A") == newest
        with pytest.raises(ConflictError):
            client.put(b"A", b"stale", if_at=Place(*places[1][["slice", "epoch", "sequence"]].tolist()))
        may_end.set()
        wait_until(lambda: hub.statistics().ended == 1, 60)  # the time to live of the last one holds


def test_columns_of_many_requests_are_all_judged(tmp_path: Path, feed: Feed) -> None:
    topics = [b"%d" % number for number in range(10_000)]
    rows, ids = numpy.arange(10_000).view(numpy.uint8).reshape(-1, 8), [b"id-%d" % number for number in range(10_000)]
    with Hub(feed, tmp_path) as hub, HubClient(feed) as client:
        client.put_many(topics[::3], numpy.arange(len(topics[::3])), rows[::3])
        with pytest.raises(ConflictError, match="3334 of 10000") as refused:
            client.put_many(topics, numpy.arange(10_000), rows, if_at=NOWHERE, ids=ids)
        places = refused.value.places
        assert places is not None
        assert numpy.flatnonzero(places["is_refused"]).tolist() == list(range(0, 10_000, 3))
        with pytest.raises(ConflictError) as refused:  # stored rows are answered by their ids, the others judged again
            client.put_many(topics, numpy.arange(10_000), rows, if_at=NOWHERE, ids=ids)
        again = refused.value.places
        assert again is not None
        assert (again[["epoch", "sequence", "is_refused"]] == places[["epoch", "sequence", "is_refused"]]).all()
        assert hub.statistics().known >= 10_000 - 3_334  # more if the client sent a request again
    assert len(published(tmp_path, feed)) == 10_000


def test_columns_have_a_time_to_live_for_all_or_for_each(tmp_path: Path, feed: Feed) -> None:
    rows = numpy.zeros((3, 1), numpy.uint8)
    with Hub(feed, tmp_path) as hub, HubClient(feed) as client:
        client.put_many((b"A", b"B", b"C"), [0, 1, 2], rows, ttl=0.05)
        wait_until(lambda: hub.statistics().ended == 3)
        client.put_many((b"A", b"B", b"C"), [0, 1, 2], rows, ttl=[None, 0.05, 3_600])
        wait_until(lambda: hub.statistics().ended == 4)
    assert sorted(each[3] for each in published(tmp_path, feed) if each[4] is None) == [b"A", b"B", b"B", b"C"]


def test_a_table_without_a_matching_client_is_not_written(feed: Feed) -> None:
    with pytest.raises(ConfigError, match="table b'A' had no client, expected one"):
        Subscriber(feed).table(b"A").put(b"A", b"1")
    with pytest.raises(ConfigError, match="topic was b'B', expected one of table b'A'"):
        Subscriber(feed).table(b"A", client=HubClient(feed)).delete(b"B")
    with pytest.raises(ConfigError, match="client was of feed 'other', expected one of 'hub'"):
        Subscriber(feed).table(b"A", client=HubClient(hub_feed("other")))
