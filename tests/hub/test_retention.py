"""Retention of a hub's days, which keeps messages that durable clients have not received."""

from __future__ import annotations

import datetime
import threading
from pathlib import Path

import msgspec
import pytest

from blackbox import Feed, Hub, HubClient
from blackbox.archive.consumer_positions import CONSUMERS, ConsumerStore, Owner, owned_consumers
from blackbox.archive.maintain import deleter as deleter_module
from blackbox.archive.maintain.deleter import Deleter
from blackbox.archive.maintain.retention import Retention
from blackbox.archive.read.segments import Segments
from blackbox.block.position import Position
from blackbox.services.hub.server.client_table import Table
from blackbox.services.hub.server.deadlines import Deadlines
from blackbox.services.hub.server.history import History
from blackbox.services.hub.server.judge import Judge
from blackbox.services.hub.server.revisions import newest_places
from blackbox.services.hub.server.store import Store
from blackbox.services.hub.server.topics import Topics
from blackbox.testing import wait_until
from tests.archive.test_retention import aged, days_of, move_today
from tests.hub.hubs import hub_feed, leave
from tests.hub.peer import Peer


def test_old_days_are_deleted_unless_a_durable_client_needs_them(tmp_path: Path) -> None:
    feed = hub_feed(slices=1, key_bytes=1)
    alone = msgspec.structs.replace(feed, hub="")
    days = [aged(tmp_path, alone, ago) for ago in (9, 8, 7)]
    ConsumerStore(tmp_path / feed.name).note(Owner.of_key("desk"), "desk-1", {0: Position(days[1][1], 500)})
    with Hub(feed, tmp_path, retention=Retention(days=5)) as hub, HubClient(feed, "desk-2") as client:
        wait_until(lambda: days[0][0] not in days_of(tmp_path / feed.name))
        client.put(b"T", b"today")
        assert hub.statistics().stored == 1
        kept = days_of(tmp_path / feed.name)
    assert kept[:-1] == [days[1][0], days[2][0]]


def put_and_kill(place: Path, feed: Feed) -> Path:
    """Return the directory of a killed hub to which a client has put once."""
    with Hub(feed, place / "hub"), Peer(feed) as peer:
        peer.ask(peer.puts(1, b"1"))
        return leave(place / "hub", place / "left", {})


def last_put(feed: Feed, place: Path) -> int:
    with Hub(feed, place), Peer(feed) as peer:
        return int(peer.hello().last)


def test_a_hub_that_was_down_for_long_reads_its_days_before_deleting_them(
    tmp_path: Path, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = put_and_kill(tmp_path, feed)
    old = move_today(left, feed, 9)
    read, look, looked = Store.tell, Deleter.look, threading.Event()

    def looks(self: Deleter) -> list[str]:
        try:
            return look(self)
        finally:
            looked.set()

    def reads(self: Store, judge: Judge) -> Judge:
        if any(thread.name == "blackbox-retention" for thread in threading.enumerate()):
            assert looked.wait(200)
        return read(self, judge)

    monkeypatch.setattr(Deleter, "look", looks)
    monkeypatch.setattr(Store, "tell", reads)
    with Hub(feed, left, retention=Retention(days=5)), Peer(feed) as peer:
        assert peer.hello().last == 1
        wait_until(lambda: not old.exists())
    assert last_put(feed, left) == 1


def is_known_after_midnight(place: Path, seconds: int) -> bool:
    """Put some seconds before midnight and wait until that day is deleted. Return False if the put was too late."""
    midnight = datetime.datetime.now(datetime.UTC).replace(microsecond=0) + datetime.timedelta(seconds=seconds)
    feed = msgspec.structs.replace(hub_feed(slices=1), day_start=f"{midnight:%H:%M:%S}")
    with Hub(feed, place, retention=Retention(days=1)), Peer(feed) as peer:
        peer.ask(peer.puts(1, b"1"))
        first, *later = days_of(place / feed.name)
        if later or datetime.datetime.now(datetime.UTC) >= midnight:
            return False
        wait_until(lambda: first not in days_of(place / feed.name), 120)
    assert last_put(feed, place) == 1
    return True


def test_a_hub_that_is_idle_over_midnight_knows_its_clients_once_the_day_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deleter_module, "_LOOK_S", 0.01)
    assert any(is_known_after_midnight(tmp_path / str(seconds), seconds) for seconds in (4, 40))


