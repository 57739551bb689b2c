"""One flipped bit in any file of a hub or pair: the next hub has all acknowledged puts, or ends with an error.

The model is a list: topic, payload and place of each put that was acknowledged as synced.
"""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import msgspec

from blackbox import Feed, Hub, HubClient
from blackbox.archive.files.day import Manifest, recorded_days
from blackbox.errors import BlackBoxError, HubError
from blackbox.feed.endpoint import free_endpoints
from blackbox.services.hub.pair.paired_hub import PairedHub
from blackbox.testing import wait_until
from tests.hub.hubs import hub_feed, leave, published, reboot
from tests.hub.pairs import ROLES, hub_of, pair_feed

Message = tuple[int, int, int, bytes, bytes | None]
"""A message as `published` returns it."""
PUTS: Final = 8
"""Puts on each day."""
SAME: Final = "all is there"
REFUSED: Final = "it ended with an error"
REPAIRED: Final = "the peer had it"
PATIENCE_S: Final = 60.0


class Left(NamedTuple):
    """Directories of hubs that have ended, and the puts that they acknowledged."""

    feed: Feed
    place: Path
    synced: list[Message]
    unsynced: list[Message]
    """Puts after those in `synced`, in order; a power cut may have lost them."""
    is_pair: bool = False
    has_lost_power: bool = False


class Links:
    """Two hubs of a pair, in this process."""

    def __init__(self, feed: Feed, place: Path, *, alone: bool = False) -> None:
        self._feed, self._place, self.alone = feed, place, alone
        (self._links,) = free_endpoints("tcp", "flips", 1, 2)
        self.hubs: dict[str, PairedHub] = {}
        self.errors: dict[str, str] = {}

    def start(self, role: str) -> None:
        hub = hub_of(self._feed, self._place, self._links, role, alone=self.alone, fsync_interval=1_000.0)
        try:
            self.hubs[role] = hub.start()
        except BlackBoxError as error:
            self.errors[role] = str(error)

    def lives(self) -> dict[str, str]:
        return {role: "ended" if hub._over.is_set() else hub.statistics().life for role, hub in self.hubs.items()}

    def wait(self, *roles: str) -> None:
        """Start both hubs, or the given ones, and wait until they are in step or one has ended."""
        for role in roles or ROLES:
            self.start(role)
        ends = ["active", "armed"]
        wait_until(
            lambda: len(self.hubs) < 2 or "ended" in self.lives().values() or sorted(self.lives().values()) == ends,
            PATIENCE_S,
            "both are in step, or one has ended",
        )

    def close(self) -> None:
        for role, hub in self.hubs.items():
            try:
                hub.close()
            except HubError as error:
                self.errors[role] = str(error)
        self.hubs.clear()


def leave_hub(place: Path) -> Left:
    """Run a hub on two simulated days; return its directory as a kill would leave it."""
    feed = hub_feed("flips")
    with Hub(feed, place / "run", fsync_interval=1_000.0), HubClient(feed, "desk", acknowledged="synced") as client:
        _put(client, 0)
    _make_yesterday(place / "run", feed)
    with Hub(feed, place / "run", fsync_interval=1_000.0):
        with HubClient(feed, "desk", acknowledged="synced") as client:
            _put(client, PUTS)
        synced = len(published(place / "run", feed))
        with HubClient(feed, "desk") as client:
            _put(client, 2 * PUTS)
        leave(place / "run", place / "left", {})
    return _left(feed, place / "left", place / "left", synced)


def leave_pair(place: Path) -> Left:
    """Do the same as `leave_hub` with two hubs."""
    feed = pair_feed("flips")
    links = Links(feed, place / "run")
    links.wait()
    with HubClient(feed, "desk", acknowledged="synced") as client:
        _put(client, 0)
    links.close()
    for role in ROLES:
        _make_yesterday(place / "run" / role, feed)
    links.wait()
    with HubClient(feed, "desk", acknowledged="synced") as client:
        _put(client, PUTS)
    leave(place / "run", place / "left", {})
    links.close()
    return _left(feed, place / "left", place / "left" / ROLES[0], 2 * PUTS)._replace(is_pair=True)


def _put(client: HubClient, first: int) -> None:
    for number in range(first, first + PUTS):
        client.put(b"%d" % (number % 5), b"payload %d" % number, b"id-%d" % number, timeout=PATIENCE_S)


