"""Retention: deleted days, days kept for consumers, and who may move the consumers of an archive."""

from __future__ import annotations

import datetime
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blackbox import ConfigError, Feed, Hub, HubClient, Publisher, Recorder, Recording
from blackbox.archive.consumer_positions import (
    CONSUMERS,
    ConsumerStore,
    Owner,
    PositionFile,
    owned_consumers,
    secret_of,
)
from blackbox.archive.files.day import MANIFEST, Manifest, session_date
from blackbox.archive.maintain.deleter import Deleted, Deleter
from blackbox.archive.maintain.retention import Retention
from blackbox.archive.serve.client import ArchiveClient
from blackbox.archive.serve.protocol import Gone
from blackbox.archive.serve.server import ArchiveServer
from blackbox.block.position import Position
from blackbox.errors import ArchiveError, RightsError
from blackbox.testing import wait_until
from tests.archive.archives import archived_feed, recorded
from tests.archive.recorders import publish_numbered, wait_recorded
from tests.examples import examples
from tests.hub.hubs import hub_feed
from tests.keyring import Keyring
from tests.subscriber.test_durable_consumers import consumer

COUNT = 1_000
DESK = Owner.of_key("desk")


def aged(place: Path, feed: Feed, ago: int) -> tuple[str, int]:
    """Record a day `ago` days in the past, before existing days. Return its name and epoch."""
    epoch = recorded(place, feed, COUNT)
    return move_today(place, feed, ago).name, epoch


def move_today(place: Path, feed: Feed, ago: int) -> Path:
    """Rename the current day, with its manifest, to a day `ago` days earlier, and return it."""
    today = session_date(feed, time.time_ns())
    date = today - datetime.timedelta(ago)
    newest = max(path.parent for path in (place / feed.name).glob(f"*/{MANIFEST}"))  # midnight may have passed
    day = newest.rename(place / feed.name / date.isoformat())
    manifest = msgspec.structs.replace(Manifest.read(day), date=date)
    (day / MANIFEST).unlink()
    manifest.write(day)
    return day


def days_of(place: Path) -> list[str]:
    return sorted(path.parent.name for path in place.glob("*/manifest.json"))


def size_of(day: Path) -> int:
    return sum(path.stat().st_size for path in day.rglob("*") if path.is_file())


def begin_at(place: Path, feed: Feed, epoch: int) -> None:
    """Set the consumer to the 500th message of an epoch, also in its archive."""
    secret = secret_of(place / "positions")
    for directory in (place / "positions", place / feed.name / CONSUMERS / Owner.of_secret(secret, "").directory):
        directory.mkdir(parents=True, exist_ok=True)
        file = PositionFile(directory, "strategy-1")
        file.own(0)
        file.keep(feed.name, {0: Position(epoch, 500)})
        file.close()


AGES = (9, 5, 4, 1, 0)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> tuple[Feed, Path, list[int]]:
    """A feed with some days, and the epoch of each."""
    place, feed = tmp_path_factory.mktemp("days"), archived_feed()
    return feed, place / feed.name, [aged(place, feed, ago)[1] for ago in AGES]


bound = st.none() | st.integers(1, 11)


@settings(deadline=None, max_examples=examples(40))
@given(
    bound,
    bound,
    st.none() | st.integers(1, 6),
    st.none() | st.integers(1, 6),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, COUNT)), max_size=2),
)
def test_remaining_days_match_a_plain_rule(
    house: tuple[Feed, Path, list[int]],
    days: int | None,
    most_days: int | None,
    sizes: int | None,
    most_sizes: int | None,
    at: list[tuple[int, int]],
) -> None:
    feed, recordings, epochs = house
    with TemporaryDirectory() as path:
        place = Path(shutil.copytree(recordings, Path(path, feed.name)))
        store = ConsumerStore(place)
        for number, (day, sequence) in enumerate(at):
            store.note(DESK, f"strategy-{number}", {0: Position(epochs[day], sequence)})
        names = days_of(place)
        each = size_of(place / names[0])
        retention = Retention(days, sizes and sizes * each + 100, most_days, most_sizes and most_sizes * each + 100)
        remain = list(names)
        for ago, epoch, name in zip(AGES[:-1], epochs, names, strict=False):
            needed = any((epochs[day], sequence) <= (epoch, COUNT - 1) for day, sequence in at)
            size = sum(size_of(place / name) for name in remain)

            def over(low: int | None, high: int | None, ago: int = ago, size: int = size) -> bool:
                return (low is not None and ago + 1 > low) or (high is not None and size > high)

            if over(most_days, retention.most_bytes) or (over(days, retention.bytes) and not needed):
                remain.remove(name)
            else:
                break
        assert Deleter(place, feed, retention).look() == names[: len(names) - len(remain)]
        assert days_of(place) == remain
        assert Deleter(place, feed, retention).look() == []


