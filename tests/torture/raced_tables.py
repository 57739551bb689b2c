"""Race writers of tables, kill their hub, join late, drop and rejoin: all tables end equal with exact counters.

Two processes increment counters by compare-and-set, put and delete topics, and put values that expire. Tables join here
meanwhile; the contents of each when synced are compared with everything published up to its `at`. Each value with a
time to live expires once or is renewed before, and no other value expires.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from time import monotonic
from typing import Final

from blackbox import Feed, Subscriber
from blackbox.block.position import Position
from blackbox.errors import ArchiveError, NotConfirmedError
from blackbox.subscriber.table import Table
from blackbox.testing import wait_until
from tests.hub.hubs import HUB, hub_feed, published
from tests.torture.nursery import Nursery
from tests.torture.outcome import Outcome
from tests.torture.schedules import run_schedules

PREPARE: Final = """
def prepare():
    import logging, tempfile
    from tests.hub.hubs import hub_feed
    logging.disable()
    with tempfile.TemporaryDirectory() as place:
        feed = hub_feed("warm")
        with Hub(feed, place), HubClient(feed) as client:
            subscriber = Subscriber(feed, on_gap="repair")
            table = subscriber.table(b"", client=client)
            subscriber.start(60, snapshot="latest")
            table.wait(table.put(b"A", b"1", if_at=NOWHERE, ttl=60, timeout=60), 60)
            subscriber.terminate()
"""
COUNTERS: Final = 3
WANTED, DONE, EACH = 0, 1, 2
"""Notes of a writer: increments requested, increments acknowledged, and those of each counter."""
WRITE: Final = """
def work(name, seed):
    import random
    chance = random.Random(int(seed))
    client = HubClient(feed).start()
    subscriber = Subscriber(feed, on_gap="repair", repair_wait=60)
    table = subscriber.table(b"", client=client)
    subscriber.start(120, snapshot="latest")
    table.wait_synced(120)
    while True:
        wait_until(lambda: notes[0] > notes[1], 3600)
        mine = b"%s.%d" % (name.encode(), chance.randrange(5))
        kind = chance.randrange(4)
        if kind == 0:
            table.delete(b"mine." + mine, timeout=120)
        elif kind == 1:
            table.put(b"mine." + mine, b"%d" % chance.randrange(99), timeout=120)
        elif kind == 2:
            ttl = chance.choice((None, 0.01, 0.2))
            table.put(b"brief." + mine, b"stays" if ttl is None else b"ends", ttl=ttl, timeout=120)
        counter = chance.randrange(3)
        topic = b"counter.%d" % counter
        while True:
            entry = table.entry(topic)
            at = NOWHERE if entry is None else entry.place
            try:
                place = table.put(topic, b"%d" % (int(entry.payload if entry else b"0") + 1), if_at=at, timeout=120)
                break
            except ConflictError as error:
                table.wait(error.found, 120)
        notes[2 + counter] += 1
        notes[1] += 1
