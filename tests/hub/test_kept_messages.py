"""Messages received but not committed by a durable client: delivered after a restart, also while the hub is down."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from blackbox import ConfigError, Feed, Hub, HubClient
from blackbox.services.hub.client import kept_messages
from blackbox.testing import wait_until
from tests.examples import first_of
from tests.hub.hubs import hub_feed, leave
from tests.hub.test_get import WAIT_S, numbers, put_numbers


def keeper(feed: Feed, place: Path, *, keep: bool = True) -> HubClient:
    return HubClient(feed, "reader", place / "reader", keep=keep)


def parts(place: Path) -> list[Path]:
    return sorted((place / "reader").glob("reader_.kept/*"))


def wait_received(client: HubClient, count: int) -> None:
    """Wait until `number` messages wait for the reader of the only subscription."""
    (inbox,) = client._durable._inboxes.values()
    opening = inbox._opening
    assert opening is not None
    wait_until(lambda: opening.stream._queue.messages == count)


def rest(client: HubClient, prefix: bytes = b"") -> list[int]:
    """Return the messages that are available while the hub is down."""
    got = list[int]()
    while True:
        try:
            got.append(int(client.get(prefix, 0.0).payload))
        except TimeoutError:
            return got


def test_received_messages_are_delivered_again_while_the_hub_is_down(tmp_path: Path) -> None:
    feed = hub_feed(slices=2, key_bytes=2)
    with Hub(feed, tmp_path / "hub"):
        with keeper(feed, tmp_path) as client:
            client.subscribe(b"")
            put_numbers(client, 0, 100)
            assert numbers(client, b"", 1) == [0]
            for number in range(1, 10):
                assert numbers(client, b"", 1) == [number]
            client.commit()
        with keeper(feed, tmp_path) as client:  # all are received
            assert numbers(client, b"", 90) == list(range(10, 100))
    with keeper(feed, tmp_path) as client:
        assert numbers(client, b"", 40) == list(range(10, 50))
        client.commit()
    with keeper(feed, tmp_path) as client:
        assert numbers(client, b"", 10) == list(range(50, 60))  # not committed
    with keeper(feed, tmp_path) as client:
        assert rest(client) == list(range(50, 100))
        with Hub(feed, tmp_path / "hub"):
            put_numbers(client, 100, 110)
            assert numbers(client, b"", 10) == list(range(100, 110))
            client.commit()
    with Hub(feed, tmp_path / "hub"), keeper(feed, tmp_path) as client:
        put_numbers(client, 110, 115)
        assert numbers(client, b"", 5) == list(range(110, 115))


def test_a_kept_message_with_several_topics_is_delivered_once(tmp_path: Path, feed: Feed) -> None:
    with Hub(feed, tmp_path / "hub"), keeper(feed, tmp_path) as client:
        client.subscribe(b"A")
        for number in range(3):
            client.put((b"B.1", b"A.1", b"A.2"), b"%d" % number)
        assert numbers(client, b"A", 1) == [0]
        client.commit()
        assert numbers(client, b"A", 2) == [1, 2]
    with keeper(feed, tmp_path) as client:
        assert rest(client, b"A") == [1, 2]


def test_messages_of_a_killed_client_are_delivered_too(tmp_path: Path, feed: Feed) -> None:
    with Hub(feed, tmp_path / "hub"), keeper(feed, tmp_path / "killed") as client:
        client.subscribe(b"")
        for number in range(20):
            client.put(b"A", b"%d" % number)  # one block each
        assert numbers(client, b"", 1) == [0]
        wait_received(client, 19)
        leave(tmp_path / "killed", tmp_path / "left", {})
    with keeper(feed, tmp_path / "left") as client:
        assert rest(client) == list(range(20))


def test_parts_are_deleted_as_positions_advance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_messages, "_PART_BYTES", 1)
    feed = hub_feed(slices=1)
    with Hub(feed, tmp_path / "hub"), keeper(feed, tmp_path) as client:
        client.subscribe(b"")
        client.put(b"A", b"0")
        assert numbers(client, b"", 1) == [0]
        for number in range(1, 4):
            client.put(b"A", b"%d" % number)
            wait_received(client, number)  # one block each
        assert numbers(client, b"", 1) == [1]
        assert len(parts(tmp_path)) == 4
        client.commit()
        assert [each.name for each in parts(tmp_path)] == ["000003", "000004"]
        assert numbers(client, b"", 2) == [2, 3]
        client.commit()
        assert parts(tmp_path) == []
        client.put(b"A", b"4")
        assert numbers(client, b"", 1) == [4]
        client.unsubscribe(b"")
        assert not (tmp_path / "reader" / "reader_.kept").exists()


def test_keep_needs_a_directory() -> None:
    with pytest.raises(ConfigError, match="keep was given without a directory"):
        HubClient(hub_feed(), "reader", keep=True)


@pytest.mark.parametrize("damage", ["manifest.json", "taken"])
def test_unreadable_kept_messages_are_fetched_from_the_hub(tmp_path: Path, feed: Feed, damage: str) -> None:
    with Hub(feed, tmp_path / "hub"):
        with keeper(feed, tmp_path) as client:
            client.subscribe(b"")
            put_numbers(client, 0, 5)
            assert numbers(client, b"", 5) == list(range(5))
        (part,) = parts(tmp_path)
        (part / damage).write_text("damaged")
        with keeper(feed, tmp_path) as client:
            assert numbers(client, b"", 5) == list(range(5))
            client.commit()


def test_messages_beyond_the_bound_are_fetched_from_the_hub(
    tmp_path: Path, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Hub(feed, tmp_path / "hub"), keeper(feed, tmp_path) as client:
        client.subscribe(b"")
        for number in range(10):
            if number == 5:
                assert numbers(client, b"", 5) == [0, 1, 2, 3, 4]
                monkeypatch.setattr(kept_messages, "MOST_BYTES", 1)  # one more is kept
            client.put(b"A", b"%d" % number)
            if number == 5:
                wait_received(client, 1)  # so it is one block
        assert numbers(client, b"", 5) == list(range(5, 10))
    with keeper(feed, tmp_path) as client:
        assert rest(client) == list(range(6))
        with Hub(feed, tmp_path / "hub"):
            assert numbers(client, b"", 4) == list(range(6, 10))
            client.commit()
            assert parts(tmp_path) == []
            monkeypatch.setattr(kept_messages, "MOST_BYTES", 1 << 20)
            client.put(b"A", b"10")
            assert numbers(client, b"", 1) == [10]
    with keeper(feed, tmp_path) as client:
        assert rest(client) == [10]


def test_messages_after_a_damaged_one_are_fetched_from_the_hub_in_order(tmp_path: Path, feed: Feed) -> None:
    with Hub(feed, tmp_path / "hub"), keeper(feed, tmp_path) as client:
        client.subscribe(b"")
        for number in range(100, 110):
            client.put(b"A", b"%d" % number)
        assert numbers(client, b"", 10) == list(range(100, 110))
    (journal,) = (tmp_path / "reader").glob("reader_.kept/*/*/*.journal")
    data = bytearray(journal.read_bytes())
    data[data.rindex(b"105")] ^= 1
    journal.write_bytes(data)
    with keeper(feed, tmp_path) as client:
        here = rest(client)  # the messages before the damaged one may have been read here
        assert max(here, default=0) < 105
        with Hub(feed, tmp_path / "hub"):
            assert here + numbers(client, b"", 10 - len(here)) == list(range(100, 110))


@pytest.mark.parametrize(("seed", "keep"), first_of([(0, True), (0, False), (1, True), (2, True), (3, True)], keep=2))
def test_each_message_is_delivered_once_per_commit_in_any_order_of_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, keep: bool
) -> None:
    """The hub comes and goes, the client restarts, with and without a commit, and files are small."""
    random = Random(seed)
    monkeypatch.setattr(kept_messages, "_PART_BYTES", random.choice([1, 300, 1 << 20]))
    monkeypatch.setattr(kept_messages, "MOST_BYTES", random.choice([500, 2_000, 1 << 20]))
    feed = hub_feed(slices=1, key_bytes=random.choice([0, 2]))
    put = at = committed = 0
    hub = Hub(feed, tmp_path / "hub").start()
    client = keeper(feed, tmp_path, keep=keep).start()
    client.subscribe(b"")
    is_here = True
    for _ in range(60):
        event = random.choice(["put", "put", "get", "get", "commit", "restart", "hub"])
        if event == "put" and is_here:
            client.put(random.choice([b"A.x", b"B.x"]), b"%d" % put)
            put += 1
        elif event == "get" and at < put:
            try:
                assert int(client.get(b"", WAIT_S if is_here else 0.0).payload) == at
                at += 1
            except TimeoutError:
                assert not is_here
        elif event == "commit":
            client.commit()
            committed = at
        elif event == "restart":
            client.end()
            client, at = keeper(feed, tmp_path, keep=keep).start(), committed
        elif event == "hub":
            if is_here:
                hub.close()
            else:
                hub = Hub(feed, tmp_path / "hub").start()
            is_here = not is_here
    if not is_here:
        hub = Hub(feed, tmp_path / "hub").start()
    assert numbers(client, b"", put - at) == list(range(at, put))
    client.end()
    hub.close()
