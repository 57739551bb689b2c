"""The schedule of a pair of hubs: clients, faults and the network are drawn from a seed."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from random import Random
from typing import Any
from unittest.mock import patch

from blackbox import Feed
from blackbox.services.hub.pair.leadership import PairLife
from blackbox.services.hub.pair.protocol import Follow, Lead, Pair
from blackbox.services.hub.server import client_table as table
from blackbox.services.hub.server import judge, notes
from tests.simulation.network import Loop
from tests.simulation.pair_client import SimClient
from tests.simulation.pair_disk import SimHistory
from tests.simulation.pair_hub import SimHub
from tests.simulation.pair_model import PairModel

_SILENCE_NS = 8 * 10**9
_SCHEDULE_S = 50.0
_SETTLE_S = 150.0
_FEED = Feed.local("pair", slices=2, lines=2)
_ROLES = ("primary", "backup")
_log = logging.getLogger("blackbox")


class PairWorld:
    """One schedule."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.loop, self.feed = Loop(), _FEED
        links = ("tcp://127.0.0.1:1", "tcp://127.0.0.1:2")
        self.pairs = [
            Pair(role=role, link=links[at], peer=links[1 - at], silence_ns=_SILENCE_NS)  # type: ignore[arg-type]
            for at, role in enumerate(_ROLES)
        ]
        self.model = PairModel(self.feed, lambda: self.loop.now)
        self.sync_interval = random.choice([1.0, 10.0, 1e9])
        self.deletes = random.random() < 0.3
        self.cuts_power = random.random() < 0.5
        self.may_differ = False
        """True if a hub that was alone lost power, and led without the other one, which has turns that it lost."""
        self.are_faults_over = False
        self._cut = [False, False]
        """For each sender, True if its messages on the link are lost."""
        self._client_cut = [False, False]
        self._delay = 0.1
        self._lives = [0, 0]
        self._last = [0.0, 0.0]
        self.hubs = [SimHub(self, at) for at in range(2)]
        self.model.disks = [hub.disk for hub in self.hubs]
        self.clients = [SimClient(self, number) for number in range(random.randint(1, 3))]
        for hub in self.hubs:
            self.loop.at(random.random(), hub.start)

    # Network.

    def link_lost(self, at: int) -> None:
        """Lose the messages in flight to and from a process that has ended."""
        self._lives[at] += 1

    def carry(self, at: int, what: Follow | Lead) -> None:
        """Carry a message from a hub to the other one, in order unless it takes a new connection."""
        random, to = self.random, 1 - at
        if self._cut[at] and random.random() < 0.7:
            return
        if not self.are_faults_over and random.random() < 0.01:
            return
        delay = self._delay * random.random()
        is_in_order = self.are_faults_over or random.random() < 0.98
        when = max(self._last[at], self.loop.now + delay) if is_in_order else self.loop.now + 20 * delay
        if is_in_order:
            self._last[at] = when
        life, lead = self._lives[to], what if isinstance(what, Lead) else None
        follow = what if isinstance(what, Follow) else None

        def arrive() -> None:
            if self._cut[at]:  # it arrives once the link heals
                self.loop.at(1.0, arrive)
            elif life == self._lives[to]:
                self.hubs[to].hear(lead, follow)

        self.loop.at_time(when, arrive)

    def loses(self, at: int) -> bool:
        """Return True if a connection of a client with a hub loses its current message."""
        return self._client_cut[at] or (not self.are_faults_over and self.random.random() < 0.01)

    # Faults.

    def fault(self) -> None:
        random, loop = self.random, self.loop
        at = random.randint(0, 1)
        hub, what = self.hubs[at], random.randint(0, 11)
        if what <= 2:
            hub.kill()
            loop.at(random.choice([0.1, 3.0, 15.0]) * random.random(), hub.start)
        elif what == 3:
            hub.journals.killed_after = random.randint(0, 12)
            loop.at(5 + 10 * random.random(), hub.start)
        elif what == 4 and self.cuts_power:
            for each in self.hubs if random.random() < 0.4 else [hub]:
                self._cut_power(each)
        elif what == 5:
            hub.paused_until = loop.now + random.choice([1.0, 12.0, 20.0])
        elif what in (6, 7):
            self._cut = [at == 0 or what == 6, at == 1 or what == 6]
            loop.at(20 * random.random(), self._heal)
        elif what == 8:
            self._client_cut[at] = True
            loop.at(15 * random.random(), self._heal)
        elif what == 9:
            hub.skew_ns = random.choice([-3600, 0, 60, 3600]) * 10**9
        elif what == 10:
            self._delay = random.choice([0.05, 0.3, 2.0])
            for each in self.hubs:
                each.disk.today += 1
        elif what == 11:
            random.choice(self.clients).begin()

    def _cut_power(self, hub: SimHub) -> None:
        before, other = SimHistory(hub.disk).newest()[0], SimHistory(self.hubs[1 - hub.at].disk).newest()[0]
        hub.kill(cuts_power=True)
        self.model.has_cut = True
        after = SimHistory(hub.disk).newest()[0]
        if before > (after if hub.disk.kept.is_alone else max(after, other)):
            self.model.lose_turns()
        self.loop.at(10 * self.random.random(), hub.start)

    def _heal(self) -> None:
        self._cut, self._client_cut = [False, False], [False, False]

    # The run.

    def run(self) -> None:
        """Run the schedule, then run without faults until the pair is in step again. Raises ModelError."""
        random, loop = self.random, self.loop
        loop.run(3.0)
        while loop.now < _SCHEDULE_S:
            loop.run(loop.now + random.choice([0.05, 0.5, 1.0, 3.0]) * random.random())
            if random.random() < 0.25:
                self.fault()
            else:
                random.choice(self.clients).act()
        self.are_faults_over = True
        self._delay = random.choice([0.1, 0.1, 2.0])  # 2 s: an answer comes after the next question
        loop.run(loop.now + 25)
        for hub in self.hubs:
            hub.paused_until, hub.journals.killed_after = 0.0, -1
            hub.start()
        self.settle(_SETTLE_S)
        self.model.end([hub.disk.kept for hub in self.hubs])
        self._check_memory()

    def settle(self, most_s: float) -> None:
        """Run until the hubs are in step and all clients have their answers."""
        until = self.loop.now + most_s
        while not self._is_settled and self.loop.now < until:
            self.loop.run(self.loop.now + 1.0)
        self.model.check(self._is_settled, f"hangs: {self._lives_of_hubs()}, {[each.is_idle for each in self.clients]}")

    def _lives_of_hubs(self) -> list[str]:
        return ["ended" if hub.machine is None else hub.machine.state.life.value for hub in self.hubs]

    @property
    def _is_settled(self) -> bool:
        if sorted(self._lives_of_hubs()) != ["active", "armed"] or not all(each.is_idle for each in self.clients):
            return False
        one, other = (hub.machine.state for hub in self.hubs if hub.machine is not None)
        return one.standing.newest == other.standing.newest and one.proposed == other.proposed == 0

    def _check_memory(self) -> None:
        """Check that both hubs know from their journals what the active one knows."""
        known = [_known_to(hub.read_history()) for hub in self.hubs]
        active = next(hub for hub in self.hubs if hub.machine is not None and hub.machine.state.life is PairLife.ACTIVE)
        assert active.machine is not None
        assert active.machine.judge is not None
        lives = _known_to(active.machine.judge)
        for name, mine in lives.items():
            for hub, each in zip(self.hubs, known, strict=True):
                if not self.deletes or name == "clients":
                    self.model.check(each[name] == mine, f"hub {hub.at} forgets {name}: {each[name]}, not {mine}")
                elif isinstance(mine, dict):  # answers and ids are forgotten with their days
                    agree = all(each[name].get(key, value) == value for key, value in mine.items())
                    self.model.check(agree, f"hub {hub.at} knows other {name}: {each[name]}, not {mine}")