def test_an_interrupted_deletion_is_finished_the_next_time(tmp_path: Path) -> None:
    feed = archived_feed()
    for ago in (5, 4, 0):
        aged(tmp_path, feed, ago)
    place = tmp_path / feed.name
    names = days_of(place)
    (place / ".deleted").mkdir()
    (place / names[0]).rename(place / ".deleted" / names[0])  # as after a kill
    with ArchiveServer(place, feed.archives):
        assert ArchiveClient(feed, timeout=200).about().days == names[1:]
    assert Deleter(place, feed, Retention(days=2)).look() == [names[1]]
    assert not (place / ".deleted").exists()
    assert days_of(place) == names[2:]


def test_a_renamed_copy_of_a_day_is_neither_deleted_nor_counted(tmp_path: Path) -> None:
    feed = archived_feed()
    old, new = (aged(tmp_path, feed, ago)[0] for ago in (5, 0))
    place = tmp_path / feed.name
    for name in ("2019-12-30-copy", f"{new}-copy"):
        shutil.copytree(place / old, place / name)
    Deleter(place, feed, Retention(messages_per_topic=COUNT + 5)).look()
    assert Recording.open(place / old).summary().messages == 5, "the copy of the newest day is not counted"
    assert Deleter(place, feed, Retention(days=2)).look() == [old]
    assert days_of(place) == ["2019-12-30-copy", new, f"{new}-copy"]


def test_no_further_day_is_deleted_once_it_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feed = archived_feed()
    names = [aged(tmp_path, feed, ago)[0] for ago in (6, 5, 4, 0)]
    place = tmp_path / feed.name
    deleter, delete = Deleter(place, feed, Retention(days=1, messages_per_topic=1)), Deleter._delete

    def close_too(*given: Any) -> None:
        delete(*given)
        assert deleter.close()

    monkeypatch.setattr(Deleter, "_delete", close_too)
    assert deleter.look() == names[:1]
    assert days_of(place) == names[1:]
    assert [Recording.open(place / name).summary().messages for name in names[1:]] == [COUNT] * 3


def test_an_archive_reports_deleted_messages(tmp_path: Path) -> None:
    feed = archived_feed(key_bytes=2)
    (_, first), (second_day, second), (_, last) = (aged(tmp_path, feed, ago) for ago in (5, 4, 0))
    place = tmp_path / feed.name
    Deleter(place, feed, Retention(days=1)).look()
    with ArchiveServer(place, feed.archives):
        client = ArchiveClient(feed, timeout=200)
        found = list(client.blocks(0, start=(first, 300)))
        assert client.about().deleted == second_day
    gone = [each for each in found if isinstance(each, Gone)]
    assert gone == [Gone(first, 300, COUNT, "deleted"), Gone(second, 0, COUNT, "deleted")]
    assert [each.block.epoch for each in found if not isinstance(each, Gone)] == [last] * (len(found) - 2)


