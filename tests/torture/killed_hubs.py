"""Kill, stop and close a hub and its clients: each put is published once, in its client's order, and read once.

One client resumes at `published_count`; another one uses ids and repeats from the last acknowledged put. The reader
writes the position of each message to a separate file before it commits.
"""

from __future__ import annotations

import signal
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import ClassVar, Final

import msgspec

from blackbox import Feed
from blackbox.testing import wait_until
from tests.hub.hubs import hub_feed, published
from tests.torture.nursery import Nursery
from tests.torture.outcome import Outcome
from tests.torture.schedules import run_schedules

Messages = list[tuple[int, int, int, bytes, bytes | None]]
"""Epoch, slice, sequence, topic and payload of each message."""
PREPARE: Final = """
def prepare():
    import logging, tempfile
    from tests.hub.hubs import hub_feed
    logging.disable()
    with tempfile.TemporaryDirectory() as place:
        feed = hub_feed("warm")
        with Hub(feed, place) as hub, HubClient(feed, "warm", place + "/reader") as client:
            client.subscribe(b"", 60)
            client.put(b"A", b"1", b"id", timeout=60)
            client.put_many((b"A",), numpy.zeros(10, int), numpy.zeros((10, 8), numpy.uint8))
            client.get(b"", 60)
            client.commit()
"""
SERVE: Final = """
def work(directory, fsync):
    with Hub(feed, directory, fsync=fsync, fsync_interval=0.02):
        notes[0] = 1
        wait_until(lambda: notes[1], 3600)
    notes[2] = 1
"""
PUT: Final = """
def work(name, seed, acknowledged):
    import random, struct
    chance = random.Random(int(seed))
    has_ids = name.startswith("ids")
    client = HubClient(feed, None if has_ids else name, acknowledged=acknowledged).start()
    number = notes[ACKED] if has_ids else client.published_count(600)
    going = []
    while True:
        while going and (going[0][1].done() or len(going) > 200):
            last, future = going.pop(0)
            future.result(600)
            notes[ACKED] = last
        if number >= notes[WANTED]:
            threading.Event().wait(0.0005)
            continue
        number += 1
        topic, data = f"{chance.choice('ABCDEFGH')}.{name}".encode(), struct.pack("<q", number)
        going.append((number, client.put_soon(topic, data, data + name.encode() if has_ids else None, timeout=600)))
"""
WANTED, ACKED = range(2)
NOTES: Final = "WANTED, ACKED = range(2)\n"
GET: Final = """
def work(directory, path, seed):
    import random
    chance = random.Random(int(seed))
    with open(path, "rb") as file:
        got = msgspec.json.decode(file.read(), type=list[tuple[int, str, int, int]])
    last = {place[:2]: place for place in got}
    client = HubClient(feed, "reader", directory).start()
    if b"" not in client.subscriptions:
        client.subscribe(b"", 600)
    notes[0] = 1
    while True:
        for _ in range(chance.randrange(1, 200)):
            try:
                message = client.get(b"", 0.02)
            except TimeoutError:
                break
            key = feed.key_of(message.topic).decode()
            place = message.slice_id, key, message.epoch, message.sequence
            if place > last.get(place[:2], ()):
                got.append(place)
                last[place[:2]] = place
        with open(path + ".new", "wb") as file:
            file.write(msgspec.json.encode(got))
        os.replace(path + ".new", path)
        client.commit(60)
        notes[1] = len(got)
"""
SCHEDULES: Final = 25
"""Schedules before everything restarts in a fresh directory."""
MESSAGES: Final = 300
"""Messages of each writer in a schedule."""
WRITERS: Final = ("numbers", "ids")
_PATIENCE_S: Final = 120.0


