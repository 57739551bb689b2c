"""How one of two hubs reacts to its peer's messages and to its settings; the peer is simulated."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest
import zmq

from blackbox import Feed, Hub, HubClient
from blackbox.archive.maintain.retention import Retention
from blackbox.block.form.layout import VERSION
from blackbox.errors import BlockError, HubError, NotStoredError
from blackbox.publish.send.ring import MAX_NOTE_BYTES
from blackbox.services.hub.pair.entries import checked, part_of
from blackbox.services.hub.pair.protocol import LEADS, Follow, Lead, Standing
from blackbox.services.hub.protocol import ENCODER
from blackbox.services.hub.server import client_table as table_module
from blackbox.services.hub.server import judge as judge_module
from blackbox.services.hub.server.deadlines import Deadlines
from blackbox.services.hub.server.history import History
from blackbox.testing import wait_until
from blackbox.transport.security.curve import keys_of_line, use_keys
from tests.archive.test_retention import days_of, move_today
from tests.hub.hubs import published
from tests.hub.pairs import hub_of, pair_feed
from tests.keyring import Keyring


@pytest.fixture
def feed() -> Feed:
    return pair_feed(slices=1)


class Backup:
    """A simulated backup: it sends requests and answers none."""

    def __init__(self, feed: Feed, link: str) -> None:
        self._context = zmq.Context()
        self._asks = self._context.socket(zmq.DEALER)
        self._asks.linger = 0
        use_keys(self._asks, keys_of_line(feed, 0, link))
        self._asks.connect(link)
        self._feed, self._number = feed, 0

    def ask(self, run: int, after: Lead | None = None, wait_s: float = 60.0, **changes: object) -> Lead:
        """Ask as process `run`, which has stored all entries of the answer `after`; return the answer."""
        self._number += 1
        standing = Standing(self._feed.name, "backup", run, 0, 0, False, False, VERSION)
        done = leader = 0
        if after is not None:
            newest = max([0, *(entry.number for entry in after.entries)])
            standing = msgspec.structs.replace(standing, term=after.standing.term, newest=newest)
            done, leader = after.batch, after.standing.run
        follow = msgspec.structs.replace(Follow(self._number, standing, done, leader, b""), **changes)
        self._asks.send(ENCODER.encode(follow))
        while self._asks.poll(round(1e3 * wait_s)):
            lead = LEADS.decode(self._asks.recv())
            if lead.number == self._number:
                return lead
        raise TimeoutError("the hub did not answer")

    def say(self, run: int) -> None:
        """Ask without waiting for the answer."""
        standing = Standing(self._feed.name, "backup", run, 0, 0, False, False, VERSION)
        self._asks.send(ENCODER.encode(Follow(0, standing, 0, 0, b"")))

    def __enter__(self) -> Backup:
        return self

    def __exit__(self, *_: object) -> None:
        self._asks.close()
        self._context.term()


def test_a_late_message_of_an_ended_peer_does_not_make_the_active_hub_alone(
    tmp_path: Path, feed: Feed, links: tuple[str, ...]
) -> None:
    with hub_of(feed, tmp_path, links, alone=True) as hub, Backup(feed, links[0]) as backup:
        in_step = backup.ask(7, backup.ask(7))
        assert in_step.is_in_step
        client = HubClient(feed, "desk").start()
        backup.say(6)  # process 6 ended before 7 began
        with pytest.raises(NotStoredError):
            client.put(b"A", b"1", timeout=1.0)
        assert hub.statistics().stored == 0
        backup.say(8)  # process 7 has ended: no peer may take over
        client.flush(60)
        client.close()


def test_malformed_messages_on_the_link_end_no_hub(tmp_path: Path, feed: Feed, links: tuple[str, ...]) -> None:
    with hub_of(feed, tmp_path, links, alone=True), Backup(feed, links[0]) as backup:
        word = ENCODER.encode(Follow(1, Standing("pair", "backup", 7, 0, 0, False, False, VERSION), 0, 0, b""))
        for wrong in (b"", b"\xff", word[:-1], word.replace(b"pair", b"\xff\xff\xff\xff")):
            backup._asks.send(wrong)
        assert backup.ask(7).standing.role == "primary"
        with HubClient(feed) as client:
            client.put(b"A", b"1", timeout=200)


def test_a_peer_of_another_version_is_refused_by_an_active_hub_and_ends_a_passive_one(
    tmp_path: Path, feed: Feed, links: tuple[str, ...]
) -> None:
    old = Standing(feed.name, "backup", 7, 0, 9, False, False, 2)
    with hub_of(feed, tmp_path, links, alone=True) as hub, Backup(feed, links[0]) as backup:
        assert "hub version was 2, expected 3: " in backup.ask(7, standing=old, digest=b"other").why
        with HubClient(feed) as client:
            client.put(b"A", b"1", timeout=200)
        assert hub.statistics().life == "active"
    hub = hub_of(feed, tmp_path / "another", links).start()
    with Backup(feed, links[0]) as backup:
        backup._asks.send(ENCODER.encode(Follow(1, old, 0, 0, b"")))
        with pytest.raises(HubError, match="other hub version was 2, expected 3: "):
            hub.run()


def test_a_backup_with_an_unknown_row_is_refused(tmp_path: Path, feed: Feed, links: tuple[str, ...]) -> None:
    with hub_of(feed, tmp_path, links, alone=True), Backup(feed, links[0]) as backup:
        had = msgspec.structs.replace(backup.ask(7).standing, role="backup", run=7, newest=5, is_active=False)
        assert "has puts that the other hub lacks" in backup.ask(7, standing=had, digest=b"other").why


def test_a_backup_too_far_behind_is_refused_and_a_copy_follows(
    tmp_path: Path, feed: Feed, links: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts_from = History.parts_from
    with hub_of(feed, tmp_path, links, alone=True):
        with HubClient(feed) as client:
            place = client.put(b"A", b"1", b"id")
        with monkeypatch.context() as patch:
            patch.setattr(History, "parts_from", lambda *about: [] if about[2] == 1 else parts_from(*about))
            backup = hub_of(feed, tmp_path, links, "backup").start()
            with pytest.raises(HubError, match="the backup, lacks more than the journals still have"):
                backup.run()
    shutil.rmtree(tmp_path / "backup")
    shutil.copytree(tmp_path / "primary", tmp_path / "backup")
    with hub_of(feed, tmp_path, links, "backup") as backup:
        with hub_of(feed, tmp_path, links) as hub:
            wait_until(lambda: backup.statistics().life == "armed")
            assert hub.statistics().life == "active"
            assert backup.epoch == hub.epoch != 0
        with HubClient(feed) as client:
            assert client.put(b"A", b"1", b"id", timeout=200) == place
            assert client.put(b"A", b"2", timeout=200).sequence == 1
        assert backup.statistics().life == "active"


def test_a_backup_deletes_days_once_it_has_a_snapshot_of_the_active_hub(
    tmp_path: Path, feed: Feed, links: tuple[str, ...]
) -> None:
    with hub_of(feed, tmp_path, links, alone=True), HubClient(feed) as client:
        place = client.put(b"A", b"1", b"id")
    old = move_today(tmp_path / "primary", feed, 9).name
    shutil.copytree(tmp_path / "primary", tmp_path / "backup")
    with hub_of(feed, tmp_path, links, "backup", retention=Retention(days=5)):
        pass  # at its end, the check of the days has finished
    days = tmp_path / "backup" / feed.name
    assert old in days_of(days)
    with hub_of(feed, tmp_path, links, "backup", retention=Retention(days=5)) as backup:
        with hub_of(feed, tmp_path, links):
            wait_until(lambda: backup.statistics().life == "armed")
            wait_until(lambda: old not in days_of(days))
        with HubClient(feed) as client:
            assert client.put(b"A", b"2", timeout=200).sequence == place.sequence + 1
            assert client.published_count() == 1


def test_an_allowed_client_is_no_peer_on_the_link(tmp_path: Path, feed: Feed, links: tuple[str, ...]) -> None:
    ring = Keyring(tmp_path, "primary", "backup", "desk")
    ring.allow("primary", "backup", "desk")
    of = {each: ring.feed(feed, each, "primary", "backup") for each in ("primary", "backup", "desk")}
    with hub_of(of["primary"], tmp_path, links, alone=True) as hub:
        with Backup(of["desk"], links[0]) as desk, Backup(of["backup"], links[0]) as backup:
            lead = backup.ask(7)
            leads = msgspec.structs.replace(lead.standing, role="backup", run=9, term=lead.standing.term + 1)
            with pytest.raises(TimeoutError):
                desk.ask(9, wait_s=1.0, standing=leads)
            assert backup.ask(7).standing == lead.standing
        assert hub.statistics().life == "active"


def test_deadlines_survive_changes_between_one_hub_and_a_pair(
    tmp_path: Path, feed: Feed, links: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = (msgspec.structs.replace(feed.slices[0], endpoints=feed.slices[0].endpoints[:1]),)
    single = msgspec.structs.replace(feed, hub_backup="", archives=feed.archives[:1], slices=lines)
    with monkeypatch.context() as patch:
        patch.setattr(Deadlines, "due", lambda *_: [])  # this hub ends nothing: the next one must end A
        with Hub(single, tmp_path / "primary"), HubClient(single) as client:
            client.put(b"A", b"1", ttl=0.1)
            client.put(b"B", b"1", ttl=3_600)
    with hub_of(feed, tmp_path, links, alone=True) as hub, HubClient(feed) as client:
        wait_until(lambda: hub.statistics().ended == 1)
        client.put(b"B", b"2", ttl=0.1, timeout=200)
    with Hub(single, tmp_path / "primary"):  # unless the hub before has deleted it
        wait_until(lambda: (b"B", None) in [each[-2:] for each in published(tmp_path / "primary", feed)])
    said = [each[-2:] for each in published(tmp_path / "primary", feed)]
    assert said == [(b"A", b"1"), (b"B", b"1"), (b"A", None), (b"B", b"2"), (b"B", None)]


def test_a_note_of_the_peer_too_large_for_a_journal_is_refused(feed: Feed) -> None:
    assert checked(feed, part_of(0, 0, bytes(MAX_NOTE_BYTES), ())) == []
    with pytest.raises(BlockError, match=f"the note had {MAX_NOTE_BYTES + 1} bytes, expected at most {MAX_NOTE_BYTES}"):
        checked(feed, part_of(0, 0, bytes(MAX_NOTE_BYTES + 1), ()))


def test_a_hub_that_takes_over_knows_an_old_id_and_has_few_turns_to_read(
    tmp_path: Path, feed: Feed, links: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_module, "_MOST_READ", 20)
    monkeypatch.setattr(table_module, "_MOST_ANSWER_BYTES", 100)
    monkeypatch.setattr(judge_module, "MOST_SINCE_SNAPSHOT", 10 * judge_module.TURN_BYTES)
    with hub_of(feed, tmp_path, links, "backup") as backup:
        with HubClient(feed) as client:
            with hub_of(feed, tmp_path, links, alone=True):
                first = client.put(b"A", b"first", b"id", timeout=200)
                for number in range(60):
                    client.put(b"A", b"%d" % number, timeout=200)
                wait_until(lambda: backup.statistics().life == "armed")
                for number in range(60):
                    client.put(b"A", b"%d" % number, timeout=200)
            assert client.put(b"A", b"first", b"id", timeout=200) == first
        assert backup.statistics().life == "active"
        assert backup.server.judge.table.floor > 80


def test_a_hub_that_takes_over_counts_the_topics_that_the_other_one_had(
    tmp_path: Path, feed: Feed, links: tuple[str, ...]
) -> None:
    feed = msgspec.structs.replace(feed, max_topics=4)
    with hub_of(feed, tmp_path, links, "backup") as backup, HubClient(feed) as client:
        with hub_of(feed, tmp_path, links):
            wait_until(lambda: backup.statistics().life == "armed")
            for topic in ("1", "2", "3", "4"):
                client.put(topic, b"x", timeout=200)
        with pytest.raises(HubError, match="had 4 topics, its max_topics"):
            client.put("5", b"x", timeout=200)
        client.put("1", b"y", timeout=200)
