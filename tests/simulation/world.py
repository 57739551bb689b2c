"""Publishers, lines, archives and consumers in one thread with virtual time. Faults are drawn from a seed."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial
from random import Random
from typing import NamedTuple

from blackbox.block.position import End, Position
from blackbox.subscribe.order_state import Answers
from tests.simulation.model import ModelError, Report, check
from tests.simulation.simulated_slice import SentBlock as Block
from tests.simulation.simulated_slice import SimulatedSlice

END = 1 << 62
KEYS = [b"A", b"B", b"C", b"AB", b"D"]


def ns(seconds: float) -> int:
    """Convert a virtual time to ns."""
    return int(seconds * 1e9)


class Loop:
    """Runs events in the order of their virtual times."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, delay: float, run: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + delay, self._count, run))

    def at_time(self, when: float, run: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, self._count, run))

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, run = heapq.heappop(self._events)
            run()
        self.now = until


class Publisher:
    """One slice of a publisher. A restart loses its state."""

    def __init__(self, world: World) -> None:
        self.world, self.epoch = world, 0
        self.log: dict[int, list[bytes]] = {}
        """Key of each message, by epoch."""
        self.restart()

    def restart(self) -> None:
        self.epoch += 10
        self.log[self.epoch] = []
        self.next = 0
        self.ends: dict[bytes, End] = {}

    def publish(self, key: bytes, count: int) -> None:
        end, sent = self.ends.get(key, End(0, 0))
        block = Block(self.next, count, end, sent, key, self.epoch)
        self.next += count
        self.ends[key] = End(self.next, sent + count)
        self.log[self.epoch] += [key] * count
        for pipe in self.world.pipes:
            pipe.send(block)

    def heartbeat(self) -> None:
        for pipe in self.world.pipes:
            pipe.send(Heartbeat(self.epoch, self.next, dict(self.ends)))


class Heartbeat(NamedTuple):
    epoch: int
    following: int
    ends: dict[bytes, End]


class Confirm(NamedTuple):
    epoch: int
    following: int
    ends: dict[bytes, End]


class Pipe:
    """A connection with ordered, delayed delivery. It loses messages while broken, and others with chance `drop`."""

    def __init__(self, world: World, take: Callable[[Block | Heartbeat | Confirm], None], prefixes: tuple[bytes, ...]):
        self.world, self.take, self.wanted = world, take, prefixes
        self.in_force: set[bytes] = set()
        self.is_up, self.drop, self.delay, self.last, self.life = False, 0.0, 1.0, 0.0, 0

    def connect(self) -> None:
        """Connect, subscribe prefix by prefix, and receive the confirmation."""
        self.is_up, self.life = True, self.life + 1
        self.in_force = set()
        life, when = self.life, 0.0
        for prefix in self.wanted:
            when += self.world.random.random() * 3

            def subscribe(prefix: bytes = prefix) -> None:
                if self.life == life:
                    self.in_force.add(prefix)

            self.world.loop.at(when, subscribe)

        def confirm() -> None:
            if self.life == life:
                publisher = self.world.publisher
                self.send(Confirm(publisher.epoch, publisher.next, dict(publisher.ends)))

        self.world.loop.at(when + self.world.random.random() * 3, confirm)

    def break_(self) -> None:
        self.is_up, self.life = False, self.life + 1

    def send(self, what: Block | Heartbeat | Confirm) -> None:
        random = self.world.random
        if not self.is_up:
            return
        if isinstance(what, Block):
            if not what.key.startswith(tuple(self.in_force)) or random.random() < self.drop:
                return
        elif isinstance(what, Heartbeat) and random.random() < self.drop:
            return
        life = self.life
        self.last = max(self.last, self.world.loop.now + random.random() * self.delay)

        def arrive() -> None:
            if life == self.life:
                self.take(what)

        self.world.loop.at_time(self.last, arrive)