@pytest.mark.parametrize("slice_id", [0, 1])
def test_a_day_that_is_deleted_while_it_is_opened_is_no_damage(
    tmp_path: Path, slice_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = hub_feed(slices=2)
    left = put_and_kill(tmp_path, feed)
    old, gone = move_today(left, feed, 9), left / "gone"
    assert last_put(feed, left) == 1
    refresh = Segments._refresh_slice

    def refreshes(self: Segments, of_slice: int) -> None:
        if self.day == old and of_slice == slice_id:
            old.rename(gone)
        refresh(self, of_slice)

    monkeypatch.setattr(Segments, "_refresh_slice", refreshes)
    table = Table(10, 10, 10)
    History(left / feed.name, feed).tell(table, Deadlines(), Topics(feed))
    assert table.number > 0
    gone.rename(old)
    newest_places(left / feed.name, 0, [0, 0], lambda: None)
    assert gone.exists()


def keeping_hub(feed: Feed, place: Path) -> Hub:
    return Hub(feed, place / "hub", retention=Retention(days=5))


def held(feed: Feed, place: Path) -> list[str]:
    """Return the durable subscriptions for which the hub keeps days."""
    directory = place / "hub" / feed.name / CONSUMERS
    found = owned_consumers(directory) if directory.is_dir() else {}
    return sorted(file.name for file in found.values() if file.read() is not None)


def begin(feed: Feed, place: Path, client: HubClient) -> None:
    """Subscribe twice and get a message of each, so that the hub learns the positions."""
    client.subscribe("A.")
    client.subscribe(symbols=["A"])
    client.put("A.x", b"1")
    assert client.get("A.", 60.0).payload == client.get(symbols=["A"], timeout=200).payload == b"1"
    wait_until(lambda: held(feed, place) == ["desk_A.", "desk_A_symbol"])


def test_an_ended_subscription_holds_no_days(tmp_path: Path, feed: Feed) -> None:
    with keeping_hub(feed, tmp_path), HubClient(feed, "desk", tmp_path / "desk") as client:
        begin(feed, tmp_path, client)
        client.unsubscribe(symbols=["A"])
        wait_until(lambda: held(feed, tmp_path) == ["desk_A."])
        client.unsubscribe("A.")
        wait_until(lambda: held(feed, tmp_path) == [])
    assert not list((tmp_path / "desk").glob("*.positions"))


def test_a_restarted_hub_learns_of_subscriptions_that_ended_meanwhile(tmp_path: Path, feed: Feed) -> None:
    with HubClient(feed, "desk", tmp_path / "desk") as client:
        with keeping_hub(feed, tmp_path):
            begin(feed, tmp_path, client)
        client.unsubscribe("A.")
    assert held(feed, tmp_path) == ["desk_A.", "desk_A_symbol"]
    with keeping_hub(feed, tmp_path):
        with HubClient(feed, "other", tmp_path / "desk"):
            pass
        assert held(feed, tmp_path) == ["desk_A.", "desk_A_symbol"], "another client must not end them"
        with HubClient(feed, "desk", tmp_path / "desk") as client:
            assert [str(each) for each in client.subscriptions] == ["symbol b'A'"]
            wait_until(lambda: held(feed, tmp_path) == ["desk_A_symbol"])


def test_a_subscription_that_begins_again_holds_days_again(tmp_path: Path, feed: Feed) -> None:
    with keeping_hub(feed, tmp_path), HubClient(feed, "desk", tmp_path / "desk") as client:
        begin(feed, tmp_path, client)
        client.unsubscribe("A.")
        begin(feed, tmp_path, client)


def test_consumers_can_end_at_an_archive_that_keeps_no_days_for_them(tmp_path: Path, feed: Feed) -> None:
    with Hub(feed, tmp_path / "hub"), HubClient(feed, "desk", tmp_path / "desk") as client:
        client.subscribe("A.")
        client.unsubscribe("A.")
        wait_until(lambda: not list((tmp_path / "desk").glob("*.positions")))
