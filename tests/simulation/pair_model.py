"""What clients of a pair may see: a register per topic, and a list of puts whose places are their order."""

from __future__ import annotations

from collections import defaultdict
from random import Random
from typing import TYPE_CHECKING

from blackbox.hub.protocol import ANYWHERE, CONFLICT, PlaceRow
from blackbox.hub.revisions import NO_VALUE, Revision
from tests.simulation.model import ModelError
from tests.simulation.pair_disk import Disk, SimBlock

if TYPE_CHECKING:
    from blackbox.hub.pair import Kept
    from tests.simulation.pair_client import Row, Sent, SimClient

_Place = tuple[int, int, int]


class PairModel:
    """Checks each answer when it comes, and all of them at the end."""

    def __init__(self, slices: int) -> None:
        self._published: dict[_Place, tuple[bytes, bytes | None]] = {}
        self._places: dict[bytes, set[_Place]] = defaultdict(set)
        """By payload, where it was published."""
        self._sent: list[Sent] = []
        self._ids: dict[bytes, tuple[float, _Place]] = {}
        self._acknowledged: list[list[Revision]] = [[NO_VALUE] for _ in range(slices)]
        """By slice, the newest acknowledged place; it only grows."""
        self._lasts: dict[int, int] = defaultdict(int)
        self._newest: dict[bytes, Revision] = {}
        """By topic, the newest acknowledged place."""
        self._payloads = 0
        self.power_cuts: list[float] = []
        """Times at which a host lost power: puts that were acknowledged before, and not as synced, may be lost."""

    def check(self, is_so: bool, what: str) -> None:
        if not is_so:
            raise ModelError(what)

    def new_payload(self) -> bytes:
        self._payloads += 1
        return b"%d" % self._payloads

    def guess(self, topic: bytes, random: Random) -> Revision:
        """Return a condition that may hold."""
        return random.choice([self._newest.get(topic, NO_VALUE), self._newest.get(topic, NO_VALUE), NO_VALUE])

    def newest_known(self) -> list[Revision]:
        return [each[-1] for each in self._acknowledged]

    def last_known(self, client: int) -> int:
        return self._lasts[client]

    @property
    def _has_lost(self) -> bool:
        return bool(self.power_cuts)

    # While it runs.

    def published(self, slice_id: int, block: SimBlock) -> None:
        """Note a block that a hub sends to its subscribers."""
        for offset, (topic, payload) in enumerate(block.messages):
            place = slice_id, block.epoch, block.sequence + offset
            known = self._published.setdefault(place, (topic, payload))
            self.check(known == (topic, payload), f"two messages have the place {place}: {known}, {(topic, payload)}")
            if payload is not None:
                self._places[payload].add(place)
                is_once = len(self._places[payload]) == 1 or self._has_lost
                self.check(is_once, f"{payload!r} has two places: {self._places[payload]}")

    def begun(self, sent: Sent) -> None:
        sent.known = self.newest_known(), dict(self._newest)
        self._sent.append(sent)

    def answered(self, sent: Sent, why: str) -> None:
        """Check an answer against what was known when the request was sent first."""
        (now, places), (_, before) = sent.answers[-1], sent.answers[0]
        same = [each[:1] + each[2:] for each in places] == [each[:1] + each[2:] for each in before]
        is_excused = self._may_be_lost(sent, sent.answers[0][0]) and len(sent.answers) > 1
        self.check(same or is_excused, f"put {sent.put.first} of {sent.client} was answered {before}, then {places}")
        if not same:
            sent.answers = sent.answers[-1:]
        elif len(sent.answers) > 1:
            return
        self._lasts[sent.client] = max(self._lasts[sent.client], sent.put.first + len(sent.rows) - 1)
        newest, topics = sent.known
        for row, place in zip(sent.rows, places, strict=True):
            self._answered_row(sent, row, place, newest, topics, why)
        for row, (slice_id, is_new, is_refused, epoch, sequence) in zip(sent.rows, places, strict=True):
            if is_refused:
                continue
            revision = epoch, sequence
            if is_new:
                known = self._acknowledged[slice_id]
                known[0] = max(known[0], revision)
                self._newest[row.topic] = max(self._newest.get(row.topic, NO_VALUE), revision)
            if row.id:
                self._ids.setdefault(row.id, (now, (slice_id, epoch, sequence)))

    def _answered_row(
        self, sent: Sent, row: Row, answer: PlaceRow, newest: list[Revision], topics: dict[bytes, Revision], why: str
    ) -> None:
        slice_id, is_new, is_refused, epoch, sequence = answer
        revision, name = (epoch, sequence), f"put {sent.put.first} of {sent.client} ({row})"
        if is_refused == CONFLICT:
            self.check(row.if_at not in (ANYWHERE, revision), f"{name} conflicts with its own condition")
            known = topics.get(row.topic, NO_VALUE)
            if revision == NO_VALUE:
                known = NO_VALUE if self._may_be_deleted(row.topic, known) else known
            self.check(revision >= known, f"{name} was told {revision} after {known} was acknowledged")
            found = self._published.get((slice_id, *revision))
            self.check(revision == NO_VALUE or (found is not None and found[0] == row.topic), f"{name}: {revision}")
            return
        self.check(not is_refused, f"{name} was refused: {why}")
        message = self._published.get((slice_id, epoch, sequence))
        if not is_new:
            is_known = message is not None and (bool(row.id) or message == (row.topic, row.payload))
            self.check(is_known, f"{name} was known at {revision}, which has {message}")
            if not row.id:
                return
            known_id = self._ids.get(row.id)
            is_same = known_id is None or known_id[1] == (slice_id, *revision) or self._has_lost
            self.check(is_same, f"{name} was answered {revision}, its id is at {known_id}")
            return
        self.check(message == (row.topic, row.payload), f"{name} was served {message} at {revision}")
        self.check(revision > newest[slice_id], f"{name} went to {revision}, before {newest[slice_id]}")
        if row.id and (known_id := self._ids.get(row.id)) is not None and not self._has_lost:
            self.check(known_id[0] > sent.began, f"{name} was stored twice: at {known_id[1]}, {revision}")

    def _may_be_deleted(self, topic: bytes, since: Revision) -> bool:
        return any(message == (topic, None) and place[1:] >= since for place, message in self._published.items())

    def read(self, epoch: int, following: list[int], newest: list[Revision]) -> None:
        """Check what a client is told of the next sequences; `newest`: what was acknowledged when it asked."""
        for slice_id, (known, sequence) in enumerate(zip(newest, following, strict=True)):
            is_new = (epoch, sequence) > known
            self.check(is_new, f"a client was told of {(epoch, sequence)} of slice {slice_id}, after {known}")

    def lost(self, client: SimClient, expected: int, why: str = "") -> None:
        """Check that a hub may have forgotten puts of a client; that begins anew."""
        self.check(self._has_lost, f"a hub expects put {expected} of {client.name}, which was acknowledged: {why}")
        self._lasts[client.number] = 0
        client.begin()

    def _may_be_lost(self, sent: Sent, answered: float) -> bool:
        """Return True if a put that was acknowledged at a time may be gone."""
        return not sent.put.synced and any(answered <= each for each in self.power_cuts)

    # At the end.

    def end(self, disks: list[Disk], kept: list[Kept]) -> None:
        """Check what two hubs have that are in step."""
        one, other = (dict(disk.messages()) for disk in disks)
        deleted = disks[0].deleted | disks[1].deleted
        for place in (one.keys() ^ other.keys()) - deleted:
            raise ModelError(f"only one hub has {place}: {one.get(place) or other.get(place)} ({kept})")
        for place in one.keys() & other.keys():
            self.check(one[place] == other[place], f"the hubs have two messages at {place}")
        for disk in disks:
            self.check(len(disk.messages()) == len(dict(disk.messages())), "a hub has a message twice")
        payloads = [payload for _, payload in one.values() if payload is not None]
        self.check(len(payloads) == len(set(payloads)), "a put has two places")
        for sent in self._sent:
            if sent.answers and not self._may_be_lost(sent, sent.answers[0][0]):
                for row, (slice_id, is_new, is_refused, epoch, sequence) in zip(
                    sent.rows, sent.answers[-1][1], strict=True
                ):
                    at = slice_id, epoch, sequence
                    if is_new and not is_refused and at not in deleted:
                        is_there = one.get(at) == (row.topic, row.payload)
                        self.check(is_there, f"put {sent.put.first} of {sent.client} ({row}) is lost: it was at {at}")
        if not deleted:
            self._check_conditions(one)

    def _check_conditions(self, messages: dict[_Place, tuple[bytes, bytes | None]]) -> None:
        """Check that each conditional put follows the message that it expected."""
        by_topic: dict[bytes, list[tuple[Revision, bytes | None]]] = defaultdict(list)
        for place, (topic, payload) in sorted(messages.items()):
            by_topic[topic].append((place[1:], payload))
        before: dict[tuple[bytes, Revision], Revision] = {}
        for topic, revisions in by_topic.items():
            last = NO_VALUE
            for revision, payload in revisions:
                before[topic, revision] = last
                last = NO_VALUE if payload is None else revision
        for sent in self._sent:
            if not sent.answers:
                continue
            for row, (_, is_new, is_refused, *revision_of) in zip(sent.rows, sent.answers[-1][1], strict=True):
                revision = revision_of[0], revision_of[1]
                if is_new and not is_refused and row.if_at != ANYWHERE and (row.topic, revision) in before:
                    last = before[row.topic, revision]
                    self.check(last == row.if_at, f"put {sent.put.first} of {sent.client} ({row}) follows {last}")
