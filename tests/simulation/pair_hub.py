"""A simulated host with one hub of a pair: the shipped machine and judge, on a simulated disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blackbox.services.hub.pair.machine import PairMachine
from blackbox.services.hub.pair.protocol import Follow, Kept, Lead
from blackbox.services.hub.protocol import Ended, FindSites, FoundSites
from blackbox.services.hub.server.judge import Answer, Judge, Request
from tests.simulation.pair_disk import Disk, SimHistory
from tests.simulation.pair_journals import KilledError, SimJournals

if TYPE_CHECKING:
    from tests.simulation.pair_world import PairWorld

REMEMBERED = 10_000, 10_000, 100


class SimHub:
    """A hub, its clock and its disk; `Shell` of the machine, and `Around` of its judge."""

    def __init__(self, world: PairWorld, at: int) -> None:
        self.world, self.at = world, at
        self.disk = Disk(world.feed, world.pairs[at].role)
        self.journals = SimJournals(world, self.disk)
        self.machine: PairMachine | None = None
        self.requests: list[Request] = []
        self.skew_ns = 0
        self.paused_until = 0.0
        self._wakes_at = -1.0
        self._syncs_at = 0.0

    # Life.

    @property
    def is_up(self) -> bool:
        return self.machine is not None

    def start(self) -> None:
        if self.is_up:
            return
        disk, world = self.disk, self.world
        self.requests, self.paused_until = [], 0.0
        if is_cut := disk.has_lost_power:
            history = SimHistory(disk)
            history.cut_back(history.newest()[0])
            disk.note_sizes()
        try:
            self.machine = machine = PairMachine(SimHistory(disk), disk.kept, world.pairs[self.at], self, self.journals)
            if disk.kept.epoch:
                self.journals.begin_epoch(disk.kept.epoch)
            machine.begin(is_told_alone=False, is_cut=is_cut)
        except KilledError:
            self._end()
            return
        self.wake()

    def kill(self, *, cuts_power: bool = False) -> None:
        self._end()
        if cuts_power:
            self.disk.cut_power(self.world.random)

    def _end(self) -> None:
        if self.machine is not None:
            self.machine = None
            self.world.link_lost(self.at)
        self.journals.killed_after = -1

    def wake(self) -> None:
        """Run a step soon."""
        self._wake_at(self.world.loop.now)

    def _wake_at(self, when: float) -> None:
        when = max(when, self.paused_until)
        if self._wakes_at < self.world.loop.now or when < self._wakes_at:
            self._wakes_at = when
            self.world.loop.at_time(when, lambda: self._run(when))

    def _run(self, when: float) -> None:
        if when == self._wakes_at:
            self._wakes_at = -1.0
            self.step(None, None)

    def step(self, lead: Lead | None, follow: Follow | None) -> None:
        """Run the machine once."""
        machine, now = self.machine, self.world.loop.now
        if machine is None:
            return
        if now < self.paused_until:
            self._wake_at(self.paused_until)
            return
        requests: list[Request] = []
        if machine.takes_requests:
            requests, self.requests = self.requests, []
        try:
            if now >= self._syncs_at:  # an outbox has such a thread
                self._syncs_at = now + self.world.sync_interval
                for slice_id in range(len(self.disk.slices)):
                    self.disk.sync(slice_id)
            machine.step(now, lead, follow, requests)
        except KilledError:
            self._end()
            return
        self._check_lead(machine)
        if self.machine is machine:
            again = bool(self.requests) and machine.takes_requests
            self._wake_at(now if again else now + max(0.01, machine.wait_s(now)))

    def _check_lead(self, machine: PairMachine) -> None:
        """Check that a hub which does not lead would not do so after a restart, and that only one hub leads alone."""
        state, world = machine.state, self.world
        world.model.check(state.is_active or not state.kept.is_alone, "a passive hub would lead alone after a restart")
        other = world.hubs[1 - self.at].machine
        if world.pairs[self.at].when_cut == "wait" and not world.may_differ and other is not None:
            is_lone = [each.is_active and each.kept.is_alone for each in (state, other.state)]
            world.model.check(not all(is_lone), "two hubs lead alone")

    def hear(self, lead: Lead | None, follow: Follow | None) -> None:
        """Take a message of the peer, once it is not paused."""
        if self.world.loop.now < self.paused_until:
            machine = self.machine
            self.world.loop.at_time(
                self.paused_until, lambda: self.hear(lead, follow) if self.machine is machine else None
            )
        else:
            self.step(lead, follow)

    def take(self, request: Request) -> None:
        if self.is_up and len(self.requests) < 50:
            self.requests.append(request)
            self.wake()

    # Shell.

    def now_ns(self) -> int:
        return 10**18 + int(self.world.loop.now * 1e9) + self.skew_ns

    def keep(self, kept: Kept) -> None:
        self.journals.operate()
        if self.disk.kept.is_cut and kept.is_alone:
            other = self.world.hubs[1 - self.at].disk
            if SimHistory(other).newest()[0] > SimHistory(self.disk).newest()[0]:
                assert self.machine is not None
                self.world.model.check(self.machine._talk.is_silent, "a hub leads without asking the other one")
                self.world.may_differ = True
        self.disk.kept = kept

    def read_history(self) -> Judge:
        judge = Judge(self.world.feed, REMEMBERED, self)
        SimHistory(self.disk).tell(judge.table, judge.conditions.deadlines, judge.topics)
        judge.begin(self.journals.epoch, self.journals.ends)
        return judge

    def read_days(self, judge: Judge) -> None:
        judge.conditions.read(self.disk.newest_places)

    def ask(self, follow: Follow) -> None:
        self.world.carry(self.at, follow)

    def answer(self, lead: Lead) -> None:
        self.world.carry(self.at, lead)

    def send(self, client: bytes, answer: Answer) -> None:
        client.answer(answer)  # type: ignore[attr-defined]  # a connection

    # Around.

    def put_rights(self, key: str) -> tuple[bytes, ...] | None:
        return None

    def may_read(self, prefix: bytes, key: str) -> bool:
        return True

    def find_sites(self, request: FindSites, key: str) -> FoundSites | Ended:
        return Ended("no sites")
