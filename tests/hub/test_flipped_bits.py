"""One flipped bit in a file of a hub, or other damage: all acknowledged puts are served, or the hub does not start."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pytest

from blackbox import Feed, Hub, HubClient
from blackbox.archive.files.day import recorded_days
from blackbox.archive.files.format import FILE_HEAD_BYTES
from blackbox.errors import BlackBoxError, DamagedError
from blackbox.services.hub.pair.paired_hub import PairServer
from blackbox.testing import wait_until
from tests.archive.test_retention import move_today
from tests.examples import examples
from tests.hub.flips import WAYS, Left, Links, check_pair, leave_pair, try_flip
from tests.hub.hubs import hub_feed, leave, published, reboot
from tests.hub.pairs import ROLES


@pytest.fixture(scope="module", params=WAYS)
def left(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Left:
    return WAYS[request.param](tmp_path_factory.mktemp("flips"))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Left:
    return leave_pair(tmp_path_factory.mktemp("pair"))


@pytest.mark.parametrize("seed", range(examples(16)))
def test_a_flipped_bit_causes_no_silent_loss(tmp_path: Path, left: Left, seed: int) -> None:
    try_flip(left, tmp_path / "tried", Random(seed))


def damage(directory: Path, payload: bytes) -> Path:
    """Flip a bit of a message; return its day."""
    (path,) = [path for path in directory.rglob("*.journal") if payload in path.read_bytes()]
    data = bytearray(path.read_bytes())
    data[data.index(payload)] ^= 1
    path.write_bytes(data)
    return path.parents[1]


def damaged(pair: Left, tmp_path: Path, *roles: str) -> Path:
    """Return a copy of a pair in which a message of today is damaged at these hubs."""
    shutil.copytree(pair.place, tmp_path / "pair")
    for role in roles:
        damage(tmp_path / "pair" / role, b"payload 12")
    return tmp_path / "pair"


@pytest.mark.parametrize("role", ROLES)
def test_a_damaged_hub_of_a_pair_fetches_the_day_from_its_peer(tmp_path: Path, pair: Left, role: str) -> None:
    shutil.copytree(pair.place, tmp_path / "pair")
    days = tmp_path / "pair" / role / pair.feed.name
    before, today = recorded_days(days)
    untouched = [path.stat().st_ino for path in sorted(before.rglob("*.journal"))]
    assert damage(days, b"payload 12") == today
    damaged = {path.relative_to(today): path.read_bytes() for path in today.rglob("*") if path.is_file()}
    check_pair(pair, tmp_path / "pair")
    assert [path.stat().st_ino for path in sorted(before.rglob("*.journal"))] == untouched
    (aside,) = (days / "damaged").iterdir()
    assert {path.relative_to(aside): path.read_bytes() for path in aside.rglob("*") if path.is_file()} == damaged


def test_two_damaged_hubs_do_not_start_and_name_the_loss(tmp_path: Path, pair: Left) -> None:
    links = Links(pair.feed, damaged(pair, tmp_path, *ROLES))
    links.wait()
    links.close()
    assert links.errors
    for role, said in links.errors.items():
        assert f"{role}/flips/" in said
        assert "it is not what was written" in said
        assert "are lost here; the other hub has turns up to" in said


def test_a_damaged_hub_serves_nothing_until_its_peer_is_connected(tmp_path: Path, pair: Left) -> None:
    place = damaged(pair, tmp_path, "primary")
    for _ in range(2):  # also at another start
        links = Links(pair.feed, place)
        links.start("primary")
        hub = links.hubs["primary"]
        server = hub.server
        assert isinstance(server, PairServer)
        assert server.machine is not None
        assert server.machine.state.kept.damaged
        assert server.store.outbox.archive_statistics is None
        links.close()
        assert not links.errors
    check_pair(pair, place)


def test_a_damaged_hub_does_not_start_alone(tmp_path: Path, pair: Left) -> None:
    links = Links(pair.feed, damaged(pair, tmp_path, "primary"), alone=True)
    links.start("primary")
    assert "it is not what was written" in links.errors["primary"]


def test_a_damaged_record_of_the_active_hub_is_not_sent_to_its_peer(tmp_path: Path, pair: Left) -> None:
    shutil.copytree(pair.place / "primary", tmp_path / "pair" / "primary")
    links = Links(pair.feed, tmp_path / "pair", alone=True)
    links.start("primary")
    wait_until(lambda: links.lives() == {"primary": "active"})
    damage(tmp_path / "pair" / "primary", b"payload 12")
    links.alone = False
    links.wait("backup")
    links.close()
    assert "cannot get the turns that it lacks" in links.errors["backup"]
    assert all(each in pair.synced[:12] for each in published(tmp_path / "pair" / "backup", pair.feed))


def left_without_power(tmp_path: Path, feed: Feed) -> Path:
    """Return the journal of a hub that lost power after one synced put and two others."""
    with Hub(feed, tmp_path / "hub", fsync_interval=1_000.0):
        with HubClient(feed, "desk", acknowledged="synced") as client:
            client.put(b"A.x", b"synced")
        with HubClient(feed, "desk") as client:
            for payload in (b"first", b"second"):
                client.put(b"A.x", payload)
        left = leave(tmp_path / "hub", tmp_path / "left", {})
    reboot(left)
    (journal,) = left.glob("*/*/slice-00000/000000.journal")
    return journal


@pytest.mark.parametrize(("lost", "kept"), [(b"first", 1), (b"second", 2)])
def test_after_a_power_cut_a_hub_continues_before_an_unwritten_page(
    tmp_path: Path, feed: Feed, lost: bytes, kept: int
) -> None:
    journal = left_without_power(tmp_path, feed)
    data = journal.read_bytes()
    at = data.index(lost)
    journal.write_bytes(data[:at] + bytes(len(lost)) + data[at + len(lost) :])
    with Hub(feed, tmp_path / "left"), HubClient(feed, "another") as client:
        client.put(b"A.x", b"third")
    payloads = [each[-1] for each in published(tmp_path / "left", feed)]
    assert payloads == [*(b"synced", b"first")[:kept], b"third"]


def test_a_hub_that_syncs_each_block_starts_after_a_power_cut(tmp_path: Path, feed: Feed) -> None:
    with Hub(feed, tmp_path / "hub", fsync="block"), HubClient(feed, "desk") as client:
        client.put(b"A.x", b"first")
        left = leave(tmp_path / "hub", tmp_path / "left", {})
    reboot(left)
    (journal,) = left.glob("*/*/slice-00000/000000.journal")
    with journal.open("ab") as file:
        file.write(bytes(4_096))  # the disk has the size with the next record, but not the record
    with Hub(feed, left, fsync="block"), HubClient(feed, "another") as client:
        client.put(b"A.x", b"second")
    assert [each[-1] for each in published(left, feed)] == [b"first", b"second"]


def test_damage_in_an_old_day_does_not_keep_a_hub_with_keys_from_starting_after_a_power_cut(tmp_path: Path) -> None:
    feed = hub_feed(slices=1, key_bytes=1)
    for ago in (4, 3, 2):
        with Hub(feed, tmp_path), HubClient(feed, "desk") as client:
            client.put(b"A.x", b"%d" % ago)
        move_today(tmp_path, feed, ago)
    index = min(tmp_path.glob("*/*/slice-00000/*.index"))
    data = bytearray(index.read_bytes())
    data[-1] ^= 1
    index.write_bytes(data)
    reboot(tmp_path)
    with Hub(feed, tmp_path), HubClient(feed, "desk") as client:
        assert client.put(b"A.x", b"new").sequence == 0


def test_a_flipped_bit_in_synced_bytes_is_no_torn_end_after_a_power_cut(tmp_path: Path, feed: Feed) -> None:
    journal = left_without_power(tmp_path, feed)
    damage(tmp_path / "left", b"synced")
    with pytest.raises(BlackBoxError, match="bytes that were on the disk cannot be read"):
        Hub(feed, tmp_path / "left").start()
    assert journal.stat().st_size > FILE_HEAD_BYTES


def test_a_record_damaged_before_the_last_start_prevents_a_start(tmp_path: Path, feed: Feed) -> None:
    for payload in (b"first", b"second"):
        with Hub(feed, tmp_path), HubClient(feed) as client:
            client.put(b"A.x", payload)
    damage(tmp_path, b"first")
    with pytest.raises(DamagedError, match=r"slice-00000/000000\.journal: it is not what was written .* bytes at"):
        Hub(feed, tmp_path).start()
