"""A simulated host with one hub of a pair: the shipped machine and judge, on a simulated disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blackbox.services.hub.pair.machine import PairMachine
from blackbox.services.hub.pair.messages import Entry, Follow, Kept, Lead, Part
from blackbox.services.hub.protocol import Ended, FindSites, FoundSites
from blackbox.services.hub.server.judge import Answer, Judge, Request, Turn
from tests.simulation.pair_disk import Disk, SimBlock, SimEntries, SimHistory, check_epoch, entry_of

if TYPE_CHECKING:
    from tests.simulation.pair_world import PairWorld

REMEMBERED = 10_000, 10_000, 100
_BLOCK_MESSAGES = 2
_KEPT_DAYS = 3


class KilledError(Exception):
    """The process ends here."""


class SimHub:
    """A hub, its clock and its disk; `Shell` and `Around` of the machine."""

    def __init__(self, world: PairWorld, at: int) -> None:
        self.world, self.at = world, at
        self.disk = Disk(world.feed, world.pairs[at].role)
        self.machine: PairMachine | None = None
        self.requests: list[Request] = []
        self.skew_ns = 0
        self.killed_after = -1
        """Operations of the disk until a kill; -1: none."""
        self.paused_until = 0.0
        self._wakes_at = -1.0
        self._epoch = 0
        self._following: list[int] = []
        self._limit = 0
        self._syncs_at = 0.0

    # Life.

    @property
    def is_up(self) -> bool:
        return self.machine is not None

    def start(self) -> None:
        """Begin a process."""
        if self.is_up:
            return
        disk, world = self.disk, self.world
        self.requests, self.paused_until = [], 0.0
        if is_cut := disk.has_lost_power:
            history = SimHistory(disk)
            history.cut_back(history.newest()[0])
            disk.note_sizes()
        try:
            self.machine = machine = PairMachine(SimHistory(disk), disk.kept, world.pairs[self.at], self, self)
            if disk.kept.epoch:
                self.begin_epoch(disk.kept.epoch)
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
        self.killed_after = -1

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
        if self.machine is machine:
            again = bool(self.requests) and machine.takes_requests
            self._wake_at(now if again else now + max(0.01, machine.wait_s(now)))

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

    def _operate(self) -> None:
        """Count an operation of the disk; the process may end before it."""
        if self.killed_after == 0:
            raise KilledError
        self.killed_after -= self.killed_after > 0

    # Shell.

    def now_ns(self) -> int:
        return 10**18 + int(self.world.loop.now * 1e9) + self.skew_ns

    def keep(self, kept: Kept) -> None:
        self._operate()
        if self.disk.kept.is_cut and kept.is_alone:
            other = self.world.hubs[1 - self.at].disk
            if SimHistory(other).newest()[0] > SimHistory(self.disk).newest()[0]:
                assert self.machine is not None
                self.world.model.check(self.machine._talk.is_silent, "a hub leads without asking the other one")
                self.world.may_differ = True
        self.disk.kept = kept

    def begin_epoch(self, epoch: int) -> None:
        disk = self.disk
        self._operate()
        check_epoch(disk, epoch)
        if not disk.has_lost_power or disk.boot_epoch != epoch:
            disk.has_lost_power, disk.boot_epoch = False, epoch
        self._epoch = epoch
        self._following = [disk.reached(slice_id, epoch) for slice_id in range(len(disk.slices))]
        disk.open(epoch)

    def read_history(self) -> Judge:
        judge = Judge(self.world.feed, REMEMBERED, self)
        SimHistory(self.disk).tell(judge.table, judge.conditions.deadlines, judge.topics)
        judge.begin(self._epoch, self._following)
        return judge

    def read_days(self, judge: Judge) -> None:
        judge.conditions.read(self.disk.newest_places)

    def entry_of(self, turn: Turn) -> Entry:
        following = list(self._following)
        cut: dict[int, list[list[tuple[bytes, bytes | None]]]] = {}
        for columns, topics, rows, _ in turn.fresh:
            messages: dict[int, list[tuple[bytes, bytes | None]]] = {}
            for row in rows.tolist():
                topic = topics[columns.index[row]]
                payload = columns.data[columns.starts[row] : columns.stops[row]].tobytes()
                value = payload if columns.has_value(row) else None
                messages.setdefault(self.world.feed.slice_of(topic), []).append((topic, value))
            for slice_id, mine in messages.items():
                size = len(mine) if columns.is_one else _BLOCK_MESSAGES
                cut.setdefault(slice_id, []).extend(mine[at : at + size] for at in range(0, len(mine), size))
        parts: dict[int, list[tuple[bytes, list[SimBlock]]]] = {}
        for slice_id, note in turn.notes.items():
            blocks = list[SimBlock]()
            for each in cut.get(slice_id, []):
                blocks.append(SimBlock(self._epoch, blocks[-1].end if blocks else following[slice_id], tuple(each)))
            parts[slice_id] = [(note, blocks)]
        return entry_of(turn.number, parts)

    def blocks_of(self, entry: Entry) -> list[list[Any]]:
        return [list(part.blocks) for part in entry.parts]

    def following(self, slice_id: int) -> int:
        return self._following[slice_id]

    def append(self, part: Part, blocks: Sequence[Any]) -> None:
        self._operate()
        self._delete()
        self.disk.append(part.slice_id, part.note)
        for block in blocks:
            self._operate()
            assert block.epoch == self._epoch, "a block of another epoch"
            self.disk.append(part.slice_id, block)
            self._following[part.slice_id] = block.end
            self.world.model.published(part.slice_id, block)

    def sync(self) -> None:
        for slice_id in range(len(self.disk.slices)):
            self._operate()
            self.disk.sync(slice_id)

    def day(self) -> Path:
        return Path(f"{self.disk.day():06}")

    def delete_before(self, day: Path) -> None:
        self._limit = int(day.name)
        self._delete()

    def _delete(self) -> None:
        if self.world.deletes:
            self.disk.delete_before(min(self._limit, self.disk.today - _KEPT_DAYS))

    def entries(self, first: int) -> SimEntries:
        return SimEntries(self.disk, first)

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
