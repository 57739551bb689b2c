"""Consumers of an archive belong to a key or a secret: other processes cannot move or displace them."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from blackbox import Feed, Hub, HubClient
from blackbox.archive.consumer_positions import owned_consumers, secret_of
from blackbox.archive.consumer_store import CONSUMERS, MOST_NAMES, MOST_NEW_OF_HOST, ConsumerStore, Owner
from blackbox.archive.retention import Deleter, Retention
from blackbox.archive.serve.client import ArchiveClient
from blackbox.archive.serve.server import ArchiveServer
from blackbox.block.position import Position
from blackbox.errors import ArchiveError, RightsError
from tests.archive.archives import archived_feed, recorded
from tests.archive.test_retention import COUNT, aged, days_of
from tests.hub.hubs import hub_feed
from tests.keyring import Keyring

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
    return ArchiveClient(feed if ring is None else ring.feed(feed, name, archives=("archive",)))


def kept_in(place: Path) -> dict[str, dict[int, Position]]:
    found = {name: file.read() for name, file in owned_consumers(place / CONSUMERS).items()}
    return {name: kept.slices for name, kept in found.items() if kept is not None}


@pytest.mark.parametrize("with_keys", [False, True])
def test_a_forged_request_deletes_no_other_history(tmp_path: Path, ring: Keyring, with_keys: bool) -> None:
    feed, used = archived_feed(), ring if with_keys else None
    (old, epoch), _, (today, last) = (aged(tmp_path, feed, ago) for ago in (5, 4, 0))
    place = tmp_path / feed.name
    secret = secret_of(tmp_path / "positions")
    needed: dict[int, Position] = {0: Position(epoch, 500)}
    with serving(place, feed, used):
        as_owner(feed, used, "desk").tell("strategy-1", needed, secret)
        honest = kept_in(place)
        assert list(honest.values()) == [needed]
        stranger, other = as_owner(feed, used, "stranger"), as_owner(feed, used, "other")
        for far in (FAR, last, epoch):
            with pytest.raises(
                ArchiveError, match="no right to any topic" if with_keys else "without a key and with a"
            ):
                stranger.tell("strategy-1", {0: Position(far, 0)})
        other.tell(
            "strategy-1", {0: Position(last, COUNT)}, secrets.token_bytes(32)
        )  # another consumer of the same name
        assert kept_in(place).items() > honest.items()
        with pytest.raises(ArchiveError, match="no right to any topic" if with_keys else "without a key and with a"):
            stranger.tell("strategy-1", {})
        other.tell("strategy-1", {}, secrets.token_bytes(32))  # as its own consumer, which may not exist
        assert kept_in(place).items() >= honest.items()
        assert Deleter(place, feed, Retention(days=1)).look() == []
        as_owner(feed, used, "desk").tell("strategy-1", {}, secret)
        assert honest.keys().isdisjoint(kept_in(place))
        assert days_of(place) == [*Deleter(place, feed, Retention(days=1)).look(), today]
        assert old not in days_of(place)


@pytest.mark.parametrize("with_keys", [False, True])
def test_junk_names_of_one_owner_exclude_no_other_consumer(tmp_path: Path, ring: Keyring, with_keys: bool) -> None:
    feed, used = archived_feed(), ring if with_keys else None
    epoch = recorded(tmp_path, feed, COUNT)
    place, junk = tmp_path / feed.name, secrets.token_bytes(32)
    with serving(place, feed, used), as_owner(feed, used, "other").kept() as other:
        for number in range(MOST_NAMES):
            other.tell(f"junk-{number}", {0: Position(epoch, 1)}, junk)
        with pytest.raises(ArchiveError, match=rf"'one-more' was one too many, expected at most {MOST_NAMES} of its"):
            other.tell("one-more", {0: Position(epoch, 1)}, junk)
        other.tell("junk-5", {0: Position(epoch, 2)}, junk)  # existing names can still be moved
        as_owner(feed, used, "desk").tell("strategy-1", {0: Position(epoch, 7)}, secrets.token_bytes(32))
    assert {0: (epoch, 7)} in kept_in(place).values()
    assert len(kept_in(place)) == MOST_NAMES + 1


def test_a_host_without_keys_adds_a_bounded_number_of_names(tmp_path: Path) -> None:
    store, at = ConsumerStore(tmp_path / "tape"), {0: Position(1, 1)}
    for number in range(MOST_NEW_OF_HOST):
        store.note(Owner.of_secret(b"%d" % number, "10.0.0.5"), "junk", at)
    with pytest.raises(Exception, match=r"at most 256 new from host 10\.0\.0\.5 without a key"):
        store.note(Owner.of_secret(b"one more", "10.0.0.5"), "junk", at)
    store.note(Owner.of_secret(b"honest", "10.0.0.6"), "strategy-1", at)
    store.note(Owner.of_key("desk"), "strategy-1", at)
    store.note(Owner.of_secret(b"0", "10.0.0.5"), "junk", {0: Position(1, 2)})
    assert len(kept_in(tmp_path / "tape")) == MOST_NEW_OF_HOST + 2


@pytest.mark.parametrize("key_bytes", [0, 4])
def test_positions_after_the_end_or_of_unknown_slices_are_rejected(tmp_path: Path, key_bytes: int) -> None:
    feed = archived_feed(key_bytes=key_bytes)
    epoch = recorded(tmp_path, feed, COUNT)
    place, secret = tmp_path / feed.name, secrets.token_bytes(32)
    with serving(place, feed, None):
        client = ArchiveClient(feed)
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