def test_days_are_kept_until_a_consumer_has_passed_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blackbox.subscriber.consumer._ANSWER_S", 60.0)
    feed = archived_feed(key_bytes=2)
    (old_day, epoch), days = aged(tmp_path, feed, 3), tmp_path / feed.name
    begin_at(tmp_path, feed, epoch)
    with Publisher(feed, when_full="wait") as publisher:
        with Recorder(feed, tmp_path, serve=True, retention=Retention(days=1)) as recorder:
            publish_numbered(publisher, 0, COUNT)
            publisher.flush()
            wait_recorded(recorder, COUNT)
            assert Deleter(days, feed, Retention(days=1)).look() == []
            kept = days_of(days)[1:]
            subscriber, got = consumer(feed, tmp_path / "positions")
            subscriber.start()
            wait_until(lambda: got[-1:] == [(publisher.epoch, COUNT - 1)])
            with subscriber.checkpoint():
                pass
            subscriber.stop()
            (told,) = (file.read() for file in owned_consumers(days / CONSUMERS).values())
        assert got == [*((epoch, n) for n in range(500, COUNT)), *((publisher.epoch, n) for n in range(COUNT))]
        assert told is not None
        assert told.slices == {0: (publisher.epoch, COUNT)}
        assert Deleter(days, feed, Retention(days=1)).look() in ([], [old_day])  # the recorder may have deleted it
        assert days_of(days) == kept