"""
SCHEDULES: Final = 40
"""Schedules before everything restarts in a fresh directory."""
_PATIENCE_S: Final = 120.0


class House:
    """A hub, two writers and some tables in this process, which keep running between schedules."""

    def __init__(self, stack: ExitStack, random: Random, place: Path) -> None:
        self.random, self.place, self.stack = random, place, stack
        self.feed = self.begin_hub()
        self.writers = [stack.enter_context(Nursery(self.feed, PREPARE + WRITE, 2 + COUNTERS)) for _ in range(2)]
        self.tables: list[tuple[Subscriber, Table]] = []
        self._synced: list[tuple[dict[bytes, bytes], dict[int, Position]]] = []
        """Contents of tables when they were synced."""
        stack.callback(self._end)
        for number, writer in enumerate(self.writers):
            writer.begin((f"w{number}", random.randrange(1 << 30)))

    # Overridden for a pair of hubs.

    def begin_hub(self) -> Feed:
        """Start the hub; return its feed."""
        feed = hub_feed("raced-tables", slices=self.random.choice((1, 2)))
        self._hub = self.stack.enter_context(Nursery(feed, PREPARE + HUB, 1))
        self._hub.begin((self.place,))
        return feed

    def kill_hub(self) -> None:
        self._hub.kill()
        self._hub.begin((self.place,))

    def end(self) -> None:
        """Stop the hub cleanly, so that all acknowledged puts are published."""
        self._hub.kill()

    def give_up(self) -> object:
        """Kill the hub; return the notes of the writers."""
        self._hub.kill()
        return [writer.notes.tolist() for writer in self.writers]

    def published(self) -> list[tuple[int, int, int, bytes, bytes | None]]:
        """Return all published messages, after the hub has ended."""
        return published(self.place, self.feed)

    # Common to single hubs and pairs.

    def _end(self) -> None:
        for subscriber, _ in self.tables:
            subscriber.terminate()

    def answered(self, counter: int) -> int:
        return sum(int(writer.notes[EACH + counter]) for writer in self.writers)

    def is_done(self) -> bool:
        return all(writer.notes[DONE] == writer.notes[WANTED] for writer in self.writers)

    def join(self) -> None:
        until = monotonic() + _PATIENCE_S
        while True:
            subscriber = Subscriber(self.feed, on_gap="repair", repair_wait=60)
            table = subscriber.table(b"")
            try:
                subscriber.start(30, snapshot="latest")
                break
            except (ArchiveError, NotConfirmedError):  # the hub was killed
                subscriber.terminate()
                if monotonic() > until:
                    raise
        wait_until(lambda: table.synced, _PATIENCE_S, "a table is synced")
        self._synced.append(table.snapshot())
        self.tables.append((subscriber, table))

    def defects(self) -> Iterator[str]:
        """Yield differences between synced tables and the published messages, and wrong expiries."""
        said = self.published()
        for has, at in self._synced:
            expected: dict[bytes, bytes] = {}
            for epoch, slice_id, sequence, topic, payload in said:
                if (epoch, sequence) < at.get(slice_id, (0, 0)):
                    expected.pop(topic, None)
                    if payload is not None:
                        expected[topic] = payload
            if has != expected:
                differ = sorted(has.items() ^ expected.items())
                yield f"a table synced at {at} differs from the published messages in {differ}"
        newest: dict[bytes, bytes | None] = {}
        for *place, topic, payload in said:
            before = newest.get(topic)
            if topic.startswith(b"brief.") and payload is None and before != b"ends":
                yield f"{topic!r} expired at {place}, after {before!r}"
            newest[topic] = payload

    def drop(self) -> None:
        if self.tables:
            self.tables.pop(self.random.randrange(len(self.tables)))[0].terminate()

    def run(self) -> None:
        """Let both writers increment at once, with harms meanwhile."""
        harms = self.random.choices(("kill", "join", "drop and join"), k=self.random.randrange(1, 4))
        if len(self.tables) < 2:
            harms.append("join")
        for harm in harms:
            for writer in self.writers:
                writer.notes[WANTED] += self.random.randrange(1, 12)
            if self.random.random() < 0.3:
                wait_until(self.is_done, _PATIENCE_S, "all increments are acknowledged")
            if harm == "kill":
                self.kill_hub()
            else:
                if harm != "join" or len(self.tables) > 3:
                    self.drop()
                self.join()
        wait_until(self.is_done, _PATIENCE_S, "all increments are acknowledged")
        self._check()

    def _check(self) -> None:
        """Wait until nothing changes, and compare."""
        expected = {b"counter.%d" % counter: b"%d" % self.answered(counter) for counter in range(COUNTERS)}

        def are_equal() -> bool:
            return len({table.digest() for _, table in self.tables}) == 1 and all(
                b"ends" not in table.values()
                and expected.items() >= {topic: table.get(topic, b"0") for topic in expected}.items()
                for _, table in self.tables
            )

        try:
            wait_until(are_equal, _PATIENCE_S, "all tables are equal, with exact counters and no expiring value")
        except TimeoutError as error:
            has = [sorted(table.items()) for _, table in self.tables]
            raise AssertionError(f"{error}: tables were {has}, expected equal ones with {expected}") from None


def attack(random: Random, seconds: float) -> Outcome:
    """Run schedules: each ends with equal digests and exact counters."""
    return run_schedules(
        "schedules of raced tables", seconds, SCHEDULES, lambda stack, place: House(stack, random, place)
    )
