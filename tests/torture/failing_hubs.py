"""Kill, stop and disconnect two hubs of a feed and their clients: each acknowledged put is published and read once.

Like `killed_hubs`, with a primary and a backup. At any moment either or both are killed or stopped, or their hosts lose
power. The link between them is cut while clients reach both.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from random import Random
from typing import ClassVar

from blackbox import Feed
from tests.hub.pairs import ROLES, Hubs, pair_feed
from tests.hub.power import KEEP
from tests.torture.killed_hubs import PREPARE, SCHEDULES, House, Messages
from tests.torture.outcome import Outcome
from tests.torture.schedules import run_schedules


class _House(House):
    """Two hubs."""

    HARMS: ClassVar[tuple[str, ...]] = (
        *("active killed", "active killed", "active stopped", "passive killed", "passive stopped", "both killed"),
        *("active unpowered", "passive unpowered", "both unpowered"),
        *("link cut", "numbers killed", "ids killed", "reader killed"),
    )

    def begin_hubs(self) -> Feed:
        feed = pair_feed("failing-hubs", slices=self.random.choice((1, 2)))
        silence_ns = self.random.choice((200_000_000, 500_000_000))
        self._hubs = self.stack.enter_context(Hubs(feed, PREPARE + KEEP, silence_ns=silence_ns))
        self._hubs.begin_both(self.place)
        return feed

    def go_on(self) -> None:
        self._hubs.cable.cut(False)
        super().go_on()

    def harm(self, harm: str) -> None:
        who, how = harm.split()
        if who == "link":
            self._hubs.cable.cut()
        elif who in self.of:
            super().harm(harm)
        else:
            active = next((role for role in ROLES if self._hubs.life(role) == "active"), ROLES[0])
            passive = next(role for role in ROLES if role != active)
            in_step = sorted(self._hubs.lives().values()) == ["active", "armed"]
            if how == "unpowered" and self.acknowledged == "recorded" and (who == "both" or not in_step):
                how = "killed"  # a power cut may lose messages that neither a disk nor the other host has
            for role in {"active": (active,), "passive": (passive,), "both": ROLES}[who]:
                self._harm_hub(role, how)

    def _harm_hub(self, role: str, how: str) -> None:
        nursery = self._hubs.of[role]
        if how == "stopped":
            nursery.signal(signal.SIGSTOP)
            self.stopped.append(nursery)
            return
        self.stopped = [each for each in self.stopped if each is not nursery]
        if how == "unpowered":
            self._hubs.cut_power(role, self.random)
        else:
            self._hubs.kill(role)
        self._hubs.begin_soon(role, self.random)

    def end(self) -> None:
        """Stop both cleanly once both have all messages."""
        self._hubs.wait_for_step()
        self._hubs.end_both()

    def give_up(self) -> object:
        notes = {who: nursery.notes.tolist() for who, nursery in (self.of | self._hubs.of).items()}
        self._hubs.close()
        return self.acknowledged, notes

    def published(self) -> Messages:
        return sorted((*place, *message) for place, message in self._hubs.published().items())

    def defects(self) -> Iterator[str]:
        yield from self.defects_of(self.published())
        said = self._hubs.published()
        for role in ROLES:
            if (has := self._hubs.published_by(role)) != said:
                yield f"the {role} has {len(has)} messages, expected all {len(said)}"


def attack(random: Random, seconds: float) -> Outcome:
    """Run schedules of puts and failing processes; at the end each message was published and read once."""
    return run_schedules(
        "schedules of failing hubs", seconds, SCHEDULES, lambda stack, place: _House(stack, random, place)
    )
