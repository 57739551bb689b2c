"""Archives, and a consumer's requests to them, in virtual time."""

from __future__ import annotations

from random import Random
from typing import Protocol

from blackbox.block.position import End, Position
from blackbox.receive.order.state import Answers
from tests.simulation.network import Confirm, Heartbeat, Loop, Pipe, Source
from tests.simulation.simulated_slice import SentBlock as Block
from tests.simulation.simulated_slice import SimulatedSlice

END = 1 << 62
PATIENCE = 40.0


def ns(seconds: float) -> int:
    """Convert a virtual time to ns."""
    return int(seconds * 1e9)


class Archive:
    """A recorder of all keys, with its recorded blocks and contiguous ranges by epoch."""

    def __init__(self, loop: Loop, random: Random, source: Source) -> None:
        self.blocks: dict[int, list[Block]] = {}
        self.heard: dict[int, int] = {}
        """Sequence after the last message known to be sent, by epoch."""
        self.whole: dict[int, list[list[int]]] = {}
        self.told: dict[int, tuple[int, dict[bytes, End]]] = {}
        self.is_reachable = True
        self.pipe = Pipe(loop, random, source, self.take)
        self.start()

    def kill(self) -> None:
        self.is_up = False
        self.pipe.break_()

    def start(self) -> None:
        self.is_up = True
        self.pipe.connect((b"",))

    def take(self, what: Block | Heartbeat | Confirm) -> None:
        if self.heard and what.epoch < max(self.heard):
            return
        self.blocks.setdefault(what.epoch, [])
        whole = self.whole.setdefault(what.epoch, [])
        self.heard.setdefault(what.epoch, 0)
        if isinstance(what, Block):
            self.blocks[what.epoch].append(what)
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

    def image(self, prefixes: tuple[bytes, ...]) -> tuple[Position, list[Block]]:
        """Return the newest block of each wanted key, and the position that follows."""
        epoch = max(self.heard)
        newest = {each.key: each for of_epoch in self.blocks.values() for each in of_epoch}
        return Position(epoch, self.heard[epoch]), [each for key, each in newest.items() if key.startswith(prefixes)]


class Reading(Protocol):
    """A consumer that reads archives."""

    order: SimulatedSlice
    gave_up: bool
    image: list[Block]


class Cursor:
    """Reads archives for one consumer."""

    def __init__(self, consumer: Reading, archives: list[Archive], random: Random) -> None:
        self._consumer, self._archives, self._random = consumer, archives, random
        self._request, self._quiet_since = 0, 0.0
        self._prefixes: tuple[bytes, ...] = ()

    def poll(self, now: float) -> None:
        """Deliver one piece, or handle a gap."""
        order = self._consumer.order
        if (at := order.cursor) is None:
            return
        if self._consumer.image:
            self._consumer.image.pop()
            order.image(ns(now))
            return
        request = order.state.request
        if request != self._request:
            self._request, self._quiet_since, self._prefixes = request, now, order.prefixes
        asked = [each for each in self._archives if each.is_reachable and (each.is_up or self._random.random() < 0.9)]
        self._random.shuffle(asked)
        if asked:
            order.state.answers = Answers.SOME
        for archive in asked:
            stop = archive.cover(at)
            if stop > at.sequence:
                self._quiet_since = now
                self._bring(archive, at, stop, ns(now))
                return
        self._lack(at, asked, now)

    def _bring(self, archive: Archive, at: Position, stop: int, now: int) -> None:
        order = self._consumer.order
        chunk, passed = self._random.randint(1, 6), at.sequence
        for block in archive.blocks[at.epoch]:
            if block.end > at.sequence and block.sequence < stop:
                if chunk == 0:
                    break
                chunk -= 1
                passed = block.end
                if block.key.startswith(self._prefixes):
                    order.archived(self._request, block, now)
        order.passed(self._request, at.epoch, passed, now, is_all=False)

    def _lack(self, at: Position, asked: list[Archive], now: float) -> None:
        """Handle a next message that no archive has: wait, report a gap, continue with the next epoch or give up."""
        order, request = self._consumer.order, self._request
        lacks = [each.lacks(at) for each in asked]
        is_patient = now - self._quiet_since < PATIENCE
        if is_patient and (len(asked) < len(self._archives) or None in lacks):
            order.passed(request, at.epoch, at.sequence, ns(now), is_all=None in lacks)
            return
        known = [each for each in lacks if each is not None]
        stop = min(known, default=END)
        self._quiet_since = now
        self._consumer.gave_up |= len(asked) < len(self._archives)
        if stop < END:
            order.gone(request, at.epoch, stop, ns(now))
        elif known and len(known) == len(lacks):
            for each in asked:
                order.told(request, at.epoch, *each.told.get(at.epoch, (0, {})))
            epochs = {epoch for each in asked for epoch in each.heard if epoch > at.epoch}
            order.passed(request, min(epochs), 0, ns(now), is_all=False)
        else:
            self._consumer.gave_up = True
            order.give_up(request, ns(now))