def _known_to(of: judge.Judge) -> dict[str, Any]:
    return {
        "clients": sorted(of.table.clients()),
        "answers": {key: each[2:] for key, each in of.table._answers.items()},
        "ids": {key: each[2] for key, each in of.table._ids.items()},
        "topics": sorted(of.topics.all()),
        "deadlines": sorted(of.conditions.deadlines.items()),
    }


def pair_finding_of(seed: int) -> str | None:
    """Run a schedule; return the violation and its seed, or None."""
    level = _log.level
    _log.setLevel(logging.CRITICAL + 1)
    with ExitStack() as stack:
        stack.callback(lambda: _log.setLevel(level))
        for module, name, value in (
            (judge, "MOST_SINCE_SNAPSHOT", 10 * judge.TURN_BYTES),
            (judge, "MOST_PART_BYTES", 300),
            (notes, "MOST_PART_BYTES", 300),
            (table, "_MOST_READ", 25),
        ):
            stack.enter_context(patch.object(module, name, value))
        world = PairWorld(seed)
        try:
            world.run()
        except Exception as error:  # noqa: BLE001 - reported with its seed
            is_documented = (world.deletes and "lacks more than the journals still have" in str(error)) or (
                world.may_differ and "has puts that the other hub lacks" in str(error)
            )
            if is_documented:
                return None
            return f"pair seed {seed}: {type(error).__name__}: {error}"
    return None
