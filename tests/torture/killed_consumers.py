"""Kill and stop publishers, archives and consumers on lossy lines: each message is committed once or reported as lost.

The last messages of a killed publisher may not have arrived anywhere: its epoch may end anywhere after the last
archived message. Publishers with an outbox resume their epoch and lose nothing. Consumers of single keys are checked
for each key.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Final

import msgspec

from blackbox import Feed, Recording
from blackbox.feed.endpoint import free_endpoints
from blackbox.testing import wait_until
from tests.lossy_proxy import LossyProxy
from tests.torture.nursery import WARM_RECORDER, Nursery
from tests.torture.outcome import Outcome

TOPICS: Final = (b"A.x", b"AB.x", b"B")
KEYS: Final = (b"A.", b"AB", b"B")
"""Keys of the topics with `key_bytes` 2."""
PUBLISH: Final = """
from tempfile import TemporaryDirectory
def prepare():
    with TemporaryDirectory() as directory, Publisher(warm, outbox=Outbox(directory)) as publisher:
        publisher.publish(b"A", b"")

def work(shape, seed, directory, doubted, *before):
    import random
    feed = msgspec.json.decode(shape, type=Feed)
    chance, index = random.Random(int(seed)), numpy.zeros(60, int)
    begun, sent = notes[BEGUN], notes[SENT]
    outbox = Outbox(directory, serve=feed.archives[1]) if len(feed.archives) > 1 else None
    with Publisher(feed, when_full="wait", outbox=outbox) as publisher:
        publisher.wait_for_subscribers(timeout=60, count=1)
        publisher.flush()
        if publisher.published_count():  # resumed
            sent[:] = [int(each) for each in before]
            sent[int(doubted)] += publisher.published_count() - sent.sum()
            begun[:] = sent
        notes[EPOCH] = publisher.epoch
        while not notes[ENDS]:
            count = min(chance.randrange(1, 60), notes[WANTED] - sent.sum())
            if count <= 0:
                threading.Event().wait(0.0005)
                continue
            which = chance.randrange(len(TOPICS)) if feed.key_bytes else 0
            numbers = begun[which] + numpy.arange(count)
            begun[which] += count
            publisher.publish_many(TOPICS[which : which + 1], index[:count], numbers.view(numpy.uint8).reshape(-1, 8))
            publisher.flush()
            sent[which] += count
"""
EPOCH, WANTED, ENDS, BEGUN, SENT = 0, 1, 2, slice(3, 3 + len(TOPICS)), slice(3 + len(TOPICS), 3 + 2 * len(TOPICS))
"""Notes of a publisher: its epoch, the messages requested, a request to end; for each topic, the messages started and
sent."""
PLACES: Final = f"EPOCH, WANTED, ENDS, BEGUN, SENT = 0, 1, 2, {BEGUN}, {SENT}\nTOPICS, KEYS = {TOPICS}, {KEYS}\n"
RECORD: Final = """
from contextlib import suppress
def work(shape, directory, most_bytes):
    import logging, resource
    feed = msgspec.json.decode(shape, type=Feed)
    logging.disable()  # full disks are expected
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(most_bytes), resource.RLIM_INFINITY))
    with suppress(JournalError), Recorder(feed, directory, serve=True, max_lag=1e9) as recorder:
        notes[0] = 1
        recorder.run()
    notes[0] = 2
"""
CONSUME: Final = """
def work(shape, path, slow_s, prefixes):
    feed = msgspec.json.decode(shape, type=Feed)
    with open(path, "rb") as file:
        since, heard = msgspec.json.decode(file.read(), type=tuple[dict[int, tuple[int, int]], dict[str, list[list]]])
    is_full = prefixes == "all"

    def add(what, key, epoch, first, count):
        of_key = heard.setdefault(key.decode(), [])
        if first is None:
            first = of_key[-1][3] if of_key and of_key[-1][1] == epoch else 0
        stop = first + count
        if of_key and of_key[-1][:2] == [what, epoch] and of_key[-1][3] == first:
            of_key[-1][3] = stop
        else:
            of_key.append([what, epoch, first, stop])

    def batch(batch):
        threading.Event().wait(float(slow_s))
        key = b"" if is_full else batch.topics[0][: feed.key_bytes]
        for number in (batch.sequence if is_full else batch.payloads().view(numpy.int64)[:, 0]).tolist():
            add("message", key, batch.block.epoch, number, 1)

    subscriber = Subscriber(
        feed,
        workers=1,
        on_gap="repair",
        repair_wait=20,
        slow=SlowPolicy(max_lag=1e9),
    )
    for prefix in [""] if is_full else prefixes:
        subscriber.on_batch(prefix.encode(), group="all")(batch)

    @subscriber.on_gap(b"")
    def gap(gap):
        is_live = subscriber.statistics().received.catching_up == 0
        what = "gap while live" if is_live else "gap"
        if is_full or (gap.key and not gap.is_upper_bound):
            add(what, gap.key, gap.epoch, gap.sequence if is_full else None, gap.count)
            return
        for key in [gap.key] if gap.key else KEYS:
            add("unknown keys", key, gap.epoch, None, 0)

    subscriber.start(timeout=60, since=since or 0)
    wait_until(lambda: heard, 3600)  # no position exists before
    while True:
        with subscriber.checkpoint(60) as positions:
            with open(path + ".new", "wb") as file:
                file.write(msgspec.json.encode((positions, heard)))
            os.replace(path + ".new", path)
        notes[:] = positions[0]
        threading.Event().wait(0.002)