def test_a_consumer_gets_a_gap_for_deleted_days(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    feed = archived_feed()
    (_, first), (_, second), days = aged(tmp_path, feed, 5), aged(tmp_path, feed, 4), tmp_path / feed.name
    begin_at(tmp_path, feed, first)
    with (
        Publisher(feed, when_full="wait") as publisher,
        Recorder(feed, tmp_path, serve=True, retention=Retention(most_days=1)) as recorder,
    ):
        wait_until(lambda: len(Deleted.read(days).slices.get(0, [])) == 2)
        assert "which consumers still need: secret-" in caplog.text
        publish_numbered(publisher, 0, COUNT)
        publisher.flush()
        wait_recorded(recorder, COUNT)
        subscriber, got = consumer(feed, tmp_path / "positions")
        gaps: list[tuple[int, int, int]] = []
        subscriber.on_gap(b"")(lambda gap: gaps.append((gap.epoch, gap.sequence, gap.count)))
        subscriber.start()
        wait_until(lambda: got[-1:] == [(publisher.epoch, COUNT - 1)])
        subscriber.stop()
    assert gaps == [(first, 500, COUNT - 500), (second, 0, COUNT)]
    assert got == [(publisher.epoch, n) for n in range(COUNT)]


def test_archives_that_delete_nothing_store_no_consumers_and_wrong_limits_are_rejected(tmp_path: Path) -> None:
    feed = archived_feed()
    recorded(tmp_path, feed, COUNT)
    place = tmp_path / feed.name
    with ArchiveServer(place, feed.archives):
        ArchiveClient(feed, timeout=200).tell("strategy-1", {0: Position(1, 1)})
    assert not (place / CONSUMERS).exists()
    with pytest.raises(ValueError, match="days was 0, expected 1 to"):
        Recorder(feed, tmp_path, retention=Retention(days=0))
    with pytest.raises(ConfigError, match="most_bytes was 5, expected at least bytes, 6"):
        Recorder(feed, tmp_path, retention=Retention(bytes=6, most_bytes=5))


FAR = 1 << 62


@pytest.fixture
def ring(tmp_path: Path) -> Keyring:
    """Keys for an archive: two desks with rights, and a stranger without."""
    ring = Keyring(tmp_path / "ring", "archive", "desk", "other", "stranger")
    ring.allow("archive", "desk", "other", "stranger")
    (ring.directory / "allowed-by-archive" / "rights.toml").write_text("stranger = []\n")
    return ring


@contextmanager
def serving(place: Path, feed: Feed, ring: Keyring | None) -> Iterator[ArchiveServer]:
    """Serve recordings, and keep days for consumers."""
    keyed = feed if ring is None else ring.feed(feed, "archive")
    with ArchiveServer(place, feed.archives, keeps_for_consumers=True, feed=keyed) as archive:
        yield archive


def as_owner(feed: Feed, ring: Keyring | None, name: str) -> ArchiveClient:
    return ArchiveClient(feed if ring is None else ring.feed(feed, name, archives=("archive",)), timeout=200)


def kept_in(place: Path) -> dict[str, dict[int, Position]]:
    found = {name: file.read() for name, file in owned_consumers(place / CONSUMERS).items()}
    return {name: kept.slices for name, kept in found.items() if kept is not None}


def test_a_forged_request_deletes_no_other_history(tmp_path: Path, ring: Keyring) -> None:
    """Torture does the same without keys."""
    feed = archived_feed()
    (old, epoch), _, (today, last) = (aged(tmp_path, feed, ago) for ago in (5, 4, 0))
    place = tmp_path / feed.name
    secret = secret_of(tmp_path / "positions")
    needed: dict[int, Position] = {0: Position(epoch, 500)}
    with serving(place, feed, ring):
        as_owner(feed, ring, "desk").tell("strategy-1", needed, secret)
        honest = kept_in(place)
        assert list(honest.values()) == [needed]
        stranger, other = as_owner(feed, ring, "stranger"), as_owner(feed, ring, "other")
        for far in (FAR, last, epoch):
            with pytest.raises(ArchiveError, match="no right to any topic"):
                stranger.tell("strategy-1", {0: Position(far, 0)})
        other.tell(
            "strategy-1", {0: Position(last, COUNT)}, secrets.token_bytes(32)
        )  # another consumer of the same name
        assert kept_in(place).items() > honest.items()
        with pytest.raises(ArchiveError, match="no right to any topic"):
            stranger.tell("strategy-1", {})
        other.tell("strategy-1", {}, secrets.token_bytes(32))  # as its own consumer, which may not exist
        assert kept_in(place).items() >= honest.items()
        assert Deleter(place, feed, Retention(days=1)).look() == []
        as_owner(feed, ring, "desk").tell("strategy-1", {}, secret)
        assert honest.keys().isdisjoint(kept_in(place))
        assert days_of(place) == [*Deleter(place, feed, Retention(days=1)).look(), today]
        assert old not in days_of(place)


def test_junk_names_of_one_owner_exclude_no_other_consumer(
    tmp_path: Path, ring: Keyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blackbox.archive.consumer_positions.MOST_NAMES", 6)
    feed = archived_feed()
    epoch = recorded(tmp_path, feed, COUNT)
    place, junk = tmp_path / feed.name, secrets.token_bytes(32)
    with serving(place, feed, ring), as_owner(feed, ring, "other").kept() as other:
        for number in range(6):
            other.tell(f"junk-{number}", {0: Position(epoch, 1)}, junk)
        with pytest.raises(ArchiveError, match="'one-more' was one too many, expected at most 6 of its"):
            other.tell("one-more", {0: Position(epoch, 1)}, junk)
        other.tell("junk-5", {0: Position(epoch, 2)}, junk)  # existing names can still be moved
        as_owner(feed, ring, "desk").tell("strategy-1", {0: Position(epoch, 7)}, secrets.token_bytes(32))
    assert {0: (epoch, 7)} in kept_in(place).values()
    assert len(kept_in(place)) == 7


def test_a_host_without_keys_adds_a_bounded_number_of_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blackbox.archive.consumer_positions.MOST_NEW_OF_HOST", 4)
    store, at = ConsumerStore(tmp_path / "tape"), {0: Position(1, 1)}
    for number in range(4):
        store.note(Owner.of_secret(b"%d" % number, "10.0.0.5"), "junk", at)
    with pytest.raises(Exception, match=r"at most 4 new from host 10\.0\.0\.5 without a key"):
        store.note(Owner.of_secret(b"one more", "10.0.0.5"), "junk", at)
    store.note(Owner.of_secret(b"honest", "10.0.0.6"), "strategy-1", at)
    store.note(Owner.of_key("desk"), "strategy-1", at)
    store.note(Owner.of_secret(b"0", "10.0.0.5"), "junk", {0: Position(1, 2)})
    assert len(kept_in(tmp_path / "tape")) == 6


def test_consumers_that_have_ended_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that `blackbox positions --forget` has ended."""
    monkeypatch.setattr("blackbox.archive.consumer_positions.MOST_SECRETS", 2)
    monkeypatch.setattr("blackbox.archive.consumer_positions.MOST_NEW_OF_HOST", 2)
    store, at = ConsumerStore(tmp_path / "tape"), {0: Position(1, 1)}
    for number in range(6):
        owner = Owner.of_secret(b"%d" % number, "10.0.0.5")
        store.note(owner, "job", at)
        store.end(owner, "job")
    assert list((tmp_path / "tape" / CONSUMERS).iterdir()) == []
    for number in range(3):
        store.note(Owner.of_secret(b"%d" % number, f"10.0.0.{number}"), "job", at)
        (kept,) = owned_consumers(tmp_path / "tape" / CONSUMERS).values()
        kept.forget()


def test_positions_after_the_end_or_of_unknown_slices_are_rejected(tmp_path: Path) -> None:
    feed = archived_feed(key_bytes=4)
    epoch = recorded(tmp_path, feed, COUNT)
    place, secret = tmp_path / feed.name, secrets.token_bytes(32)
    with serving(place, feed, None):
        client = ArchiveClient(feed, timeout=200)
        wrong: list[tuple[dict[int, Position], str]] = [
            ({0: Position(FAR, 0)}, "beyond"),
            ({0: Position(epoch, COUNT + 1)}, rf"beyond Position\(epoch={epoch}, sequence={COUNT}\), the end"),
            ({0: Position(epoch, FAR)}, "beyond"),
            ({0: Position(epoch + 1, 0)}, "beyond"),
            ({1: Position(epoch, 0)}, "slice was 1, expected one of 0 to 0"),
        ]
        for positions, why in wrong:
            with pytest.raises(ArchiveError, match=why):
                client.tell("strategy-1", positions, secret)
        for name in ("../evil", "a/b", "", "x" * 300):
            with pytest.raises(ArchiveError, match=r"name was|not understood"):
                client.tell(name, {0: Position(epoch, 1)}, secret)
        assert not (place / CONSUMERS).exists()
        client.tell("strategy-1", {0: Position(epoch, COUNT)}, secret)
    assert list(kept_in(place).values()) == [{0: (epoch, COUNT)}]


def test_a_secret_is_made_once_for_a_directory(tmp_path: Path) -> None:
    first = secret_of(tmp_path / "positions")
    assert secret_of(tmp_path / "positions") == first
    assert len(first) == 32
    assert secret_of(tmp_path / "others") != first
    (path,) = (tmp_path / "positions").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_key_without_rights_gets_no_answer(tmp_path: Path, ring: Keyring) -> None:
    feed = archived_feed(key_bytes=4)
    recorded(tmp_path, feed, COUNT)
    allowed = ring.directory / "allowed-by-archive"
    (allowed / "rights.toml").write_text('desk = [""]\nother = ["OTHE"]\nstranger = []\n')
    with serving(tmp_path / feed.name, feed, ring):
        for name in ("desk", "other"):
            assert as_owner(feed, ring, name).about().slices[0].messages == COUNT
        stranger = as_owner(feed, ring, "stranger")
        for ask in (stranger.about, lambda: stranger.image(0, timeout=0.1), lambda: next(stranger.blocks(0))):
            with pytest.raises(ArchiveError, match="no right to any topic"):
                ask()


def test_a_hub_reports_sequences_to_clients_with_a_right_to_some_requested_topics(tmp_path: Path) -> None:
    ring = Keyring(tmp_path / "ring", "hub", "desk", "other", "stranger")
    ring.allow("hub", "desk", "other", "stranger")
    (ring.directory / "allowed-by-hub" / "rights.toml").write_text('desk = [""]\nother = ["OTHE"]\nstranger = []\n')
    feed = hub_feed(slices=1, key_bytes=4)
    with Hub(ring.feed(feed, "hub"), tmp_path / "days"):

        def client(name: str) -> HubClient:
            return HubClient(ring.feed(feed, name, "hub"), name, directory=tmp_path / name)

        with client("desk") as desk, client("other") as other, client("stranger") as stranger:
            for topic in (b"OTHE.x", b"MINE.x"):
                desk.put(topic, b"1")
            assert desk._ask(10, b"").following == [2]
            assert other._ask(10, b"").following == [2]
            assert other._ask(10, b"MINE").following == []
            assert stranger._ask(10, b"").following == []
            with pytest.raises(RightsError, match="no right to topics of prefix b'MINE'"):
                other.subscribe(b"MINE")
