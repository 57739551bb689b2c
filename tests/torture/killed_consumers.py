"""Kill consumers again and again, behind lossy lines: what each commits is every message once, or told to be lost."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any, Final

import msgspec
import numpy

from blackbox import Feed, Publisher
from blackbox.feed.endpoint import free_endpoints
from blackbox.testing import wait_until
from tests.lossy_proxy import LossyProxy
from tests.torture.lossy_lines import RECORD, TOPICS
from tests.torture.nursery import Nursery
from tests.torture.outcome import Outcome

CONSUME = """
def work(shape, path):
    feed = msgspec.json.decode(shape, type=Feed)
    with open(path, "rb") as file:
        since, heard = msgspec.json.decode(file.read(), type=tuple[dict[int, tuple[int, int]], list[list]])

    def add(what, epoch, first, stop):
        if heard and heard[-1][:2] == [what, epoch] and heard[-1][3] == first:
            heard[-1][3] = stop
        else:
            heard.append([what, epoch, first, stop])

    def batch(batch):
        for number in batch.sequence.tolist():
            add("message", batch.block.epoch, number, number + 1)

    subscriber = Subscriber(
        feed, workers=1, on_gap="repair", repair_wait_ns=20_000_000_000, slow=SlowPolicy(max_lag_ns=1 << 60)
    )
    subscriber.on_batch(b"")(batch)
    subscriber.on_gap(b"")(lambda gap: add("gap", gap.epoch, gap.sequence, gap.sequence + gap.count))
    subscriber.start(timeout=60, since=since or 0)
    while True:
        with subscriber.checkpoint(60) as positions:
            with open(path + ".new", "wb") as file:
                file.write(msgspec.json.encode((positions, heard)))
            os.replace(path + ".new", path)
        notes[:] = positions[0]
        threading.Event().wait(0.002)