"""
MESSAGES: Final = 1_000
SCHEDULES: Final = 25
"""Schedules before everything restarts in a fresh directory."""
_PATIENCE_S: Final = 90.0
_NO_LIMIT: Final = 1 << 40
_HARMS: Final = (
    *("consumer killed", "consumer stopped", "archive killed", "archive stopped", "archive's disk full"),
    *("publisher killed", "publisher stopped", "publisher ended"),
)


class _House:
    """A publisher, an archive and a consumer, which keep running between schedules."""

    def __init__(self, nurseries: Sequence[Nursery], random: Random, place: Path) -> None:
        lines, key_bytes, self._has_outbox = random.choice((1, 2)), random.choice((0, 2)), random.random() < 0.5
        self.prefixes = "AB" if key_bytes and random.random() < 0.5 else "all"
        """First letters of the subscribed topics, or "all"."""
        self.keys = (b"",) if self.prefixes == "all" else KEYS
        self.feed = feed = msgspec.structs.replace(
            Feed.local("killed-consumers", slices=1, lines=lines, key_bytes=key_bytes),
            archives=tuple(each for (each,) in free_endpoints("tcp", "archive", 1 + self._has_outbox, 1)),
            heartbeat_ns=200_000_000,
        )
        self.state, self._days, self._random = place / "state", place / "days", random
        self._outbox = place / "outbox"
        self.state.write_bytes(b"[{}, {}]")
        self.runs: dict[int, list[range]] = {}
        """Possible final numbers of messages of each topic, by epoch."""
        self._shape = msgspec.json.encode(feed).decode()
        self.archive, self.consumer, self.publisher = nurseries
        self.stopped: list[Nursery] = []
        self.untrue: list[str] = []
        """Defects of resumed publishers."""
        self.known: set[str] = set()
        """Defects reported earlier."""
        self.publisher.notes[:] = 0
        self._open_publisher()
        self.begin_archive()
        self._await_publisher()

    def _open_publisher(self) -> None:
        notes = self.publisher.notes
        doubted, before = int((notes[BEGUN] - notes[SENT]).argmax()), notes[SENT].tolist()
        notes[:] = 0
        self.publisher.begin((self._shape, self._random.randrange(1 << 30), self._outbox, doubted, *before))

    def _await_publisher(self) -> None:
        wait_until(lambda: self.publisher.notes[EPOCH], _PATIENCE_S, "a publisher has a subscriber")
        self.runs.setdefault(int(self.publisher.notes[EPOCH]), [])

    def begin_archive(self, most_bytes: int = _NO_LIMIT) -> None:
        """Start a recorder that serves, with files limited to `most_bytes`."""
        self.go_on()  # the recorder waits for the publisher
        self.archive.notes[0] = 0
        self.archive.begin((self._shape, self._days, most_bytes))
        wait_until(lambda: self.archive.notes[0], _PATIENCE_S, "an archive answers")

    def begin_consumer(self, feed: Feed, slow_s: float) -> None:
        """Start the consumer at its committed position."""
        self._words = msgspec.json.encode(feed).decode(), self.state, slow_s, self.prefixes
        self.consumer.begin(self._words)

    def want(self, count: int) -> None:
        self.publisher.notes[WANTED] += count

    def has_sent(self) -> bool:
        return bool(self.publisher.notes[SENT].sum() == self.publisher.notes[WANTED])

    def go_on(self) -> None:
        for nursery in self.stopped:
            nursery.signal(signal.SIGCONT)
        self.stopped.clear()

    def close(self) -> None:
        self.archive.kill()
        self.publisher.kill()

    def mend_archive(self) -> None:
        """Replace a recorder with a full or limited disk by one with space."""
        self.archive.kill()
        self.begin_archive()

    def harm(self, harm: str) -> None:
        who: Nursery = getattr(self, harm.split(maxsplit=1)[0].removesuffix("'s"))
        if harm.endswith("stopped"):
            who.signal(signal.SIGSTOP)
            self.stopped.append(who)
            return
        if who in self.stopped:
            self.go_on()
        if harm == "consumer killed":
            who.kill()
            who.begin(self._words)
        elif harm == "archive killed":
            self.mend_archive()
        elif harm == "archive's disk full":
            self.archive.kill()
            sizes = [path.stat().st_size for path in self._days.rglob("*") if path.is_file()]
            self.begin_archive(max(sizes) + self._random.randrange(40_000))
        elif harm == "publisher killed":
            who.kill()
            self._end_run([range(begun + 1) for begun in who.notes[BEGUN].tolist()], goes_on=self._has_outbox)
        elif harm == "publisher ended":
            self.go_on()  # the publisher waits for the others
            wait_until(self.has_sent, _PATIENCE_S, "the publisher has sent all")
            self.publisher.notes[ENDS] = 1
            self.publisher.wait()
            self._end_run(self._sent())

    def _sent(self) -> list[range]:
        """Return the number of messages of each topic, while none is in flight."""
        return [range(sent, sent + 1) for sent in self.publisher.notes[SENT].tolist()]

    def _end_run(self, may_have_had: list[range], *, goes_on: bool = False) -> None:
        before = self.publisher.notes.copy()
        epoch, begun, sent = int(before[EPOCH]), before[BEGUN].sum(), before[SENT].sum()
        self.runs[epoch] = may_have_had
        self.go_on()
        self._open_publisher()
        self._await_publisher()
        now, begin = int(self.publisher.notes[EPOCH]), self.publisher.notes[SENT].sum()
        if goes_on and now != epoch and sent == 0:
            goes_on, self.runs[epoch] = False, [range(1) for _ in may_have_had]  # its outbox was empty
        if (now == epoch) != goes_on or not (sent <= begin <= begun if goes_on else begin == 0):
            self.untrue.append(f"epoch {epoch} with {sent} to {begun} messages was followed by {now} at {begin}")
        self.publisher.notes[WANTED] = before[WANTED] if goes_on else before[WANTED] - sent

    def has_committed(self) -> bool:
        """Return True if the consumer has committed all published messages."""
        notes = self.publisher.notes
        return bool(self.consumer.notes.tolist() == [notes[EPOCH], notes[SENT].sum()])

    def defects(self) -> Iterator[str]:
        self.runs[int(self.publisher.notes[EPOCH])] = self._sent()
        heard: dict[str, list[tuple[str, int, int, int]]] = msgspec.json.decode(self.state.read_bytes())[1]
        recorded = self._recorded()
        begin = min((told[0][1] for told in heard.values() if told), default=0)
        yield from self.untrue
        for number, key in enumerate(self.keys):
            of_key = {epoch: numbers for (epoch, of), numbers in recorded.items() if of == key}
            ends = {
                epoch: may_have_had[number] if key else range(sum(r.start for r in may_have_had), _stop(may_have_had))
                for epoch, may_have_had in self.runs.items()
            }
            told = heard.get(key.decode(), [])
            yield from (f"{each}, key {key!r}" for each in self._defects(told, of_key, ends, begin))

    def _defects(
        self, heard: list[tuple[str, int, int, int]], recorded: dict[int, set[int]], ends: dict[int, range], begin: int
    ) -> Iterator[str]:
        """Yield defects of one key. `ends` has the possible message counts of epochs; `begin` is the first epoch."""
        following, last, unsure = dict.fromkeys(ends, 0), 0, 0
        if heard and heard[0][1] == begin:
            first = heard[0][2]
            if self._has_outbox or not recorded.get(begin, set()) & set(range(first)):
                following[begin] = first  # it started with the archived messages
        for what, epoch, first, stop in heard:
            if what == "unknown keys" and epoch in ends:
                ends[epoch], unsure = range(ends[epoch].stop), epoch
                continue
            if epoch not in ends or epoch < last:
                yield f"epoch {epoch} came after {last}"
                return
            last = epoch
            if first < following[epoch] or (first > following[epoch] and epoch != unsure):
                yield f"{what} {first} to {stop} of epoch {epoch} was committed, expected {following[epoch]} next"
            following[epoch], unsure = stop, 0
            there = recorded.get(epoch, set()) & set(range(first, stop)) if what != "message" else ()
            if there:
                yield f"{what} {first} to {stop} of epoch {epoch} was reported, but the archive had {len(there)} of it"
        for epoch, may_have_had in ends.items():
            least = max(may_have_had.start, max(recorded.get(epoch, {-1})) + 1)
            if not following[epoch] and epoch not in recorded:
                continue  # neither the consumer nor the archive received a message of it
            if not least <= following[epoch] < may_have_had.stop:
                yield (
                    f"epoch {epoch}: {following[epoch]} were committed, expected {least} to {may_have_had.stop - 1}; "
                    f"the archive had {len(recorded.get(epoch, ()))}, the last ones were {heard[-3:]}"
                )

    def _recorded(self) -> dict[tuple[int, bytes], set[int]]:
        """Return the archived message numbers by epoch and key."""
        recorded: dict[tuple[int, bytes], set[int]] = {}
        manifests = [*self._days.glob("*/*/manifest.json"), *self._outbox.glob("*/*/manifest.json")]
        for day in sorted(path.parent for path in manifests):
            for batch in Recording.open(day).batches():
                key = batch.topics[0][: self.feed.key_bytes] if len(self.keys) > 1 else b""
                numbers = batch.payloads().view("i8")[:, 0] if key else batch.sequence
                recorded.setdefault((batch.block.epoch, key), set()).update(numbers.tolist())
        return recorded


def _stop(may_have_had: list[range]) -> int:
    """Return the end of the range of an epoch's message count, from the ranges of its topics."""
    return sum(each.stop - 1 for each in may_have_had) + 1


