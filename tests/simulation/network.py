"""A publisher, relays and the connections between them, in virtual time."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import NamedTuple, Protocol

from blackbox.block.position import End
from blackbox.services.relay.cover import Changes, Interest
from tests.simulation.simulated_slice import SentBlock as Block

KEYS = [b"A", b"B", b"C", b"AB", b"D"]
FAR = (1 << 24) + 10
"""Step of a sequence that is not plausible."""
_FORGED_STEP = 1 << 40


class Loop:
    """Runs events in the order of their virtual times."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, delay: float, run: Callable[[], None]) -> None:
        self.at_time(self.now + delay, run)

    def at_time(self, when: float, run: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, self._count, run))

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, run = heapq.heappop(self._events)
            run()
        self.now = until


class Heartbeat(NamedTuple):
    epoch: int
    following: int
    ends: dict[bytes, End]


class Confirm(NamedTuple):
    """Answer to a nonce."""

    epoch: int
    following: int
    ends: dict[bytes, End]
    nonce: int


class Sent(NamedTuple):
    """A message, or sequences for which there is no message."""

    keys: set[bytes]
    """Its key, or the keys that count one message as missing because the publisher skipped sequences."""
    later: set[bytes]
    """Further keys that count it, but began later."""
    is_message: bool = True
    numbers: int = 1


class Log:
    """Everything that an epoch sent, by sequence."""

    def __init__(self) -> None:
        self._sequences: list[int] = []
        self._sent: list[Sent] = []
        self.end = 0

    def add(self, sequence: int, sent: Sent) -> None:
        self._sequences.append(sequence)
        self._sent.append(sent)
        self.end = sequence + sent.numbers

    def between(self, first: int, stop: int) -> Iterator[tuple[int, Sent]]:
        """Yield the items that start in a range, with their sequences."""
        for place in range(bisect_left(self._sequences, first), bisect_left(self._sequences, stop)):
            yield self._sequences[place], self._sent[place]

    def __iter__(self) -> Iterator[tuple[int, Sent]]:
        return zip(self._sequences, self._sent, strict=True)


class Publisher:
    """One slice of a publisher."""

    is_up = True

    def __init__(self, start: int) -> None:
        """`start`: first sequence of the first epoch."""
        self.epoch = 0
        self.log: dict[int, Log] = {}
        self.pipes: list[Pipe] = []
        self.restart()
        self.next = self.log[self.epoch].end = start

    def restart(self) -> None:
        self.epoch += 10
        self.log[self.epoch] = Log()
        self.next = self._skips = self._skipped_to = 0
        self.ends: dict[bytes, End] = {}

    def publish(self, key: bytes, span: int, rows: tuple[int, ...]) -> None:
        """Send a block. `rows`: see `SentBlock`."""
        log = self.log[self.epoch]
        if key not in self.ends:
            for _, sent in log:
                if not sent.is_message and sent.keys:
                    sent.later.add(key)
        end, count = self.ends.get(key, End(self._skipped_to, self._skips))
        block = Block(self.next, span, end, count, key, self.epoch, rows)
        for offset in range(span):
            is_message = not rows or offset in rows
            log.add(self.next + offset, Sent({key} if is_message else set(), set(), is_message))
        self.next += span
        self.ends[key] = End(self.next, count + block.messages)
        for pipe in self.pipes:
            pipe.send(block)

    def skip(self, numbers: int) -> None:
        """Skip sequences of messages that the source lacks. Each key counts one message as missing."""
        if self.ends:
            self.log[self.epoch].add(self.next, Sent(set(self.ends), set(), is_message=False, numbers=numbers))
            self.next += numbers
            self._skips, self._skipped_to = self._skips + 1, self.next
            self.ends = {key: End(self.next, count + 1) for key, (_, count) in self.ends.items()}
            self.heartbeat()

    def heartbeat(self) -> None:
        for pipe in self.pipes:
            pipe.send(Heartbeat(self.epoch, self.next, dict(self.ends)))

    def confirm(self, answer: Answer) -> None:
        answer(self.epoch, self.next, dict(self.ends))

    def want(self, prefix: bytes) -> None:
        pass

    def leave(self, prefix: bytes) -> None:
        pass


Answer = Callable[[int, int, dict[bytes, End]], None]


class Source(Protocol):
    """The far end of a pipe."""

    pipes: list[Pipe]
    is_up: bool

    def confirm(self, answer: Answer) -> None:
        """Call `answer` with the ends of the epoch and its keys once all filters requested before are in force."""

    def want(self, prefix: bytes) -> None:
        """Count one more subscriber of a prefix."""

    def leave(self, prefix: bytes) -> None:
        """Count one subscriber less."""