"""
MESSAGES: Final = 1_000
_PATIENCE_S: Final = 90.0


class _House:
    """A publisher, an archive and a consumer that go on from one schedule to the next."""

    def __init__(self, stack: ExitStack, feed: Feed, place: Path) -> None:
        self.feed, self.state = feed, place / "state"
        self.state.write_bytes(b"[{}, []]")
        self.published: dict[int, int] = {}
        """By epoch."""
        self.lacked = 0
        """Messages told lost in the schedules before."""
        self.archive = stack.enter_context(Nursery(feed, RECORD, notes=1))
        self.consumer = stack.enter_context(Nursery(feed, CONSUME, notes=2))
        self._place = place
        self.open_publisher()
        self.begin_archive()

    def open_publisher(self) -> None:
        """Begin another epoch."""
        self.publisher = Publisher(self.feed, when_full="wait").start()
        self.published[self.publisher.epoch] = 0

    def begin_archive(self) -> None:
        """Record and answer."""
        self.archive.notes[0] = 0
        self.archive.begin((self._place / "days",))
        wait_until(lambda: self.archive.notes[0], _PATIENCE_S, "an archive answers")

    def publish(self, random: Random, count: int) -> None:
        """Publish some blocks."""
        index = numpy.array([random.randrange(2) for _ in range(count)])
        self.publisher.publish_many(TOPICS, index, numpy.zeros((count, 8), numpy.uint8))
        self.publisher.flush()
        self.published[self.publisher.epoch] += count

    def has_committed(self) -> bool:
        """Whether the consumer has committed all that was published."""
        now = self.publisher.epoch
        return bool(self.consumer.notes.tolist() == [now, self.published[now]])

    def defects(self, may_lack: bool) -> list[str]:
        """Return what is wrong with what the consumer has committed. `may_lack`: the archive was killed of late."""
        heard: list[tuple[str, int, int, int]] = msgspec.json.decode(self.state.read_bytes())[1]
        found, following, lacks, came = list[str](), 0, 0, dict.fromkeys(self.published, 0)
        epochs = list(self.published)
        for what, epoch, first, stop in heard:
            if epoch != epochs[0]:
                if epoch not in epochs or following != self.published[epochs[0]]:
                    return [*found, f"epoch {epoch} came when {following} of {epochs[0]} had come"]
                while epochs[0] != epoch:
                    del epochs[0]
                following = 0
            if first != following:
                found.append(f"{what} {first} to {stop} of epoch {epoch} was committed, expected {following} next")
            lacks += (stop - first) * (what == "gap")
            following = stop
            came[epoch] += stop - first
        if lacks != self.lacked and not may_lack:
            found.append(f"{lacks - self.lacked} messages were told lost, which the archive had")
        self.lacked = lacks
        if came != self.published:
            found.append(f"committed were {came}, expected {self.published}")
        return found


def attack(random: Random, seconds: float) -> Outcome:
    """Run schedules: messages are published, processes killed meanwhile, and in the end all must be committed."""
    outcome, until = Outcome(0, "schedules of killed consumers"), monotonic() + seconds
    while outcome.tried == 0 or monotonic() < until:
        feed = msgspec.structs.replace(
            Feed.local("killed-consumers", slices=1),
            archives=free_endpoints("tcp", "archive", 1, 1)[0],
            heartbeat_ns=200_000_000,
        )
        with TemporaryDirectory() as place, ExitStack() as stack:
            house = _House(stack, feed, Path(place))
            for _ in range(25):
                if outcome.tried == 0 or monotonic() < until:
                    _run(random, house, outcome)
                    outcome.tried += 1
            house.publisher.close(timeout=1)
    return outcome


def _run(random: Random, house: _House, outcome: Outcome) -> None:
    share = random.choice((0.0, 0.3, 0.8))
    harms: dict[int, list[str]] = {}
    for harm in ("consumer killed", random.choice(("", "consumer killed", "consumer stopped")), _other_harm(random)):
        harms.setdefault(random.randrange(MESSAGES - 60), []).append(harm)
    told = [harm for each in harms.values() for harm in each if harm]
    how = f"schedule {outcome.tried} ({share:.0%} lost, {', '.join(told)})"
    stopped: list[Nursery] = []
    with LossyProxy(house.feed, share, random.randrange(1 << 30)) as proxy:
        words = msgspec.json.encode(proxy.feed).decode(), house.state
        house.consumer.begin(words)
        published = 0
        while published < MESSAGES:
            count = min(random.randrange(1, 60), MESSAGES - published)
            house.publish(random, count)
            for nursery in stopped:
                nursery.signal(signal.SIGCONT)
            stopped.clear()
            for place in range(published, published + count):
                for harm in harms.pop(place, ()):
                    _harm(harm, house, words, stopped)
            published += count
        for nursery in stopped:
            nursery.signal(signal.SIGCONT)
        try:
            wait_until(house.has_committed, _PATIENCE_S, "all was committed")
        except TimeoutError:
            outcome.found.append(f"{how}: at {house.consumer.notes.tolist()}, published were {house.published}")
        house.consumer.kill()
    outcome.found += [f"{how}: {defect}" for defect in house.defects("archive killed" in told)]


def _other_harm(random: Random) -> str:
    return random.choice(("", "archive stopped", "archive killed", "publisher ended"))


def _harm(harm: str, house: _House, words: tuple[Any, ...], stopped: list[Nursery]) -> None:
    if harm == "consumer killed":
        house.consumer.kill()
        house.consumer.begin(words)
    elif harm == "consumer stopped":
        house.consumer.signal(signal.SIGSTOP)
        stopped.append(house.consumer)
    elif harm == "archive stopped":
        house.archive.signal(signal.SIGSTOP)
        stopped.append(house.archive)
    elif harm == "archive killed":
        house.archive.kill()
        house.begin_archive()
    elif harm == "publisher ended":
        for nursery in stopped:  # it waits for them
            nursery.signal(signal.SIGCONT)
        house.publisher.close()
        house.open_publisher()
        house.publisher.wait_for_subscribers(timeout=60, count=1)
