"""Kill, stop and disconnect two hubs of a feed and their clients: each acknowledged put is published and read once.

Like `killed_hubs`, with a primary and a backup. At any moment either or both are killed or stopped, or their hosts lose
power. The link between them is cut while clients reach both.
"""

from __future__ import annotations

import signal
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from time import monotonic
from typing import Final

from blackbox.testing import wait_until
from tests.hub.pairs import ROLES, Hubs, pair_feed
from tests.hub.power import KEEP
from tests.torture.harmed_puts import PATIENCE_S, put_all
from tests.torture.killed_hubs import ACKED, GET, NOTES, PREPARE, PUT, WANTED, read_got
from tests.torture.nursery import Nursery
from tests.torture.outcome import Outcome
from tests.torture.schedules import run_schedules

SCHEDULES: Final = 25
"""Schedules before everything restarts in a fresh directory."""
_WRITERS: Final = ("numbers", "ids")
_HARMS: Final = (
    *("active killed", "active killed", "active stopped", "passive killed", "passive stopped", "both killed"),
    *("active unpowered", "passive unpowered", "both unpowered"),
    *("link cut", "numbers killed", "ids killed", "reader killed"),
)


class _House:
    """Two hubs, two clients that put and one that reads; they keep running between schedules."""

    def __init__(self, stack: ExitStack, random: Random, place: Path) -> None:
        self._random, self.place = random, place
        self.feed = feed = pair_feed("failing-hubs", slices=random.choice((1, 2)))
        self._acknowledged = random.choice(("recorded", "synced"))
        self.state = place / "got"
        self.state.write_bytes(b"[]")
        self.hubs = stack.enter_context(
            Hubs(feed, PREPARE + KEEP, silence_ns=random.choice((200_000_000, 500_000_000)))
        )
        self.of = {
            "reader": stack.enter_context(Nursery(feed, PREPARE + GET, notes=2)),
            **{who: stack.enter_context(Nursery(feed, NOTES + PREPARE + PUT, notes=2)) for who in _WRITERS},
        }
        self._stopped: set[str] = set()
        self.hubs.begin_both(place)
        self.begin("reader")
        wait_until(lambda: self.of["reader"].notes[0], PATIENCE_S, "the reader has subscribed")
        for who in _WRITERS:
            self.begin(who)

    def begin(self, who: str) -> None:
        seed = self._random.randrange(1 << 30)
        if who == "reader":
            self.of[who].begin((self.place / "reader", self.state, seed))
        else:
            self.of[who].begin((who, seed, self._acknowledged))

    def want(self, count: int) -> None:
        for who in _WRITERS:
            self.of[who].notes[WANTED] += count

    def go_on(self) -> None:
        self.hubs.cable.cut(False)
        for role in sorted(self._stopped):
            self.hubs.signal(role, signal.SIGCONT)
        self._stopped.clear()

    def harm(self, harm: str) -> None:
        who, how = harm.split()
        if who == "link":
            self.hubs.cable.cut()
        elif who in self.of:
            self.of[who].kill()
            self.begin(who)
        else:
            active = next((role for role in ROLES if self.hubs.life(role) == "active"), ROLES[0])
            passive = next(role for role in ROLES if role != active)
            in_step = sorted(self.hubs.lives().values()) == ["active", "armed"]
            if how == "unpowered" and self._acknowledged == "recorded" and (who == "both" or not in_step):
                how = "killed"  # a power cut may lose messages that neither a disk nor the other host has
            for role in {"active": (active,), "passive": (passive,), "both": ROLES}[who]:
                self._harm_hub(role, how)

    def _harm_hub(self, role: str, how: str) -> None:
        if how == "stopped":
            self.hubs.signal(role, signal.SIGSTOP)
            self._stopped.add(role)
            return
        self._stopped.discard(role)
        if how == "unpowered":
            self.hubs.cut_power(role, self._random)
        else:
            self.hubs.kill(role)
        if self._random.random() < 0.5:  # long enough for the other hub to take over
            until = monotonic() + 0.7
            wait_until(lambda: monotonic() > until, 10)
        self.hubs.begin(role)

    def is_acknowledged(self) -> bool:
        return all(self.of[who].notes[WANTED] == self.of[who].notes[ACKED] for who in _WRITERS)

    def has_got(self) -> bool:
        return bool(self.of["reader"].notes[1] == sum(int(self.of[who].notes[WANTED]) for who in _WRITERS))

    def run(self) -> None:
        put_all(self._random, self, ("active killed", *self._random.choices(_HARMS, k=self._random.randrange(4))))

    def end(self) -> None:
        """Stop both cleanly once both have all messages."""
        self.hubs.wait_for_step()
        self.hubs.end_both()

    def give_up(self) -> object:
        notes = {who: nursery.notes.tolist() for who, nursery in (self.of | self.hubs.of).items()}
        self.hubs.close()
        return self._acknowledged, notes

    def defects(self) -> Iterator[str]:
        """Yield defects in the published and read messages, after the hubs have ended."""
        said = self.hubs.published()
        for who in _WRITERS:
            mine = [
                (place, struct.unpack("<q", payload or b"")[0])
                for place, (topic, payload) in said.items()
                if topic[2:] == who.encode()
            ]
            expected = list(range(1, int(self.of[who].notes[WANTED]) + 1))
            if sorted(number for _, number in mine) != expected:
                yield f"{who}: {len(mine)} were published, expected 1 to {expected[-1]} once each"
            for slice_id in range(len(self.feed.slices)):
                numbers = [number for place, number in sorted(mine) if place[1] == slice_id]
                if numbers != sorted(numbers):
                    yield f"{who}: messages of slice {slice_id} were published in another order"
        for role in ROLES:
            if (has := self.hubs.published_by(role)) != said:
                yield f"the {role} has {len(has)} messages, expected all {len(said)}"
        got = [(epoch, slice_id, sequence) for slice_id, _, epoch, sequence in read_got(self.state)]
        if sorted(got) != sorted(said):
            yield f"{len(got)} messages were read, expected the {len(said)} published, each once"
        for slice_id in range(len(self.feed.slices)):
            mine_got = [place for place in got if place[1] == slice_id]
            if mine_got != sorted(mine_got):
                yield f"messages of slice {slice_id} were read in another order"


def attack(random: Random, seconds: float) -> Outcome:
    """Run schedules of puts and failing processes; at the end each message was published and read once."""
    return run_schedules(
        "schedules of failing hubs", seconds, SCHEDULES, lambda stack, place: _House(stack, random, place)
    )
