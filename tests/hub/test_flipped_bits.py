"""One flipped bit in any file of a hub: the next one has all that was answered, or says that it has not."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from blackbox import Hub, Recording
from blackbox.errors import BlackBoxError
from blackbox.hub.protocol import Stored, unpack_places
from tests.examples import examples
from tests.hub.hubs import hub_feed, leave, published
from tests.hub.test_put import Peer

FEED = hub_feed(slices=1)
COUNT = 6


@pytest.fixture(scope="module", params=["killed", "closed"])
def left(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a hub that has answered puts, each with an id."""
    place: Path = tmp_path_factory.mktemp("hub")
    with Hub(FEED, place / "hub"), Peer(FEED) as peer:
        peer.hello()
        for number in range(1, COUNT + 1):
            assert isinstance(peer.ask(peer.puts(number, b"%d" % number, ids=[b"id-%d" % number])), Stored)
        killed = leave(place / "hub", place / "killed", {})
    return killed if request.param == "killed" else place / "hub"


def flip(place: Path, chance: random.Random) -> str:
    """Flip a bit of a file; return where."""
    path = chance.choice(sorted(each for each in place.rglob("*") if each.is_file() and each.stat().st_size))
    data = bytearray(path.read_bytes())
    at = chance.randrange(len(data))
    data[at] ^= 1 << chance.randrange(8)
    path.write_bytes(data)
    return f"{path.name} at {at} of {len(data)}"


@pytest.mark.parametrize("seed", range(examples(16)))
def test_a_flipped_bit_loses_nothing_in_silence(tmp_path: Path, left: Path, seed: int) -> None:
    place = tmp_path / "hub"
    shutil.copytree(left, place)
    where = flip(place, random.Random(seed))
    assert check(place) in ("all is there", "it says so"), where


def check(place: Path) -> str:
    try:
        with Hub(FEED, place), Peer(FEED, session=2, replaces=1) as peer:
            assert peer.hello().last == COUNT
            for number in range(1, COUNT + 1):
                again = peer.ask(peer.puts(COUNT + number, b"%d" % number, ids=[b"id-%d" % number]))
                assert not unpack_places(again.places)["is_new"].any()
    except BlackBoxError:
        return "it says so"
    if any(Recording.open(day.parent).verify() for day in place.glob("*/*/manifest.json")):
        return "it says so"
    assert [payload for *_, payload in published(place, FEED)] == [b"%d" % number for number in range(1, COUNT + 1)]
    return "all is there"


def test_a_flipped_bit_in_what_was_synced_is_no_torn_end_after_a_power_cut(tmp_path: Path) -> None:
    with Hub(FEED, tmp_path / "hub"), Peer(FEED) as peer:
        peer.hello()
        peer.ask(peer.puts(1, b"synced", synced=True))
        killed = leave(tmp_path / "hub", tmp_path / "killed", {})
    (journal,) = killed.glob("*/*/slice-00000/000000.journal")
    data = bytearray(journal.read_bytes())
    data[data.rindex(b"BREC") + 5] ^= 1
    journal.write_bytes(data)
    journal.with_suffix(".index").unlink()
    (killed / FEED.name / "boot").write_text("an earlier start of the system")
    with pytest.raises(BlackBoxError, match="bytes that were on the disk cannot be read"):
        Hub(FEED, killed).start()
