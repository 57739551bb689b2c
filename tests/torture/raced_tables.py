"""Race writers of tables, kill their hub, join late, drop and join again: all tables end the same, counters exact.

Two processes increment counters by compare-and-set, put and delete topics, and put some that end by themselves. Tables
here join meanwhile. What one has once it is synced is in the end compared with all that was published up to its `at`.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Final

from blackbox import NotConfirmedError, Subscriber
from blackbox.block.position import Position
from blackbox.errors import ArchiveError
from blackbox.image.table import Table
from blackbox.testing import wait_until
from tests.hub.hubs import HUB, hub_feed, published
from tests.torture.nursery import Nursery
from tests.torture.outcome import Outcome

PREPARE: Final = """
def prepare():
    import logging, tempfile
    from tests.hub.hubs import hub_feed
    logging.disable()
    with tempfile.TemporaryDirectory() as place:
        feed = hub_feed("warm")
        with Hub(feed, place), Client(feed) as client:
            subscriber = Subscriber(feed, on_gap="repair")
            table = subscriber.table(b"", client=client)
            subscriber.start(60, since="image")
            table.wait(table.put(b"A", b"1", if_at=NOWHERE, ttl=60, timeout=60), 60)
            subscriber.terminate()
"""
COUNTERS: Final = 3
WANTED, DONE, EACH = 0, 1, 2
"""What a writer shares: how many increments are wanted, how many are answered, and those of each counter."""
WRITE: Final = """
def work(name, seed):
    import random
    chance = random.Random(int(seed))
    client = Client(feed).start()
    subscriber = Subscriber(feed, on_gap="repair", repair_wait_ns=60_000_000_000)
    table = subscriber.table(b"", client=client)
    subscriber.start(120, since="image")
    table.wait_synced(120)
    while True:
        wait_until(lambda: notes[0] > notes[1], 3600)
        topic = b"mine.%s.%d" % (name.encode(), chance.randrange(5))
        kind = chance.randrange(4)
        if kind == 0:
            table.delete(topic, timeout=120)
        elif kind == 1:
            table.put(topic, b"%d" % chance.randrange(99), ttl=chance.choice((None, 0.01, 0.2)), timeout=120)
        counter = chance.randrange(3)
        topic = b"counter.%d" % counter
        while True:
            entry = table.entry(topic)
            at = NOWHERE if entry is None else Place(*entry[2:])
            try:
                place = table.put(topic, b"%d" % (int(entry.payload if entry else b"0") + 1), if_at=at, timeout=120)
                break
            except ConflictError as error:
                table.wait(error.found, 120)
        notes[2 + counter] += 1
        notes[1] += 1