class Archive:
    """A recorder of all keys, with its recorded blocks and contiguous ranges by epoch."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.blocks: dict[int, list[Block]] = {}
        self.heard: dict[int, int] = {}
        """Sequence after the last message known to be sent, by epoch."""
        self.whole: dict[int, list[list[int]]] = {}
        self.told: dict[int, tuple[int, dict[bytes, End]]] = {}
        self.is_reachable = True
        self.is_up = True
        self.pipe = Pipe(world, self.take, (b"",))

    def kill(self) -> None:
        self.is_up = False
        self.pipe.break_()

    def start(self) -> None:
        self.is_up = True
        self.pipe.connect()

    def take(self, what: Block | Heartbeat | Confirm) -> None:
        if self.heard and what.epoch < max(self.heard):
            return
        self.blocks.setdefault(what.epoch, [])
        whole = self.whole.setdefault(what.epoch, [])
        self.heard.setdefault(what.epoch, 0)
        if isinstance(what, Block):
            known = self.blocks[what.epoch]
            if known and what.sequence < known[-1].end:
                raise ModelError("recorded twice")
            known.append(what)
            if whole and whole[-1][1] == what.sequence:
                whole[-1][1] = what.end
            else:
                whole.append([what.sequence, what.end])
            self.heard[what.epoch] = max(self.heard[what.epoch], what.end)
        else:
            self.heard[what.epoch] = max(self.heard[what.epoch], what.following)
            if isinstance(what, Heartbeat):
                self.told[what.epoch] = what.following, what.ends

    def cover(self, position: Position) -> int:
        """Return the sequence before which all messages from a position on are recorded."""
        for first, stop in self.whole.get(position.epoch, ()):
            if first <= position.sequence < stop:
                return stop
        return position.sequence

    def lacks(self, position: Position) -> int | None:
        """Return the sequence up to which messages from a position on are lost here; None: they may still arrive."""
        epoch, sequence = position
        starts = [first for first, _ in self.whole.get(epoch, ()) if first > sequence]
        if starts:
            return min(starts)
        if self.heard.get(epoch, 0) > sequence:
            return self.heard[epoch]
        return None if max(self.heard, default=0) <= epoch else END


class Cursor:
    """Reads archives for one consumer."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer, self.world = consumer, consumer.world
        self.request, self.quiet_since = 0, 0.0

    def poll(self) -> None:
        """Deliver one piece, or handle a gap."""
        order, world, now = self.consumer.order, self.world, self.world.loop.now
        if (at := order.cursor) is None:
            return
        request = order.state.request
        if request != self.request:
            self.request, self.quiet_since = request, now
        asked = [each for each in world.archives if each.is_reachable and (each.is_up or world.random.random() < 0.9)]
        world.random.shuffle(asked)
        if asked:
            order.state.answers = Answers.SOME
        for archive in asked:
            stop = archive.cover(at)
            if stop > at.sequence:
                self.quiet_since = now
                self._bring(archive, at, stop)
                return
        self._lack(at, asked)

    def _bring(self, archive: Archive, at: Position, stop: int) -> None:
        order, now = self.consumer.order, ns(self.world.loop.now)
        chunk, passed = self.world.random.randint(1, 6), at.sequence
        for block in archive.blocks[at.epoch]:
            if block.end > at.sequence and block.sequence < stop:
                if chunk == 0:
                    break
                chunk -= 1
                passed = block.end
                if block.key.startswith(order.prefixes):
                    order.archived(self.request, block, now)
        order.passed(self.request, at.epoch, passed, now, is_all=False)

    def _lack(self, at: Position, asked: list[Archive]) -> None:
        """Handle a next message that no archive has: wait, report a gap, continue with the next epoch or give up."""
        order, world, now, request = self.consumer.order, self.world, self.world.loop.now, self.request
        lacks = [each.lacks(at) for each in asked]
        is_patient = now - self.quiet_since < world.patience
        if is_patient and (len(asked) < len(world.archives) or None in lacks):
            order.passed(request, at.epoch, at.sequence, ns(now), is_all=None in lacks)
            return
        known = [each for each in lacks if each is not None]
        stop = min(known, default=END)
        self.quiet_since = now
        self.consumer.gave_up |= len(asked) < len(world.archives)
        if stop < END:
            order.gone(request, at.epoch, stop, ns(now))
        elif known and len(known) == len(lacks):
            for each in asked:
                order.told(request, at.epoch, *each.told.get(at.epoch, (0, {})))
            epochs = {epoch for each in asked for epoch in each.heard if epoch > at.epoch}
            order.passed(request, min(epochs), 0, ns(now), is_all=False)
        else:
            self.consumer.gave_up = True
            order.give_up(request, ns(now))


