"""Like `raced_tables` for a feed with two hubs: either is killed at any moment and the other one takes over."""

from __future__ import annotations

from random import Random
from typing import Final

from blackbox import Feed
from tests.hub.pairs import ROLES, Hubs, pair_feed
from tests.torture.outcome import Outcome
from tests.torture.raced_tables import PREPARE, House
from tests.torture.schedules import run_schedules

SCHEDULES: Final = 25
"""Schedules before everything restarts in a fresh directory."""


class _House(House):
    """Two hubs."""

    def begin_hub(self) -> Feed:
        feed = pair_feed("raced-pairs", slices=self.random.choice((1, 2)))
        silence_ns = self.random.choice((200_000_000, 500_000_000))
        self._hubs = self.stack.enter_context(Hubs(feed, PREPARE, silence_ns=silence_ns))
        self._hubs.begin_both(self.place)
        return feed

    def kill_hub(self) -> None:
        """Kill and restart either hub."""
        role = self.random.choice(ROLES)
        self._hubs.kill(role)
        self._hubs.begin_soon(role, self.random)

    def end(self) -> None:
        self._hubs.wait_for_step()
        self._hubs.end_both()
        assert self._hubs.published_by(ROLES[0]) == self._hubs.published_by(ROLES[1]), (
            "the hubs have different messages"
        )

    def give_up(self) -> object:
        lives = self._hubs.lives()
        self._hubs.close()
        return lives, [writer.notes.tolist() for writer in self.writers]

    def published(self) -> list[tuple[int, int, int, bytes, bytes | None]]:
        return sorted((*place, *message) for place, message in self._hubs.published().items())


def attack(random: Random, seconds: float) -> Outcome:
    """Run schedules: each ends with equal digests and exact counters."""
    return run_schedules(
        "schedules of raced pairs", seconds, SCHEDULES, lambda stack, place: _House(stack, random, place)
    )
