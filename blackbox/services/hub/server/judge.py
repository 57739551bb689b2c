"""Judge requests to a hub: its state, the result of each put, and the notes that record it. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import msgspec
import numpy
from numpy.typing import NDArray

from blackbox.errors import ConfigError
from blackbox.feed.feed import Feed
from blackbox.feed.schema.schema import load_schema
from blackbox.services.hub.protocol import (
    CONFLICT,
    PLACE,
    REFUSED,
    Columns,
    Ended,
    Expected,
    FindSites,
    FoundSites,
    Hello,
    Passive,
    Places,
    Put,
    Refused,
    Stored,
    Welcome,
    misfits,
    pack_places,
    unpack_places,
    wrong_version,
)
from blackbox.services.hub.server.client_table import Table
from blackbox.services.hub.server.conditions import Conditions, Unjudged
from blackbox.services.hub.server.notes import (
    MOST_PART_BYTES,
    Client,
    Judged,
    encode_judged,
    encode_renewed,
    encode_snapshot,
)
from blackbox.services.hub.server.numbers import Numbers
from blackbox.services.hub.server.revisions import Revision
from blackbox.services.hub.server.topics import Reasons, Topics

MOST_SINCE_SNAPSHOT: Final = 64 << 20
"""Minimum bytes appended between two snapshots."""
TURN_BYTES: Final = 4 << 10
"""Bytes that each turn adds to these, as reading it takes time."""
_MOST_TURN_BYTES: Final = 16 << 20
"""Bytes of messages at which the next turn begins: the other hub of a pair gets a turn in one answer."""
_ROW_BYTES: Final = 24
_BLOCK_BYTES: Final = 160
"""Approximate bytes of a message without its topic and payload, and of a block, which each topic may need."""
_HEAD_BYTES: Final = 100
"""Approximate bytes of a request in a note, without its ids and places."""

Answer = Welcome | Stored | Refused | Expected | Ended | Passive | FoundSites


class Fresh(NamedTuple):
    """Puts to be published: some rows of a request, in the order of their numbers."""

    columns: Columns
    topics: list[bytes]
    """Topics of the request. The publisher may have no room for topics of refused puts."""
    rows: NDArray[numpy.int64]
    numbers: NDArray[numpy.int64] | None = None
    """Numbers of the topics, as `Topics.numbers` returns them; None: not known yet."""


class Turn:
    """A turn of the hub: requests that are judged, appended and answered together; or a note of the hub itself."""

    def __init__(self) -> None:
        self.number = 0
        """Its number; 0: it appends nothing."""
        self.notes: dict[int, bytes] = {}
        """Notes by slice."""
        self.requests: list[Judged] = []
        self.fresh: list[Fresh] = []
        self.answers: list[tuple[bytes, Answer]] = []
        """Identity of the client, and its answer."""
        self.counts: dict[str, int] = {}
        """Counts to add to the statistics."""
        self.size = self.message_bytes = 0
        """Approximate size of the notes and of the messages in bytes."""
        self.is_synced = False
        """True if its answers wait until it is on the disk."""

    def count(self, name: str, more: int) -> None:
        """Add to a count."""
        self.counts[name] = self.counts.get(name, 0) + more


class Around(Protocol):
    """Surroundings of a judge."""

    def now_ns(self) -> int:
        """Return the time, ns since 1970."""

    def put_rights(self, key: str) -> tuple[bytes, ...] | None:
        """Return prefixes of the topics that a key may put; None: all."""

    def may_read(self, prefix: bytes, key: str) -> bool:
        """Return True if a key has a right to some topics with a prefix."""

    def find_sites(self, request: FindSites, key: str) -> FoundSites | Ended:
        """Return the sites that the hub knows."""


class Judge:
    """Knows clients, topics and deadlines, and decides about requests.

    At its start, read `table`, `topics` and the deadlines of `conditions` from the journals.
    """

    def __init__(self, feed: Feed, remembered: tuple[int, int, int], around: Around) -> None:
        """`remembered`: arguments of `Table`."""
        self.table, self.topics = Table(*remembered), Topics(feed)
        self.numbers = Numbers(len(feed.slices))
        self.conditions = Conditions(feed.name, around.now_ns)
        self.counts = dict.fromkeys(("stored", "known", "refused", "conflicts", "ended", "unread"), 0)
        self._feed, self._around = feed, around
        self._schema = load_schema(feed.schema)
        self._first = 1
        """The first turn of this run."""
        self._since_snapshot, self._snapshot_bytes = MOST_SINCE_SNAPSHOT, 0
        """Bytes appended since the last snapshot, plus TURN_BYTES for each turn; and bytes of that snapshot."""
        self._snapshot_day: Path | None = None

    def begin(self, epoch: int, following: Sequence[int]) -> None:
        """Begin to judge in an epoch, after the journals were read. `following`: by slice, the next sequence."""
        self.numbers.begin(epoch, following)
        self._first = self.table.number + 1

    # Turns.

    def turns(self, requests: Sequence[Request]) -> Iterator[Turn]:
        """Judge requests, in several turns if they are large. Append and answer each before the next, or drop all."""
        is_synced = any(isinstance(each.request, Put) and each.request.synced for each in requests)
        turn = Turn()
        for at, each in enumerate(requests):
            turn.answers.append((each.client, self._answer(each, turn)))
            is_full = turn.size >= MOST_PART_BYTES or turn.message_bytes >= _MOST_TURN_BYTES
            if is_full or at == len(requests) - 1:
                yield self._closed(turn, is_synced)
                turn = Turn()

    def deletion(self) -> Turn | None:
        """Return a turn that deletes expired topics; None: no topic has expired."""
        request = self.conditions.deletion()
        if request is None:
            return None
        turn = Turn()
        self._take(None, request, Columns.of(request), turn)
        turn.counts["ended"] = request.count
        return self._closed(turn, False)

    def snapshot(self, day: Path) -> list[Turn]:
        """Return turns that note a snapshot of clients, deadlines and topics, if one is due.

        The next hub then reads less at its start. `day`: the oldest day in which some slice is written.
        """
        is_early = self._since_snapshot < max(MOST_SINCE_SNAPSHOT, 4 * self._snapshot_bytes)
        if not self.table.number or (is_early and day == self._snapshot_day):
            return []
        self._snapshot_day, self._since_snapshot = day, 0
        begin = self.table.number + 1
        turns = self._noted(encode_renewed(begin, self._first, self.table.renew()))
        known = self.table.clients(), self.conditions.deadlines.items(), self.topics.all()
        notes = encode_snapshot(self.table.number + 1, self._first, self.table.floor, *known)
        self._snapshot_bytes = sum(map(len, notes))
        return turns + self._noted(notes)

    def _noted(self, notes: Sequence[bytes]) -> list[Turn]:
        turns = []
        for note in notes:
            turn = Turn()
            self.table.number += 1
            turn.number, turn.notes = self.table.number, {0: note}
            turns.append(turn)
        return turns

    def _closed(self, turn: Turn, is_synced: bool) -> Turn:
        turn.is_synced = is_synced
        if turn.requests:
            turn.number = self.table.number
            slices = sorted(self.numbers.touched) or [0]
            self.numbers.touched = set()
            turn.notes = dict.fromkeys(slices, encode_judged(turn.number, self._first, len(slices), turn.requests))
            self._since_snapshot += TURN_BYTES + sum(map(len, turn.notes.values())) + turn.message_bytes
        return turn

    def count(self, turn: Turn) -> None:
        """Add the counts of a turn, which is appended now, to the statistics."""
        for name, count in turn.counts.items():
            self.counts[name] += count

    # Requests.

    def _answer(self, asked: Request, turn: Turn) -> Answer:
        request = asked.request
        if isinstance(request, Ended):
            return request
        if isinstance(request, FindSites):
            return self._around.find_sites(request, asked.key)
        client = Client(asked.key, request.client)
        known = self.table.client(client)
        if isinstance(request, Hello):
            return self._welcome(request, client, known, turn)
        if known is None:
            return Ended(f"client {request.client!r} was not known: start it again with this hub")
        session, last = known
        if request.session != session:
            return Ended(f"client {request.client!r} was started elsewhere since: use a name in one process only")
        if request.first > last + 1:
            return Expected(last + 1)
        if request.first <= last:
            return self._answer_again(client, request)
        try:
            columns = Columns.of(request)
        except ConfigError as error:  # the puts cannot be read
            places, why = numpy.zeros(request.count, PLACE), Reasons()
            places["is_refused"], places["sequence"] = why.code(error), -1
            return self._note(client, request, places, why, b"", self._around.now_ns(), turn)
        return self._take(client, request, columns, turn, self._around.put_rights(asked.key))

    def _take(
        self,
        client: Client | None,
        request: Put,
        columns: Columns,
        turn: Turn,
        may: tuple[bytes, ...] | None = None,
    ) -> Stored:
        """Judge puts one by one, and note all. `may`: allowed prefixes of their topics; None: all are allowed."""
        taken_ns, why = self._around.now_ns(), Reasons()
        topics = self.topics.find(request.topics, may, why)
        if topics.new:  # a request may name topics that no row has
            used = {request.topics[each] for each in numpy.unique(columns.index).tolist()}
            topics = topics._replace(new=[each for each in topics.new if each in used])
        wrong = misfits(self._schema, columns.starts, columns.stops, columns.data, columns.valid)
        order = self.topics.in_order(request.topics, columns.index)
        ids = [each for each in request.ids if each]
        known = {} if client is None else self.table.places_of(client.key, ids)
        stored = self.table.stored(client, request.session, request.first)
        is_plain = not wrong and topics.codes is None and columns.if_at is None
        if is_plain and not known and not stored and len(set(ids)) == len(ids) and self.topics.has_room(topics.new):
            places, rows = self.numbers.places_of(topics.slices[columns.index], order), order
            self.topics.add_all(topics.new)
        else:
            codes = [0] * request.count if topics.codes is None else topics.codes[columns.index].tolist()
            for row, misfit in wrong:
                codes[row] = codes[row] or why.code(misfit)
            slices = topics.slices.tolist()
            if columns.is_one and (known or stored):  # it was accepted: a killed hub may have stored some rows only
                columns = msgspec.structs.replace(columns, if_at=None)
            elif columns.is_one:
                codes = self._codes_of_one(codes, topics.new, why)
            puts = Unjudged(request, columns, order, slices, codes, known, stored)
            places = self.conditions.judge(puts, why, self._next_of)
            rows = order[places["is_new"][order] != 0]
        ends = self.conditions.note(request.topics, columns, places, taken_ns)
        if len(rows):
            numbers = None if topics.new else topics.numbers
            turn.fresh.append(Fresh(columns, request.topics, rows, numbers))
            turn.message_bytes += len(columns.data) * (len(rows) if columns.is_one else 1) + _ROW_BYTES * len(rows)
            turn.message_bytes += _BLOCK_BYTES * len(request.topics) + sum(map(len, request.topics))
        turn.count("stored", len(rows) * (client is not None))
        if len(rows) < request.count:
            refused = places["is_refused"]
            turn.count("known", request.count - len(rows) - int(numpy.count_nonzero(refused)))
            turn.count("conflicts", int(numpy.count_nonzero(refused == CONFLICT)))
        return self._note(client, request, places, why, ends, taken_ns, turn)

    def _codes_of_one(self, codes: list[int], new: list[bytes], why: Reasons) -> list[int]:
        """Return the codes of a message with several topics: all are accepted, or refused for the first reason."""
        code = next(filter(None, codes), 0)
        try:
            self.topics.check_room(new)
        except ConfigError as error:
            code = code or why.code(error)
        return [code] * len(codes)

    def _note(
        self,
        client: Client | None,
        request: Put,
        places: Places,
        why: Reasons,
        ends: bytes,
        taken_ns: int,
        turn: Turn,
    ) -> Stored:
        """Note the results of puts, and return the answer."""
        turn.count("refused", int(numpy.count_nonzero(places["is_refused"] >= REFUSED)))
        answer = Stored(request.first, pack_places(places), str(why))
        self._add(
            turn,
            Judged(
                client,
                request.session,
                request.first,
                answer.places,
                answer.why,
                request.ids,
                ends,
                taken_ns,
            ),
            places,
        )
        return answer

    def _add(self, turn: Turn, request: Judged, places: Places) -> None:
        """Add a request to a turn, which has the next number."""
        number = self.table.number + (not turn.requests)
        turn.requests.append(request)
        turn.size += (
            len(request.places) + len(request.why) + sum(map(len, request.ids)) + len(request.ends) + _HEAD_BYTES
        )
        self.table.take(number, request, places)

    def _welcome(self, request: Hello, client: Client, known: tuple[int, int] | None, turn: Turn) -> Answer:
        if why := wrong_version("client", request.version):
            return Ended(why)
        if request.feed != self._feed.name:
            return Ended(f"feed was {request.feed!r}, expected {self._feed.name!r}, whose hub this is")
        session, last = known or (0, 0)
        if request.session != session:
            if request.replaces != session:
                return Ended(f"client {request.client!r} was started elsewhere since", session)
            begin = Judged(client, request.session, 0, b"", "", [], b"", self._around.now_ns())
            self._add(turn, begin, numpy.empty(0, PLACE))
        is_told = request.prefix is not None and self._around.may_read(request.prefix, client.key)
        return Welcome(request.number, last, self.numbers.epoch, self.numbers.following() if is_told else [])

    def _answer_again(self, client: Client, request: Put) -> Answer:
        answered = self.table.answered(client, request.first)
        if answered is None:
            return Refused(request.first, "it was answered before, but the hub has forgotten the places")
        answer = Stored(request.first, *answered)
        self.counts["known"] += int((unpack_places(answer.places)["is_refused"] == 0).sum())
        return answer

    def _next_of(self, topic: bytes) -> Revision:
        """Assign the revision of a topic's next message. Raises ConfigError if there is no room for the topic."""
        return self.numbers.epoch, self.numbers.next(self.topics.add(topic))


class Request(NamedTuple):
    """A request of a client."""

    client: bytes
    """Identity of the client."""
    key: str
    """Public key of the client; empty if it has none, as on ipc."""
    text: bytes
    request: Hello | Put | FindSites | Ended