class Consumer:
    """A named consumer that stores state and position atomically and may be killed at any time."""

    def __init__(self, world: World, prefixes: tuple[bytes, ...], lines: int, *, repairs: bool) -> None:
        self.world, self.prefixes, self.repairs = world, prefixes, repairs
        self.state: list[tuple[int, int, bytes]] = []
        self.reports: list[Report] = []
        self.gave_up = False
        self.resumed: set[int] = set()
        self.kept: tuple[Position, int, int] | None = None
        self.begun: Position | None = None
        self.pipes = [Pipe(world, partial(self.take, number), prefixes) for number in range(lines)]
        self.unproven: list[tuple[int, int]] = []
        self.start()

    def start(self) -> None:
        world = self.world
        self.order = SimulatedSlice(
            self, self.prefixes, len(self.pipes), repairs=self.repairs, held_messages=world.held_limit
        )
        if any(archive.is_up and archive.is_reachable for archive in world.archives):
            self.order.state.answers = Answers.SOME
        self.cursor = Cursor(self)
        self.heard: dict[int, int] = {}
        self.is_up = True
        if self.kept is not None:
            position, states, reports = self.kept
            del self.state[states:]
            del self.reports[reports:]
            if self.repairs:
                self.order.begin(position)
                self.resumed.add(position.epoch)
        else:
            self.state.clear()
            self.reports.clear()
            self.begun = None
        for pipe in self.pipes:
            pipe.connect()

    def kill(self) -> None:
        self.is_up = False
        for pipe in self.pipes:
            pipe.break_()

    def take(self, number: int, what: Block | Heartbeat | Confirm) -> None:
        if not self.is_up:
            return
        now, order = ns(self.world.loop.now), self.order
        state = order.state
        before = state.epoch, state.proven, order.live_epoch, state.heard_next
        if isinstance(what, Block):
            order.live(number, what, now)
        elif isinstance(what, Heartbeat):
            order.heartbeat(number, *what, now)
        else:
            order.confirmed(number, *what, now)
        if before[0] and state.epoch != before[0]:
            self.unproven.append(before[:2])
        self.heard[order.live_epoch] = state.heard_next
        if before[0] and order.live_epoch not in (0, before[2]):
            self.heard[before[2]] = max(before[3], self.heard.get(before[2], 0))
        self.checkpoint()

    def checkpoint(self) -> None:
        state, order = self.order.state, self.order.order
        if state.is_strict and state.epoch and self.begun is None:
            self.begun = order.position
        if self.repairs and self.begun and order.is_clean and self.world.random.random() < 0.3:
            self.kept = order.position, len(self.state), len(self.reports)

    def tick(self) -> None:
        if self.is_up:
            self.order.tick(ns(self.world.loop.now))
            self.cursor.poll()

    def deliver(self, block: Block, first: int) -> None:
        for sequence in range(block.sequence + first, block.end):
            self.state.append((block.epoch, sequence, block.key))

    def report(self, epoch: int, key: bytes | None, first: int, lost: int) -> None:
        self.reports.append(Report(epoch, key, first, lost))