def attack(random: Random, seconds: float) -> Outcome:
    """Run schedules of messages and failing processes; at the end all messages must be committed."""
    outcome, until = Outcome(0, "schedules of killed consumers"), monotonic() + seconds
    warm = Feed.local("killed-consumers", slices=1, key_bytes=2)
    with ExitStack() as stack, ThreadPoolExecutor() as pool:
        codes = (WARM_RECORDER + RECORD, 1), (PLACES + CONSUME, 2), (PLACES + PUBLISH, SENT.stop)
        nurseries = [stack.enter_context(each) for each in pool.map(lambda each: Nursery(warm, *each), codes)]
        while outcome.tried == 0 or monotonic() < until:
            with TemporaryDirectory() as place, closing(_House(nurseries, random, Path(place))) as house:
                for _ in range(SCHEDULES):
                    if outcome.tried == 0 or monotonic() < until:
                        _run(random, house, outcome)
                        outcome.tried += 1
    return outcome


def _run(random: Random, house: _House, outcome: Outcome) -> None:
    share, lags, slow_s = random.choice((0.0, 0.3, 0.8)), random.choice((0.0, 0.5)), random.choice((0.0, 0.0, 0.002))
    harms: dict[int, list[str]] = {}
    for harm in ("consumer killed", *random.choices(_HARMS, k=random.randrange(4))):
        harms.setdefault(random.randrange(MESSAGES - 60), []).append(harm)
    told = ", ".join(harm for each in harms.values() for harm in each)
    lines = f"{len(house.feed.slices[0].lines)} lines, {len(house.feed.archives)} archives, {len(house.keys)} keys"
    how = f"schedule {outcome.tried} ({lines}, {share:.0%} lost, {lags:.0%} lag, slow {slow_s} s, {told})"
    with LossyProxy(house.feed, share, random.randrange(1 << 30), lags) as proxy:
        house.begin_consumer(proxy.feed, slow_s)
        wanted = 0
        while wanted < MESSAGES:
            count = min(random.randrange(1, 60), MESSAGES - wanted)
            house.want(count)
            for place in range(wanted, wanted + count):
                for harm in harms.pop(place, ()):
                    house.harm(harm)
            if not house.stopped or random.random() < 0.5:
                house.go_on()
                wait_until(house.has_sent, _PATIENCE_S, "the publisher has sent all")
            wanted += count
        house.go_on()
        if "disk full" in told:
            house.mend_archive()
        try:
            wait_until(house.has_sent, _PATIENCE_S, "the publisher has sent all")
            wait_until(house.has_committed, _PATIENCE_S, "all messages are committed")
        except TimeoutError:
            outcome.found.append(
                f"{how}: consumer at {house.consumer.notes.tolist()}, publisher at {house.publisher.notes.tolist()}"
            )
        house.consumer.kill()
    for defect in house.defects():
        if defect not in house.known:
            outcome.found.append(f"{how}: {defect}")
            house.known.add(defect)