class Pipe:
    """A connection with ordered, delayed delivery. It loses messages while broken, and others with chance `drop`."""

    def __init__(
        self, loop: Loop, random: Random, source: Source, take: Callable[[Block | Heartbeat | Confirm], None]
    ) -> None:
        self._loop, self._random, self.source, self._take = loop, random, source, take
        self._asked: set[bytes] = set()
        self._in_force: set[bytes] = set()
        self._filters: tuple[bytes, ...] = ()
        self.is_up, self.drop, self.delay, self._life = False, 0.0, 1.0, 0
        self.forges, self._was_forged = False, False
        """True if an item that the publisher did not send precedes the next one."""
        self._last = self._last_asked = 0.0
        source.pipes.append(self)

    def connect(self, prefixes: tuple[bytes, ...], nonce: int = 0) -> None:
        """Connect, subscribe, and ask for a confirmation."""
        self.is_up = True
        self._asked = set()
        self.ask(prefixes, nonce)

    def break_(self) -> None:
        self.is_up, self._life = False, self._life + 1
        for prefix in sorted(self._in_force):
            self.source.leave(prefix)
        self._in_force, self._filters = set(), ()

    def ask(self, prefixes: tuple[bytes, ...], nonce: int) -> None:
        """Change the filters, then ask for a confirmation."""
        wanted = set(prefixes)
        for prefix in sorted(wanted - self._asked):
            self._send_up(partial(self._set, prefix, is_wanted=True))
        for prefix in sorted(self._asked - wanted):
            self._send_up(partial(self._set, prefix, is_wanted=False))
        self._asked = wanted
        self._send_up(lambda: self.source.confirm(partial(self._answer, self._life, nonce)))

    def _answer(self, life: int, nonce: int, epoch: int, following: int, ends: dict[bytes, End]) -> None:
        if life == self._life:
            self.send(Confirm(epoch, following, ends, nonce))

    def _send_up(self, run: Callable[[], None]) -> None:
        life = self._life
        self._last_asked = max(self._last_asked, self._loop.now) + self._random.random() * 3
        self._loop.at_time(self._last_asked, lambda: run() if life == self._life else None)

    def _set(self, prefix: bytes, *, is_wanted: bool) -> None:
        if is_wanted:
            self._in_force.add(prefix)
            self.source.want(prefix)
        else:
            self._in_force.remove(prefix)
            self.source.leave(prefix)
        self._filters = tuple(self._in_force)

    def send(self, what: Block | Heartbeat | Confirm) -> None:
        if not self.is_up or (isinstance(what, Block) and not what.key.startswith(self._filters)):
            return
        if self.drop and not isinstance(what, Confirm) and self._random.random() < self.drop:
            return
        if self.forges:
            self.forges = False
            self._deliver(_forged(self._random, what), is_forged=True)
        self._deliver(what, is_forged=False)

    def _deliver(self, what: Block | Heartbeat | Confirm, *, is_forged: bool) -> None:
        life = self._life
        self._last = max(self._last, self._loop.now + self._random.random() * self.delay)

        def arrive() -> None:
            if life == self._life and not (is_forged and self._was_forged):
                if is_forged or isinstance(what, Heartbeat):  # a receiver may ignore others
                    self._was_forged = is_forged
                self._take(what)

        self._loop.at_time(self._last, arrive)


def _forged(random: Random, what: Block | Heartbeat | Confirm) -> Block | Heartbeat | Confirm:
    """Return an item with another epoch, or a sequence too far ahead. An answer to a nonce cannot be forged."""
    if isinstance(what, Confirm):
        what = Heartbeat(what.epoch, what.following, what.ends)
    if random.random() < 0.5:
        return what._replace(epoch=what.epoch + random.choice([-5, 5]))
    if isinstance(what, Block):
        return what._replace(sequence=what.sequence + _FORGED_STEP)
    return what._replace(following=what.following + _FORGED_STEP)


class Relay:
    """A relay of one line: its requests above and its answers below, without sockets."""

    def __init__(self, loop: Loop, random: Random, source: Source) -> None:
        self.pipes: list[Pipe] = []
        self._loop, self._random = loop, random
        self.up = Pipe(loop, random, source, self._take)
        self.is_up = False
        self.start()

    def start(self) -> None:
        self.is_up = True
        self._interest = Interest()
        self._filters: set[bytes] = set()
        self._waiting: list[tuple[int, Answer]] = []
        self._version, self._confirmed, self._epoch, self._knows_ends = 0, -1, 0, False
        self._told = Heartbeat(0, 0, {})
        self.up.connect(())

    def kill(self) -> None:
        self.is_up = False
        self.up.break_()
        for pipe in self.pipes:
            pipe.break_()

    def break_up(self) -> None:
        self.up.break_()
        self._confirmed = -1

    def connect_up(self) -> None:
        self.up.connect(tuple(sorted(self._filters)), self._version)

    def want(self, prefix: bytes) -> None:
        self._change(self._interest.want(prefix))

    def leave(self, prefix: bytes) -> None:
        if self.is_up:
            self._change(self._interest.leave(prefix, self._loop.now))

    def _change(self, changes: Changes) -> None:
        if changes.subscribe or changes.withdraw:
            self._filters = self._filters.union(changes.subscribe).difference(changes.withdraw)
            self._version += bool(changes.subscribe)
            self._ask()

    def _ask(self) -> None:
        if self.up.is_up:
            self.up.ask(tuple(self._filters), self._version)

    def confirm(self, answer: Answer) -> None:
        self._waiting.append((self._version, answer))
        self._answer()

    def _answer(self) -> None:
        """Answer below what is in force above, if the ends are known. Else ask above."""
        confirmed = self._confirmed if self._knows_ends else -1
        due = [answer for version, answer in self._waiting if version <= confirmed]
        self._waiting = [each for each in self._waiting if each[0] > confirmed]
        for answer in due:
            answer(*self._told)
        if self._waiting:
            self._ask()

    def _take(self, what: Block | Heartbeat | Confirm) -> None:
        if what.epoch != self._epoch:
            self._epoch, self._confirmed = what.epoch, -1
            self._ask()
        self._knows_ends = not isinstance(what, Block)
        if not isinstance(what, Block):
            self._told = Heartbeat(*what[:3])
        if isinstance(what, Confirm):
            self._confirmed = what.nonce
            if self._random.random() < 0.2:  # a queue below is full
                self._loop.at(3.0, self._answer)
            else:
                self._answer()
            return
        for pipe in self.pipes:
            pipe.send(what)
