"""Simulated clients of a pair: each puts, puts again, reads, and notes the answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy

from blackbox.block.form.layout import VERSION
from blackbox.services.hub.protocol import (
    ANYWHERE,
    CONDITION,
    Ended,
    Expected,
    Hello,
    Passive,
    PlaceRow,
    Put,
    Refused,
    Stored,
    Welcome,
    ids_of,
    unpack_places,
)
from blackbox.services.hub.server.judge import Answer, Request
from blackbox.services.hub.server.revisions import Revision

if TYPE_CHECKING:
    from tests.simulation.pair_model import Known
    from tests.simulation.pair_world import PairWorld

TOPICS = [b"A", b"B", b"D", b"E"]
_AGAIN_S = 2.0
_PASSIVE_S = 0.4
_EXPECTED_S = 0.3
_MOST_SENT = 2


@dataclass
class Row:
    """A put of a request."""

    topic: bytes
    payload: bytes | None
    id: bytes
    if_at: Revision
    ttl_ns: int


@dataclass
class Sent:
    """A request, with the knowledge at its first sending and its answers."""

    client: int
    put: Put
    rows: list[Row]
    began: float
    known: tuple[float, Known, Known]
    """Time of the first sending, and the acknowledged places then."""
    answers: list[tuple[float, list[PlaceRow]]] = field(default_factory=list)


class Connection:
    """Carries requests and answers in order. It is broken once it has lost one."""

    def __init__(self, world: PairWorld, to: int, client: SimClient) -> None:
        self._world, self._to, self._client = world, to, client
        self._last = [0.0, 0.0]
        self._is_broken = False

    def send(self, request: Hello | Put) -> None:
        asked = Request(self, "", b"", request)  # type: ignore[arg-type]  # for an identity
        self._carry(0, lambda: self._world.hubs[self._to].take(asked))

    def answer(self, answer: Answer) -> None:
        self._carry(1, lambda: self._client.take(answer, self))

    def _carry(self, way: int, run: Callable[[], None]) -> None:
        world = self._world
        self._is_broken |= world.loses(self._to)
        if not self._is_broken:
            self._last[way] = max(self._last[way], world.loop.now + world.random.random() * 0.1)
            world.loop.at_time(self._last[way], run)


class SimClient:
    """A client with a name. Killed, its next process begins another session."""

    def __init__(self, world: PairWorld, number: int) -> None:
        self._world, self.number = world, number
        self.name = f"client-{number}"
        self.begin()

    def begin(self) -> None:
        self._session, self._replaces = self._world.random.getrandbits(60) + 1, 0
        self._next, self._hub = 0, self._world.random.randint(0, 1)
        self._connect()
        self.sent: dict[int, Sent] = {}
        self.hellos: dict[int, tuple[tuple[float, Known, Known], int]] = {}
        self._again_at = -1.0
        self._hello()
        self._send_again_in(_AGAIN_S)

    @property
    def is_idle(self) -> bool:
        return not self.sent and not self.hellos

    def _hello(self) -> None:
        world = self._world
        number = world.random.getrandbits(60)
        self.hellos[number] = world.model.known(), world.model.last_known(self.number)
        self._send_hello(number)

    def _send_hello(self, number: int) -> None:
        name = self._world.feed.name
        self._send(Hello(self.name, self._session, name, number, VERSION, b"", self._replaces))

    def _connect(self) -> None:
        self._connection = Connection(self._world, self._hub, self)

    def _send(self, request: Hello | Put) -> None:
        self._connection.send(request)

    def act(self) -> None:
        random = self._world.random
        if self._next and len(self.sent) < _MOST_SENT:
            if random.random() < 0.2:
                self._hello()
            else:
                self._put()

    def _put(self) -> None:
        random, model = self._world.random, self._world.model
        rows = []
        for _ in range(random.choice([1, 1, 1, 2, 4])):
            topic = random.choice(TOPICS)
            payload = None if random.random() < 0.1 else model.new_payload()
            put_id = b"%d" % random.randint(0, 30) if random.random() < 0.3 else b""
            condition: Revision = ANYWHERE
            if random.random() < 0.35:
                condition = model.guess(topic, random)
            ttl_ns = random.randint(1, 15) * 10**9 if random.random() < 0.15 else 0
            rows.append(Row(topic, payload, put_id, condition, ttl_ns))
        is_one = random.random() < 0.3
        if is_one:
            rows = self._rows_of_one()
        self.put(rows, is_synced=random.random() < 0.5, is_one=is_one)

    def put(self, rows: list[Row], *, is_synced: bool = False, is_one: bool = False) -> None:
        model = self._world.model
        put = _encoded(self.name, self._session, self._next, rows, is_synced=is_synced, is_one=is_one)
        sent = Sent(self.number, put, rows, self._world.loop.now, model.known())
        self.sent[self._next] = sent
        self._next += len(rows)
        model.begun(sent)
        self._send(put)

    def _rows_of_one(self) -> list[Row]:
        """Return the rows of a message with several topics."""
        random, model = self._world.random, self._world.model
        topics = random.sample(TOPICS, random.randint(2, len(TOPICS)))
        payload = model.new_payload()
        ids = [b""] * len(topics)
        if random.random() < 0.3:  # an id has the same topics each time
            ids = ids_of(b"%d of %s" % (random.randint(0, 3), b"".join(topics)), len(topics))
        conditions: list[Revision] = [ANYWHERE] * len(topics)
        if random.random() < 0.35:
            conditions = [model.guess(topic, random) for topic in topics]
        ttl_ns = random.randint(1, 15) * 10**9 if random.random() < 0.15 else 0
        columns = zip(topics, ids, conditions, strict=True)
        return [Row(topic, payload, put_id, condition, ttl_ns) for topic, put_id, condition in columns]

    def _send_again_in(self, delay: float, *, switches: bool = True) -> None:
        """Send again after a delay, unless that is due before."""
        when = self._world.loop.now + delay
        if not self._world.loop.now < self._again_at <= when:
            self._again_at = when
            self._world.loop.at_time(when, lambda: self._send_again(when, switches=switches))

    def _send_again(self, when: float, *, switches: bool) -> None:
        if when == self._again_at:
            if not self.is_idle:
                if switches:
                    self._hub = 1 - self._hub
                    self._connect()
                self._send_all()
            self._send_again_in(_AGAIN_S)

    def _send_all(self) -> None:
        for number in list(self.hellos):
            self._send_hello(number)
        for sent in self.sent.values():
            self._send(sent.put)

    def take(self, answer: Answer, connection: Connection) -> None:
        """Take an answer received on a connection."""
        world = self._world
        if connection is not self._connection:
            return
        if isinstance(answer, Stored):
            self._take_stored(answer)
        elif isinstance(answer, Welcome):
            self._take_welcome(answer)
        elif isinstance(answer, Passive):
            self._send_again_in(_PASSIVE_S)
        elif isinstance(answer, Expected):
            if answer.first in self.sent:
                self._send_again_in(_EXPECTED_S, switches=False)
            elif self.sent:
                world.model.lost(self, answer.first)
        elif isinstance(answer, Ended) and answer.session is not None and not self._next:
            self._replaces = answer.session
            for number in self.hellos:
                self._send_hello(number)
        elif isinstance(answer, Ended | Refused):
            world.model.lost(self, 0, answer.why)

    def _take_stored(self, answer: Stored) -> None:
        sent = self.sent.pop(answer.first, None)
        if sent is not None:
            sent.answers.append((self._world.loop.now, unpack_places(answer.places).tolist()))
            self._world.model.answered(sent, answer.why)
            if self._world.random.random() < 0.1:  # its process has lost the answer
                self.sent[answer.first] = sent
                self._send(sent.put)

    def _take_welcome(self, answer: Welcome) -> None:
        known = self.hellos.pop(answer.number, None)
        if known is not None:
            acknowledged, last = known
            self._world.model.read(answer.epoch, answer.following, acknowledged)
            self._next = self._next or answer.last + 1
            if answer.last < last:
                self._world.model.lost(self, answer.last + 1)


def _encoded(name: str, session: int, first: int, rows: list[Row], *, is_synced: bool, is_one: bool) -> Put:
    topics = list(dict.fromkeys(row.topic for row in rows))
    payloads = [row.payload or b"" for row in (rows[:1] if is_one else rows)]
    offsets = numpy.zeros(len(payloads) + 1, numpy.int64)
    numpy.cumsum([*map(len, payloads)], out=offsets[1:])
    conditions = [row.if_at for row in rows]
    return Put(
        name,
        session,
        first,
        len(rows),
        is_synced,
        topics,
        numpy.array([topics.index(row.topic) for row in rows], numpy.int32).tobytes(),
        offsets.tobytes(),
        b"".join(payloads),
        b"",
        bytes(row.payload is not None for row in rows) if any(row.payload is None for row in rows) else b"",
        [row.id for row in rows] if any(row.id for row in rows) else [],
        numpy.array(conditions, CONDITION).tobytes() if any(each != ANYWHERE for each in conditions) else b"",
        numpy.array([row.ttl_ns for row in rows], numpy.int64).tobytes() if any(row.ttl_ns for row in rows) else b"",
        is_one,
    )