class World:
    """One schedule."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.loop = Loop()
        self.patience = 40.0
        self.held_limit = random.choice([5, 20, 200])
        self.archives: list[Archive] = []
        self.pipes: list[Pipe] = []
        self.publisher = Publisher(self)
        self.repairs = random.random() < 0.75
        self.archives = [Archive(self) for _ in range(random.randint(1, 2) if self.repairs else 0)]
        prefixes = random.choice([(b"",), (b"A",), (b"A", b"C"), (b"B", b"D")])
        self.keys = KEYS[: random.randint(1, len(KEYS))]
        self.are_reliable = random.random() < 0.5
        for archive in self.archives:
            self.pipes.append(archive.pipe)
            archive.start()
        self.consumer = Consumer(self, prefixes, random.randint(1, 2), repairs=self.repairs)
        self.pipes += self.consumer.pipes

    def fault(self) -> None:
        """Start or end a random fault."""
        random, consumer = self.random, self.consumer
        what = random.randint(0, 9)
        if what == 0:
            random.choice(consumer.pipes).drop = random.choice([0, 0.1, 0.5])
        elif what == 1:
            self._break(random.choice(consumer.pipes))
        elif what == 2:
            self.publisher.restart()
        elif what == 6:
            for pipe in consumer.pipes:
                pipe.delay = random.choice([0.5, 3.0, 20.0])
        elif what == 7 and consumer.is_up and self.repairs:
            consumer.kill()
            self.loop.at(random.random() * 30, consumer.start)
        elif self.archives:
            self._harm_archive(what)

    def _break(self, pipe: Pipe) -> None:
        consumer = self.consumer

        def connect() -> None:
            if consumer.is_up and not pipe.is_up:
                pipe.connect()

        if pipe.is_up and consumer.is_up:
            pipe.break_()
            consumer.order.lost_line(consumer.pipes.index(pipe))
            self.loop.at(self.random.random() * 30, connect)

    def _harm_archive(self, what: int) -> None:
        random = self.random
        if what == 3:
            archive = random.choice(self.archives)
            if archive.is_up:
                archive.kill()
                self.loop.at(random.random() * 40, archive.start)
        elif what == 4 and not self.are_reliable:
            archive = random.choice(self.archives)
            archive.is_reachable = not archive.is_reachable
        elif what == 5:
            random.choice(self.archives).pipe.drop = random.choice([0, 0, 0.1])
        elif what == 8:
            random.choice(self.archives).pipe.delay = random.choice([0.5, 3.0, 20.0])

    def run(self) -> None:
        """Run the schedule. Raise ModelError if it violates the model."""
        random, loop = self.random, self.loop
        end = random.choice([100.0, 300.0])

        def publish() -> None:
            for _ in range(random.randint(1, 3)):
                self.publisher.publish(random.choice(self.keys), random.randint(1, 3))
            if loop.now < end:
                loop.at(random.random() * 4, publish)

        silent_from = end + random.choice([36.0, 400.0])

        def beat() -> None:
            self.publisher.heartbeat()
            if loop.now < silent_from:
                loop.at(5.0, beat)

        def fault() -> None:
            if loop.now < end:
                self.fault()
                loop.at(random.random() * 20, fault)

        def tick() -> None:
            self.consumer.tick()
            loop.at(random.random() * 2, tick)

        loop.at(random.random() * 10, publish)
        loop.at(1.0, beat)
        loop.at(random.random() * 30, fault)
        loop.at(0.5, tick)
        loop.run(end)
        for pipe in self.pipes:
            pipe.drop, pipe.delay = 0.0, 1.0
        for archive in self.archives:
            archive.is_reachable = True
        loop.run(end + 350)
        check(self)


def finding_of(seed: int) -> str:
    """Run the schedule of a seed. Return a description of the violation, or ""."""
    world = World(seed)
    consumer = world.consumer
    what = "repairs" if world.repairs else "no repair"
    try:
        world.run()
    except ModelError as failure:
        return f"seed {seed} ({what}, {len(consumer.pipes)} lines, prefixes {consumer.prefixes}): {failure}"
    return ""