def _make_yesterday(directory: Path, feed: Feed) -> None:
    """Change the date of today's recording to the day before."""
    (day,) = recorded_days(directory / feed.name)
    manifest = Manifest.read(day)
    before = manifest.date - datetime.timedelta(1)
    msgspec.structs.replace(manifest, date=before).write(day)
    day.rename(day.with_name(before.isoformat()))


def _left(feed: Feed, place: Path, directory: Path, synced: int) -> Left:
    in_order = sorted(published(directory, feed), key=lambda each: int((each[-1] or b"").split()[-1]))
    assert len(in_order) >= synced
    return Left(feed, place, in_order[:synced], in_order[synced:])


def close_hub(left: Left, place: Path) -> Left:
    """Return a copy whose hub was started and closed."""
    shutil.copytree(left.place, place)
    with Hub(left.feed, place):
        pass
    return left._replace(place=place)


def close_pair(left: Left, place: Path) -> Left:
    """Return a copy whose pair was started and closed."""
    shutil.copytree(left.place, place)
    links = Links(left.feed, place)
    links.wait()
    links.close()
    return left._replace(place=place)


def unpowered(left: Left, place: Path) -> Left:
    """Return a copy whose hosts have lost power."""
    shutil.copytree(left.place, place)
    reboot(place)
    return left._replace(place=place, has_lost_power=True)


WAYS: Final[dict[str, Callable[[Path], Left]]] = {
    "killed hub": leave_hub,
    "closed hub": lambda place: close_hub(leave_hub(place), place / "closed"),
    "hub without power": lambda place: unpowered(leave_hub(place), place / "unpowered"),
    "killed pair": leave_pair,
    "closed pair": lambda place: close_pair(leave_pair(place), place / "closed"),
    "pair without power": lambda place: unpowered(leave_pair(place), place / "unpowered"),
}


def try_flip(left: Left, place: Path, chance: Random) -> tuple[str, str]:
    """Flip a bit in a copy and start the hubs; return the outcome and the position of the bit."""
    shutil.copytree(left.place, place)
    where = flip(place, chance)
    try:
        said = check_pair(left, place) if left.is_pair else check_hub(left, place)
    except AssertionError as error:
        raise AssertionError(f"{where}: {error}") from error
    return said, where


def flip(directory: Path, chance: Random) -> str:
    """Flip a bit of a random file; return its position."""
    path = chance.choice(sorted(each for each in directory.rglob("*") if each.is_file() and each.stat().st_size))
    data = bytearray(path.read_bytes())
    at = chance.randrange(len(data))
    data[at] ^= 1 << chance.randrange(8)
    path.write_bytes(data)
    return f"{path.relative_to(directory)} at {at} of {len(data)}"


def check_hub(left: Left, place: Path) -> str:
    """Start a hub with a damaged file and return the outcome; fail if it is wrong."""
    try:
        with Hub(left.feed, place), HubClient(left.feed, "other") as client:
            _check_ids(client, left)
    except BlackBoxError:
        return REFUSED
    served = published(place, left.feed)
    again = [each for each in served if each not in left.synced + left.unsynced]
    assert not again, "messages that were not put"
    lost = [each for each in left.synced + left.unsynced if each not in served]
    assert not lost or (left.has_lost_power and lost == left.unsynced[-len(lost) :]), f"{len(lost)} messages are lost"
    return SAME


def _check_ids(client: HubClient, left: Left) -> None:
    """Repeat puts with their ids and check that each has the place of its first answer."""
    for epoch, slice_id, sequence, topic, payload in left.synced:
        number = int((payload or b"").split()[-1])
        place = client.put(topic, payload, b"id-%d" % number, timeout=PATIENCE_S)
        assert (place.epoch, place.slice_id, place.sequence) == (epoch, slice_id, sequence), "a put is stored twice"


def check_pair(left: Left, place: Path) -> str:
    """Start two hubs, one with a damaged file, and return the outcome; fail if it is wrong."""
    links = Links(left.feed, place)
    with ExitStack() as stack:
        stack.callback(links.close)
        links.wait()
        if len(links.hubs) == 2 and "ended" not in links.lives().values():
            client = stack.enter_context(HubClient(left.feed, "other"))
            _check_ids(client, left)
    said, whole = [SAME], 0
    for role in ROLES:
        if role in links.errors:
            said.append(REFUSED)
            continue
        served, whole = published(place / role, left.feed), whole + 1
        assert served == sorted(left.synced), f"the {role} has {len(served)} messages, expected {len(left.synced)}"
        if any((place / role).glob("*/damaged/*")):
            said.append(REPAIRED)
    assert whole, "both are damaged"
    return said[-1]
