"""The model of a pair: one register for each topic, and a list of puts in the order of their places."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from blackbox.services.hub.protocol import ANYWHERE, CONFLICT, PlaceRow, unpack_places
from blackbox.services.hub.server.notes import JUDGED
from blackbox.services.hub.server.revisions import NO_VALUE, Revision
from tests.simulation.model import ModelError
from tests.simulation.pair_disk import Disk, SimBlock, SimHistory

if TYPE_CHECKING:
    from blackbox import Feed
    from blackbox.services.hub.pair.protocol import Kept
    from tests.simulation.pair_client import Row, Sent, SimClient

_Place = tuple[int, int, int]


class Known(NamedTuple):
    """Newest acknowledged places, by slice and by topic."""

    slices: list[Revision]
    topics: dict[bytes, Revision]

    def copy(self) -> Known:
        return Known(list(self.slices), dict(self.topics))


class PairModel:
    """Checks each answer on arrival, and all of them at the end."""

    def __init__(self, feed: Feed, now: Callable[[], float]) -> None:
        self._now, self._slice_of = now, feed.slice_of
        slices = len(feed.slices)
        self.disks: list[Disk] = []
        self._published: dict[_Place, tuple[bytes, bytes | None]] = {}
        self._places: dict[tuple[bytes, bytes], set[_Place]] = defaultdict(set)
        """Places of publication, by topic and payload."""
        self._topics: dict[bytes, set[bytes]] = {}
        """Topics of each message with several, by payload."""
        self._sent: list[Sent] = []
        self._ttl_ns: dict[bytes, int] = {}
        """By payload."""
        self._ids: dict[bytes, tuple[float, _Place]] = {}
        self._known, self._synced = Known([NO_VALUE] * slices, {}), Known([NO_VALUE] * slices, {})
        """Places of all acknowledged puts, and of puts that were acknowledged as synced."""
        self._lasts: dict[int, int] = defaultdict(int)
        self._payloads = 0
        self.has_cut = False
        """True if a host has lost power: part of a turn that was published may be gone."""
        self._power_cuts: list[float] = []
        """Times at which a power cut lost turns: puts that were acknowledged before, and not as synced, may be lost."""

    def check(self, is_so: bool, what: str) -> None:
        if not is_so:
            raise ModelError(what)

    def new_payload(self) -> bytes:
        self._payloads += 1
        return b"%d" % self._payloads

    def guess(self, topic: bytes, random: Random) -> Revision:
        """Return a condition that may hold."""
        newest = self._known.topics.get(topic, NO_VALUE)
        return random.choice([newest, newest, NO_VALUE])

    def known(self) -> tuple[float, Known, Known]:
        return self._now(), self._known.copy(), self._synced.copy()

    def lose_turns(self) -> None:
        """Note that a host has lost power and turns: those of a hub that was alone, or that only it had."""
        self._power_cuts.append(self._now())
        self._known = self._synced.copy()

    def _still_known(self, known: tuple[float, Known, Known]) -> Known:
        since, recorded, synced = known
        return synced if any(each >= since for each in self._power_cuts) else recorded

    def last_known(self, client: int) -> int:
        return self._lasts[client]

    @property
    def _has_lost(self) -> bool:
        return bool(self._power_cuts)

    # While it runs.

    def published(self, slice_id: int, block: SimBlock) -> None:
        """Note a block that a hub sends to its subscribers."""
        for offset, (topic, payload) in enumerate(block.messages):
            place = slice_id, block.epoch, block.sequence + offset
            known = self._published.setdefault(place, (topic, payload))
            self.check(known == (topic, payload), f"two messages have the place {place}: {known}, {(topic, payload)}")
            if payload is not None:
                self._places[topic, payload].add(place)
                is_once = len(self._places[topic, payload]) == 1 or self.has_cut
                self.check(is_once, f"{payload!r} has two places: {self._places[topic, payload]}")
        for payload in {payload for _, payload in block.messages if payload in self._topics}:
            expected = {topic for topic in self._topics[payload] if self._slice_of(topic) == slice_id}
            found = {topic for topic, each in block.messages if each == payload}
            self.check(found == expected, f"a block has {payload!r} under {found}, not {expected}")

    def begun(self, sent: Sent) -> None:
        self._sent.append(sent)
        if sent.put.is_one and (payload := sent.rows[0].payload) is not None:
            self._topics[payload] = {row.topic for row in sent.rows}
        self._ttl_ns.update((row.payload, row.ttl_ns) for row in sent.rows if row.payload is not None)

    def answered(self, sent: Sent, why: str) -> None:
        """Check an answer against what was known when the request was sent first."""
        (now, places), (_, before) = sent.answers[-1], sent.answers[0]
        same = [each[:1] + each[2:] for each in places] == [each[:1] + each[2:] for each in before]
        is_excused = self._may_be_lost(sent) and len(sent.answers) > 1
        self.check(same or is_excused, f"put {sent.put.first} of {sent.client} was answered {before}, then {places}")
        if not same:
            sent.answers = sent.answers[-1:]
        elif len(sent.answers) > 1:
            return
        self._lasts[sent.client] = max(self._lasts[sent.client], sent.put.first + len(sent.rows) - 1)
        known = self._still_known(sent.known)
        if sent.put.is_one:
            self.check(
                len({bool(place[2]) for place in places}) == 1, f"put {sent.put.first} is stored in part: {places}"
            )
        for row, place in zip(sent.rows, places, strict=True):
            self._answered_row(sent, row, place, known, why)
        is_lost = self._may_be_lost(sent)
        for row, (slice_id, is_new, is_refused, epoch, sequence) in zip(sent.rows, places, strict=True):
            if is_refused:
                continue
            revision = epoch, sequence
            if is_new:
                for known in (self._known, self._synced) if sent.put.synced else (self._known,) * (not is_lost):
                    known.slices[slice_id] = max(known.slices[slice_id], revision)
                    known.topics[row.topic] = max(known.topics.get(row.topic, NO_VALUE), revision)
            if row.id and (row.id not in self._ids or self._is_of_deleted_day(self._ids[row.id][1])):
                self._ids[row.id] = now, (slice_id, epoch, sequence)

    def _answered_row(self, sent: Sent, row: Row, answer: PlaceRow, known: Known, why: str) -> None:
        slice_id, is_new, is_refused, epoch, sequence = answer
        revision, name = (epoch, sequence), f"put {sent.put.first} of {sent.client} ({row})"
        if is_refused == CONFLICT:
            self.check(row.if_at not in (ANYWHERE, revision), f"{name} conflicts with its own condition")
            newest = known.topics.get(row.topic, NO_VALUE)
            is_deleted = revision == NO_VALUE and self._may_be_deleted(row.topic, (slice_id, *newest))
            self.check(is_deleted or revision >= newest, f"{name} was told {revision} after {newest}")
            found = self._published.get((slice_id, *revision))
            self.check(revision == NO_VALUE or (found is not None and found[0] == row.topic), f"{name}: {revision}")
            return
        if is_refused and sent.put.is_one:
            is_told = any(place[2] == CONFLICT for place in sent.answers[-1][1])
            self.check(is_told and "another topic" in why, f"{name} was refused: {why}")
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
            is_forgotten = known_id is not None and self._is_of_deleted_day(known_id[1])
            self.check(is_same or is_forgotten, f"{name} was answered {revision}, its id is at {known_id}")
            return
        self.check(message == (row.topic, row.payload), f"{name} was served {message} at {revision}")
        newest = known.slices[slice_id]
        self.check(revision > newest, f"{name} went to {revision}, before {newest}")
        if row.id and (known_id := self._ids.get(row.id)) is not None and not self._has_lost:
            is_forgotten = self._is_of_deleted_day(known_id[1])
            self.check(
                is_forgotten or known_id[0] > sent.began, f"{name} was stored twice: at {known_id[1]}, {revision}"
            )

    def _may_be_deleted(self, topic: bytes, since: _Place) -> bool:
        is_put = any(message == (topic, None) and place[1:] >= since[1:] for place, message in self._published.items())
        return is_put or self._is_of_deleted_day(since)

    def _is_of_deleted_day(self, place: _Place) -> bool:
        return any(place in disk.deleted for disk in self.disks)

    def read(self, epoch: int, following: list[int], known: tuple[float, Known, Known]) -> None:
        """Check an answer that names the next sequences. `known`: acknowledged places when the client asked."""
        newest = self._still_known(known).slices
        for slice_id, (known_here, sequence) in enumerate(zip(newest, following, strict=True)):
            is_new = (epoch, sequence) > known_here
            self.check(is_new, f"a client read {(epoch, sequence)} of slice {slice_id}, after {known_here}")

    def lost(self, client: SimClient, expected: int, why: str = "") -> None:
        """Check that a hub may have forgotten puts of a client. The client begins again."""
        is_forgotten = "forgotten" in why and any(disk.has_deleted for disk in self.disks)
        self.check(
            is_forgotten or self._has_lost,
            f"a hub expects put {expected} of {client.name}, which was acknowledged: {why}",
        )
        self._lasts[client.number] = 0
        client.begin()

    def _may_be_lost(self, sent: Sent) -> bool:
        """Return True if a put that was acknowledged may be gone."""
        return not sent.put.synced and any(sent.began <= each for each in self._power_cuts)

    # At the end.

    def end(self, kept: list[Kept]) -> None:
        """Check the contents of two hubs that are in step."""
        disks = self.disks
        one, other = (dict(disk.messages()) for disk in disks)
        deleted = disks[0].deleted | disks[1].deleted
        for place in (one.keys() ^ other.keys()) - deleted:
            raise ModelError(f"only one hub has {place}: {one.get(place) or other.get(place)} ({kept})")
        for place in one.keys() & other.keys():
            self.check(one[place] == other[place], f"the hubs have two messages at {place}")
        for disk in disks:
            self.check(len(disk.messages()) == len(dict(disk.messages())), "a hub has a message twice")
        payloads = [each for each in one.values() if each[1] is not None]
        self.check(len(payloads) == len(set(payloads)), "a put has two places")
        for sent in self._sent:
            if sent.answers and not self._may_be_lost(sent):
                for row, (slice_id, is_new, is_refused, epoch, sequence) in zip(
                    sent.rows, sent.answers[-1][1], strict=True
                ):
                    at = slice_id, epoch, sequence
                    if is_new and not is_refused and at not in deleted:
                        is_there = one.get(at) == (row.topic, row.payload)
                        self.check(is_there, f"put {sent.put.first} of {sent.client} ({row}) is lost: it was at {at}")
        if not any(disk.has_deleted for disk in disks):
            self._check_conditions(one)
            for disk in disks:
                self._check_ends(disk, one)

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
            if not sent.answers or (sent.put.is_one and not all(place[1] for place in sent.answers[-1][1])):
                continue  # a hub that was killed had stored some rows: the others followed, whatever their conditions
            for row, (_, is_new, is_refused, *revision_of) in zip(sent.rows, sent.answers[-1][1], strict=True):
                revision = revision_of[0], revision_of[1]
                if is_new and not is_refused and row.if_at != ANYWHERE and (row.topic, revision) in before:
                    last = before[row.topic, revision]
                    self.check(last == row.if_at, f"put {sent.put.first} of {sent.client} ({row}) follows {last}")

    def _check_ends(self, disk: Disk, messages: dict[_Place, tuple[bytes, bytes | None]]) -> None:
        """Check that a hub has deleted a topic only once its message had expired, by the clocks of the hubs."""
        taken_ns: dict[_Place, int] = {}
        ended: set[_Place] = set()
        for copy in SimHistory(disk)._copies(0):
            for request in copy.part.notes.judged(copy.place) if copy.kind == JUDGED else ():
                for slice_id, is_new, _, *revision in unpack_places(request.places).tolist() if request.places else ():
                    if is_new:
                        place = slice_id, *revision
                        taken_ns[place] = request.taken_ns
                        ended |= {place} if request.client is None else set()
        last: dict[bytes, tuple[_Place, bytes | None]] = {}
        for place, (topic, payload) in sorted(messages.items(), key=lambda each: each[0][1:]):
            if place in ended and payload is None:  # else a deletion was lost, and its place is another one's
                before, value = last.get(topic, (place, None))
                self.check(value is not None, f"a hub deletes {topic!r} at {place}, which has no value")
                ttl_ns = self._ttl_ns[value or b""]
                is_due = ttl_ns > 0 and taken_ns[place] >= taken_ns[before] + ttl_ns
                self.check(is_due, f"a hub deletes {topic!r} at {place} too early: {value!r} was put at {before}")
            last[topic] = place, payload