"""
SCHEDULES: Final = 40
"""After so many all begins anew, in another place."""
_PATIENCE_S: Final = 120.0


class _House:
    """A hub, two writers and some tables here, that go on from one schedule to the next."""

    def __init__(self, stack: ExitStack, random: Random, place: Path) -> None:
        self._random, self._place = random, place
        self.feed = hub_feed("raced-tables", slices=random.choice((1, 2)))
        self.hub = stack.enter_context(Nursery(self.feed, PREPARE + HUB, 1))
        self.writers = [stack.enter_context(Nursery(self.feed, PREPARE + WRITE, 2 + COUNTERS)) for _ in range(2)]
        self.tables: list[tuple[Subscriber, Table]] = []
        self.found: list[str] = []
        self._synced: list[tuple[dict[bytes, bytes], dict[tuple[int, bytes], Position]]] = []
        """What tables had when they were synced."""
        stack.callback(self._end)
        self.hub.begin((place,))
        for number, writer in enumerate(self.writers):
            writer.begin((f"w{number}", random.randrange(1 << 30)))

    def _end(self) -> None:
        for subscriber, _ in self.tables:
            subscriber.terminate()

    def answered(self, counter: int) -> int:
        return sum(int(writer.notes[EACH + counter]) for writer in self.writers)

    def is_done(self) -> bool:
        return all(writer.notes[DONE] == writer.notes[WANTED] for writer in self.writers)

    def kill_hub(self) -> None:
        self.hub.kill()
        self.hub.begin((self._place,))

    def join(self) -> None:
        """Have one more table."""
        until = monotonic() + _PATIENCE_S
        while True:
            subscriber = Subscriber(self.feed, on_gap="repair", repair_wait_ns=60 * 10**9)
            table = subscriber.table(b"")
            try:
                subscriber.start(30, since="image")
                break
            except (ArchiveError, NotConfirmedError):  # the hub was killed
                subscriber.terminate()
                if monotonic() > until:
                    raise
        wait_until(lambda: table.synced, _PATIENCE_S, "a table is synced")
        self._synced.append(table.snapshot())
        self.tables.append((subscriber, table))

    def check_synced(self) -> None:
        """Compare what tables had when they were synced with what was published; the hub has ended."""
        said = published(self._place, self.feed)
        for has, at in self._synced:
            expected: dict[bytes, bytes] = {}
            for epoch, slice_id, sequence, topic, payload in said:
                if (epoch, sequence) < at.get((slice_id, b""), (0, 0)):
                    expected.pop(topic, None)
                    if payload is not None:
                        expected[topic] = payload
            if has != expected:
                differ = sorted(has.items() ^ expected.items())
                self.found.append(f"a table was synced at {at} with others of {differ}, expected what was published")

    def drop(self) -> None:
        if self.tables:
            self.tables.pop(self._random.randrange(len(self.tables)))[0].terminate()

    def check(self) -> None:
        """Wait until all is still, and compare."""
        expected = {b"counter.%d" % counter: b"%d" % self.answered(counter) for counter in range(COUNTERS)}

        def are_equal() -> bool:
            return len({table.digest() for _, table in self.tables}) == 1 and all(
                expected.items() >= {topic: table.get(topic, b"0") for topic in expected}.items()
                for _, table in self.tables
            )

        try:
            wait_until(are_equal, 30, "all tables are the same, and have the counters")
        except TimeoutError:
            has = [sorted(table.items()) for _, table in self.tables]
            self.found.append(f"tables were {has}, expected them to be equal, with {expected}")


def attack(random: Random, seconds: float) -> Outcome:
    """Run schedules: each ends with equal digests and exact counters."""
    outcome, until = Outcome(0, "schedules of raced tables"), monotonic() + seconds
    while outcome.tried == 0 or monotonic() < until:
        with TemporaryDirectory() as place, ExitStack() as stack:
            house = _House(stack, random, Path(place))
            try:
                for _ in range(SCHEDULES):
                    if outcome.tried == 0 or monotonic() < until:
                        _run(random, house)
                        outcome.tried += 1
            except TimeoutError as error:
                notes = [writer.notes.tolist() for writer in house.writers]
                outcome.found.append(f"schedule {outcome.tried}: {error}: {notes}")
            house.hub.kill()
            house.check_synced()
            outcome.found += [f"up to schedule {outcome.tried}: {each}" for each in house.found]
    return outcome


def _run(random: Random, house: _House) -> None:
    """Some increments of both writers at once, and what is done meanwhile."""
    harms = random.choices(("kill", "join", "drop and join"), k=random.randrange(1, 4))
    if len(house.tables) < 2:
        harms.append("join")
    for harm in harms:
        for writer in house.writers:
            writer.notes[WANTED] += random.randrange(1, 12)
        if random.random() < 0.3:
            wait_until(house.is_done, _PATIENCE_S, "all was answered")
        if harm == "kill":
            house.kill_hub()
        else:
            if harm != "join" or len(house.tables) > 3:
                house.drop()
            house.join()
    wait_until(house.is_done, _PATIENCE_S, "all was answered")
    house.check()
