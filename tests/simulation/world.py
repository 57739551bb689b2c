"""A consumer, and the schedule of its publisher, lines and archives. Faults are drawn from a seed."""

from __future__ import annotations

from functools import partial
from random import Random

from blackbox.block.position import Position
from blackbox.receive.order.state import Answers, Phase
from tests.simulation.archive import Archive, Cursor, ns
from tests.simulation.model import ModelError, Report, Want, check, is_settled
from tests.simulation.network import FAR, KEYS, Confirm, Heartbeat, Loop, Pipe, Publisher, Relay
from tests.simulation.simulated_slice import SentBlock as Block
from tests.simulation.simulated_slice import SimulatedSlice

_PREFIXES = [(b"",), (b"A",), (b"A", b"C"), (b"B", b"D")]


class Consumer:
    """A named consumer that stores state and position atomically and may be killed at any time."""

    def __init__(self, world: World, prefixes: tuple[bytes, ...]) -> None:
        self._world, self.prefixes = world, prefixes
        self.state: list[tuple[int, int, bytes | None]] = []
        """Epoch, sequence and key of each delivered message. Key None: a sequence that its block leaves out."""
        self.reports: list[Report] = []
        self.wants: dict[bytes, Want] = {}
        self.image: list[Block] = []
        """Blocks of the image that are still to arrive."""
        self.gave_up = self.has_changed = False
        self.was_full = b"" in prefixes
        self.resumed: set[int] = set()
        self._kept: tuple[Position, list[tuple[int, int, bytes | None]], list[Report], dict[bytes, Want]] | None = None
        self.begun: Position | None = None
        self._arrived: set[tuple[int, int]] = set()
        """Received messages that are not delivered. A forgery empties it: contradicted messages may be dropped."""
        self.known_ends: dict[int, int] = {}
        """End of each earlier epoch that the consumer heard of while it was live."""
        random = world.random
        sources = [world.relay if world.relay and random.random() < 0.7 else world.publisher for _ in world.lines]
        self.pipes = [Pipe(world.loop, random, source, partial(self.take, line)) for line, source in enumerate(sources)]
        self.start()

    def start(self) -> None:
        world = self._world
        self.order = SimulatedSlice(
            self, self.prefixes, len(self.pipes), repairs=world.repairs, held_messages=world.held_limit
        )
        if any(archive.is_up and archive.is_reachable for archive in world.archives):
            self.order.state.answers = Answers.SOME
        self._cursor = Cursor(self, world.archives, world.random)
        self.heard: dict[int, int] = {}
        self.is_up, self._nonce, self.image = True, 0, []
        if self._kept is not None:
            position, state, reports, wants = self._kept
            self.state, self.reports = list(state), list(reports)
            self.wants = {key: want.copy() for key, want in wants.items()}
            self._begin(position)
            self._want(position)
        else:
            self.state.clear()
            self.reports.clear()
            self.wants.clear()
            self.begun = None
            sources = [each for each in world.archives if each.is_up and each.is_reachable and each.heard]
            if world.joins and sources:
                self.begun, self.image = sources[0].image(self.prefixes)
                self._begin(self.begun)
                self._want(self.begun)
                self._confirm_wants(self.begun)
            else:
                self._want(world.publisher_position)
        self.connect()

    @property
    def is_full(self) -> bool:
        """True if it has always received all keys."""
        return self.was_full and not self.has_changed

    def _begin(self, position: Position) -> None:
        self.order.begin(position, len(self.image))
        self.resumed.add(position.epoch)

    def connect(self) -> None:
        for pipe in self.pipes:
            if self.is_up and pipe.source.is_up and not pipe.is_up:
                pipe.forges = False
                pipe.connect(self.prefixes, self._nonce)

    def lose(self, pipe: Pipe) -> None:
        if pipe.is_up:
            pipe.break_()
            self.order.lost_line(self.pipes.index(pipe))

    def kill(self) -> None:
        self.is_up = False
        for pipe in self.pipes:
            pipe.break_()

    def join_again(self) -> None:
        """Forget everything, and begin with an image."""
        if self.is_up:
            self.kill()
            self._kept = None
            self.start()

    def change(self, prefixes: tuple[bytes, ...]) -> None:
        """Change the filters. While archives deliver, keys can only be removed."""
        is_live = self.order.state.phase == Phase.LIVE
        if prefixes != self.prefixes and (is_live or all(each.startswith(self.prefixes) for each in prefixes)):
            self.prefixes, self.has_changed = prefixes, True
            self.was_full |= b"" in prefixes
            self.order.change_filters(prefixes)
            self._want(self._world.publisher_position)
            self._ask()

    def _ask(self) -> None:
        self._nonce += 1
        for pipe in self.pipes:
            if pipe.is_up:
                pipe.ask(self.prefixes, self._nonce)

    def _want(self, start: Position) -> None:
        """Note which keys are wanted from now on. Forget the messages that a key had before."""
        for key in KEYS:
            want = self.wants.get(key)
            is_open = want is not None and want.end is None
            if key.startswith(self.prefixes) and not is_open:
                self.wants[key] = Want(start)
                self.state = [each for each in self.state if each[2] != key]
                self.reports = [each for each in self.reports if each.key != key]
            elif want is not None and is_open and not key.startswith(self.prefixes):
                want.end = self.order.order.position

    def _confirm_wants(self, position: Position) -> None:
        """Note that filters are confirmed at a position. A key begins with its first block if that came before."""
        for key, want in self.wants.items():
            if want.end is None and want.begin is None:
                first = next((Position(*each[:2]) for each in self.state if each[2] == key), position)
                want.begin = max(position, first)

    def _note_arrival(self, what: Block | Heartbeat | Confirm) -> None:
        log = self._world.publisher.log.get(what.epoch)
        if log is None or (what.end if isinstance(what, Block) else what.following) > log.end:
            self._arrived.clear()
        elif isinstance(what, Block):
            self._arrived.update((what.epoch, sequence) for sequence in range(what.sequence, what.end))

    def take(self, line: int, what: Block | Heartbeat | Confirm) -> None:
        if not self.is_up or (isinstance(what, Confirm) and what.nonce != self._nonce):
            return
        if isinstance(what, Block) and not what.key.startswith(self.prefixes):
            return  # a SUB socket filters what it receives
        self._note_arrival(what)
        now, order = ns(self._world.loop.now), self.order
        state = order.state
        before = state.epoch, max(state.proven, state.told_next if state.is_strict else 0), order.live_epoch
        heard = state.heard_next
        if isinstance(what, Block):
            order.live(line, what, now)
        elif isinstance(what, Heartbeat):
            order.heartbeat(line, *what, now)
        else:
            order.confirmed(line, *what[:3], now)
        if before[0] and state.epoch != before[0]:
            self.known_ends[before[0]] = before[1]
        self.heard[order.live_epoch] = state.heard_next
        if before[0] and order.live_epoch not in (0, before[2]):
            self.heard[before[2]] = max(heard, self.heard.get(before[2], 0))
        if order.is_unconfirmed:
            order.is_unconfirmed = False
            self._ask()
        elif state.is_strict and state.epoch and order.is_confirmed:
            if self.begun is None:
                self.begun = order.order.position
            if isinstance(what, Confirm):
                self._confirm_wants(Position(what.epoch, what.following))
        self._checkpoint()

    def _checkpoint(self) -> None:
        state, order = self.order.state, self.order.order
        is_exact = state.is_strict and self.begun and not state.images and order.is_clean
        if self._world.repairs and is_exact and self._world.random.random() < 0.3:
            wants = {key: want.copy() for key, want in self.wants.items()}
            self._kept = order.position, list(self.state), list(self.reports), wants

    def tick(self) -> None:
        if self.is_up:
            self.order.tick(ns(self._world.loop.now))
            self._cursor.poll(self._world.loop.now)

    def deliver(self, block: Block, first: int) -> None:
        if self.image:
            raise ModelError("delivered before the end of an image")
        for offset in range(first, block.span):
            is_message = not block.rows or offset in block.rows
            self.state.append((block.epoch, block.sequence + offset, block.key if is_message else None))
            self._arrived.discard((block.epoch, block.sequence + offset))

    def report(self, epoch: int, key: bytes | None, first: int, lost: int) -> None:
        if key is None and self.is_full and not self._world.repairs:
            for at in self._arrived:
                if (epoch, first) <= at < (epoch, first + lost):
                    raise ModelError(f"{at} was reported as lost, but arrived before")
        is_late = any(each[2] == key and each[:2] > (epoch, first) for each in self.state)
        self.gave_up |= is_late or self.order.state.answers != Answers.SOME  # archives are not asked
        self.reports.append(Report(epoch, key, first, lost))