class House:
    """A hub, two clients that put and one that reads; they keep running between schedules."""

    HARMS: ClassVar[tuple[str, ...]] = (
        *("hub killed", "hub killed", "hub stopped", "hub ended", "reader killed", "reader stopped"),
        *("numbers killed", "numbers stopped", "ids killed", "ids stopped"),
    )
    """Ways to harm a process. The first one is part of each schedule."""

    def __init__(self, stack: ExitStack, random: Random, place: Path) -> None:
        self.random, self.place, self.stack = random, place, stack
        self.acknowledged = random.choice(("recorded", "synced"))
        self.of: dict[str, Nursery] = {}
        self.stopped: list[Nursery] = []
        self._state = place / "got"
        self._state.write_bytes(b"[]")
        self.feed = feed = self.begin_hubs()
        self.of["reader"] = stack.enter_context(Nursery(feed, PREPARE + GET, notes=2))
        for who in WRITERS:
            self.of[who] = stack.enter_context(Nursery(feed, NOTES + PREPARE + PUT, notes=2))
        self.begin("reader")
        wait_until(lambda: self.of["reader"].notes[0], _PATIENCE_S, "the reader has subscribed")
        for who in WRITERS:
            self.begin(who)

    # Overridden for a pair of hubs.

    def begin_hubs(self) -> Feed:
        """Start the hub; return its feed."""
        feed = hub_feed("killed-hubs", slices=self.random.choice((1, 2)), key_bytes=self.random.choice((0, 1)))
        self._fsync = self.random.choice(("interval", "block"))
        self._epochs = 1
        """Maximum number of epochs: only a clean stop of the hub ends its epoch."""
        self.of["hub"] = self.stack.enter_context(Nursery(feed, PREPARE + SERVE, notes=3))
        self.begin("hub")
        return feed

    def go_on(self) -> None:
        for nursery in self.stopped:
            nursery.signal(signal.SIGCONT)
        self.stopped.clear()

    def harm(self, harm: str) -> None:
        who, how = harm.split()
        nursery = self.of[who]
        if how == "stopped":
            nursery.signal(signal.SIGSTOP)
            self.stopped.append(nursery)
            return
        if nursery in self.stopped:
            self.go_on()
        if how == "ended":
            wait_until(lambda: nursery.notes[0], _PATIENCE_S, "the hub has started")
            nursery.notes[1] = 1
            self._epochs += 1
            wait_until(lambda: nursery.notes[2], _PATIENCE_S, "the hub has ended")
        nursery.kill()
        self.begin(who)

    def end(self) -> None:
        self.harm("hub ended")
        self.of["hub"].kill()

    def give_up(self) -> object:
        """Kill the hub; return what all processes noted."""
        self.of["hub"].kill()
        return self.acknowledged, {who: nursery.notes.tolist() for who, nursery in self.of.items()}

    def published(self) -> Messages:
        """Return all published messages, after the hub has ended."""
        return published(self.place / "hub", self.feed)

    def defects(self) -> Iterator[str]:
        """Yield defects in the published and read messages, after the hub has ended."""
        said = self.published()
        yield from self.defects_of(said)
        if len(epochs := {epoch for epoch, *_ in said}) > self._epochs:
            yield f"messages were published in {len(epochs)} epochs, expected at most {self._epochs}"

    # Common to single hubs and pairs.

    def begin(self, who: str) -> None:
        nursery, seed = self.of[who], self.random.randrange(1 << 30)
        if who == "hub":
            nursery.notes[:] = 0
            nursery.begin((self.place / "hub", self._fsync))
        elif who == "reader":
            nursery.begin((self.place / "reader", self._state, seed))
        else:
            nursery.begin((who, seed, self.acknowledged))

    def _is_acknowledged(self) -> bool:
        return all(self.of[who].notes[WANTED] == self.of[who].notes[ACKED] for who in WRITERS)

    def _has_got(self) -> bool:
        return bool(self.of["reader"].notes[1] == sum(int(self.of[who].notes[WANTED]) for who in WRITERS))

    def _wait_acknowledged(self) -> None:
        self.go_on()
        wait_until(self._is_acknowledged, _PATIENCE_S, "all puts are acknowledged")

    def run(self) -> None:
        """Put messages, with each harm at a random moment, until all are acknowledged and read. Raises TimeoutError."""
        random, wanted = self.random, 0
        at: dict[int, list[str]] = {}
        for harm in (self.HARMS[0], *random.choices(self.HARMS, k=random.randrange(5))):
            at.setdefault(random.randrange(MESSAGES - 40), []).append(harm)
        while wanted < MESSAGES:
            count = min(random.randrange(1, 40), MESSAGES - wanted)
            for who in WRITERS:
                self.of[who].notes[WANTED] += count
            for place in range(wanted, wanted + count):
                for harm in at.pop(place, ()):
                    self.harm(harm)
            if random.random() < 0.5:
                self._wait_acknowledged()
            wanted += count
        self._wait_acknowledged()
        wait_until(self._has_got, _PATIENCE_S, "all messages are read")

    def defects_of(self, messages: Messages) -> Iterator[str]:
        """Yield defects of published messages, and of those that were read."""
        said = [
            ((slice_id, self.feed.key_of(topic).decode(), epoch, sequence), topic, payload)
            for epoch, slice_id, sequence, topic, payload in messages
        ]
        lanes = {place[:2] for place, *_ in said}
        for who in WRITERS:
            mine = sorted(
                (place, struct.unpack("<q", payload or b"")[0])
                for place, topic, payload in said
                if topic[2:] == who.encode()
            )
            expected = list(range(1, int(self.of[who].notes[WANTED]) + 1))
            if sorted(number for _, number in mine) != expected:
                yield f"{who}: {len(mine)} were published, expected 1 to {expected[-1]} once each"
            for lane in lanes:
                numbers = [number for place, number in mine if place[:2] == lane]
                if numbers != sorted(numbers):
                    yield f"{who}: messages of slice and key {lane} were published in another order"
        got = msgspec.json.decode(self._state.read_bytes(), type=list[tuple[int, str, int, int]])
        if sorted(got) != sorted(place for place, *_ in said):
            yield f"{len(got)} messages were read, expected the {len(said)} published, each once"
        if any((those := [place for place in got if place[:2] == lane]) != sorted(those) for lane in lanes):
            yield "messages were read in another order"


def attack(random: Random, seconds: float) -> Outcome:
    """Run schedules of puts and failing processes; at the end each message was published and read once."""
    return run_schedules(
        "schedules of killed hubs", seconds, SCHEDULES, lambda stack, place: House(stack, random, place)
    )