class World:
    """One schedule."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.loop = Loop()
        self.held_limit = random.choice([5, 20, 200])
        self.publisher = Publisher(random.choice([0, 0, FAR]))
        self.repairs = random.random() < 0.75
        self.joins = random.random() < 0.3
        self.keys = KEYS[: random.randint(1, len(KEYS))]
        self.are_reliable = random.random() < 0.5
        archives = random.randint(1, 2) if self.repairs else 0
        self.archives = [Archive(self.loop, random, self.publisher) for _ in range(archives)]
        self.relay = Relay(self.loop, random, self.publisher) if random.random() < 0.3 else None
        self.lines = range(random.randint(1, 2))
        self.consumer = Consumer(self, random.choice(_PREFIXES))
        if self.joins and self.repairs:
            self.loop.at(random.random() * 100, self.consumer.join_again)

    @property
    def publisher_position(self) -> Position:
        return Position(self.publisher.epoch, self.publisher.next)

    def fault(self) -> None:
        random, consumer = self.random, self.consumer
        what = random.randint(0, 12)
        if what == 0:
            random.choice(consumer.pipes).drop = random.choice([0, 0.1, 0.5])
        elif what == 1:
            consumer.lose(random.choice(consumer.pipes))
            self.loop.at(random.random() * 30, consumer.connect)
        elif what == 2:
            self.publisher.restart()
        elif what == 6:
            for pipe in consumer.pipes:
                pipe.delay = random.choice([0.5, 3.0, 20.0])
        elif what == 7 and consumer.is_up and self.repairs:
            consumer.kill()
            self.loop.at(random.random() * 30, consumer.start)
        elif what == 9 and consumer.is_up:
            consumer.change(random.choice(_PREFIXES))
        elif what == 10:
            self.publisher.skip(random.choice([1, 3, FAR]))
        elif what == 11 and consumer.order.live_epoch:  # the first epoch is accepted at once
            random.choice(consumer.pipes).forges = True
        elif what == 12 and self.relay is not None and self.relay.is_up:
            self._harm_relay(self.relay)
        elif self.archives:
            self._harm_archive(what)

    def _harm_relay(self, relay: Relay) -> None:
        what, after = self.random.randint(0, 3), self.random.random() * 30

        def start() -> None:
            relay.start()
            self.consumer.connect()

        if what == 0:
            relay.up.drop = self.random.choice([0, 0.1, 0.5])
        elif what == 1:
            relay.up.delay = self.random.choice([0.5, 3.0, 20.0])
        elif what == 2 and relay.up.is_up:
            relay.break_up()
            self.loop.at(after, lambda: relay.connect_up() if relay.is_up and not relay.up.is_up else None)
        elif what == 3:
            for pipe in relay.pipes:
                self.consumer.lose(pipe)
            relay.kill()
            self.loop.at(after, start)

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
                span = random.randint(1, 3)
                rows = (0, 2) if span == 3 and random.random() < 0.3 else ()
                self.publisher.publish(random.choice(self.keys), span, rows)
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
        for pipe in (*self.publisher.pipes, *self.consumer.pipes):
            pipe.drop, pipe.delay, pipe.forges = 0.0, 1.0, False
        for archive in self.archives:
            archive.is_reachable = True
        loop.run(end + 50)  # by then all are connected and running
        while not is_settled(self) and loop.now < end + 350:
            loop.run(loop.now + 10)
        check(self)


def finding_of(seed: int) -> str:
    """Run the schedule of a seed. Return a description of the violation, or ""."""
    world = World(seed)
    consumer = world.consumer
    what = ["repairs" if world.repairs else "no repair", f"{len(consumer.pipes)} lines"]
    what += ["relay"] if any(pipe.source is world.relay for pipe in consumer.pipes) else []
    try:
        world.run()
    except ModelError as failure:
        what += ["changed"] if consumer.has_changed else []
        return f"seed {seed} ({', '.join(what)}, prefixes {consumer.prefixes}): {failure}"
    return ""
