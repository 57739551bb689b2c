"""Publishers wait until messages are recorded and synced; recorders never acknowledge them earlier."""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from blackbox import Feed, Publisher
from blackbox.archive.record.recorder import Recorder
from blackbox.block.form.ack_format import NOTHING_MISSING, Acknowledgement
from blackbox.block.form.format import RECORDED_KEY
from blackbox.block.position import End
from blackbox.errors import NotRecordedError
from blackbox.publish.listeners.ack_tracker import RecorderPosition
from blackbox.testing import RawPublisher, wait_until
from tests.archive.recorders import MIB, feed_of, numbers_of, publish_numbered, records, segments
from tests.examples import first_of
from tests.journals import stored
from tests.lossy_proxy import LossyProxy
from tests.receive.shared import shared_feed
from tests.support import Script

RECORD = """
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        parent = os.getppid()
        end = lambda: (wait_until(lambda: os.getppid() != parent, 300), os._exit(1))
        threading.Thread(target=end, daemon=True).start()
        recorder = Recorder(feed, line.strip(), segment_bytes=1 << 20).start()
        say(os.getpid())
        recorder.run()
    os.waitpid(pid, 0)
    say("killed")
"""
SOON_S = 0.3
"""Timeout of waits that cannot succeed."""


def positions(publisher: Publisher, *, gone: bool = False) -> list[RecorderPosition]:
    return [each for each in publisher.statistics().recorders if gone or each.is_connected]


def published(feed: Feed, directory: Path) -> list[int]:
    return [int(number) for record in records(directory, feed) for number in numbers_of(record)]


def test_recorded_messages_survive_a_kill_of_the_recorder(tmp_path: Path) -> None:
    feed = feed_of()
    choice = random.Random(5)
    with Publisher(feed) as publisher, Script(RECORD, feed) as script:
        at = 0
        for _ in range(4):
            script.tell(str(tmp_path))
            pid = int(script.read())
            for _ in range(choice.randrange(1, 5)):
                count = choice.choice([1, 100, 20_000])
                publish_numbered(publisher, at, count)
                at += count
                publisher.wait_recorded(60)
            os.kill(pid, 9)
            script.expect("killed")
            # A segment that was being created may have an incomplete head.
            paths = [path for path in segments(tmp_path, feed) if path.stat().st_size > 64]
            assert [int(n) for path in paths for record in stored(path)[0] for n in numbers_of(record)] == [*range(at)]
            wait_until(lambda: not positions(publisher), what="the publisher knows that its recorder has left")
        assert len(positions(publisher, gone=True)) == 4


def test_messages_published_without_a_recorder_are_reported_once(tmp_path: Path) -> None:
    feed = feed_of()
    with Publisher(feed) as publisher:
        publish_numbered(publisher, 0, 100)
        with pytest.raises(NotRecordedError, match="0 to 99 were not recorded by 1 recorder .* acknowledged any"):
            publisher.wait_recorded(SOON_S)
        with Recorder(feed, tmp_path):
            publish_numbered(publisher, 100, 10)
            wait_until(lambda: [p.begin for p in positions(publisher)] == [100], what="the recorder acknowledges")
            publisher.flush()
            wait_until(lambda: [p.recorded for p in positions(publisher)] == [110], what="the recorder reports all")
            with pytest.raises(NotRecordedError, match="0 to 109 were .* given up: .* recorded 110, .* began at 100"):
                publisher.wait_recorded(SOON_S)
            publish_numbered(publisher, 110, 10)
            publisher.wait_recorded(60)
    assert published(feed, tmp_path) == [*range(100, 120)]


def test_two_recorders_are_waited_for(tmp_path: Path) -> None:
    feed = feed_of()
    with Publisher(feed) as publisher, Recorder(feed, tmp_path / "a"):
        with Recorder(feed, tmp_path / "b"):
            publish_numbered(publisher, 0, 1_000)
            publisher.wait_recorded(60, by=2)
            assert published(feed, tmp_path / "a") == published(feed, tmp_path / "b") == [*range(1_000)]
            with pytest.raises(NotRecordedError, match="by 3 recorders"):
                publisher.wait_recorded(SOON_S, by=3)
        wait_until(lambda: len(positions(publisher)) == 1, what="the publisher knows that one has left")
        publish_numbered(publisher, 1_000, 1)
        publisher.wait_recorded(60)
        with pytest.raises(NotRecordedError, match=r"messages 1000 to 1000 .*\d@\S+ has recorded 1000.* disconnected"):
            publisher.wait_recorded(SOON_S, by=2)


def test_the_position_stops_at_a_gap_and_the_error_names_it(tmp_path: Path) -> None:
    feed = feed_of(slices=2, key_bytes=2)
    with Publisher(feed) as publisher, LossyProxy(feed, 0.0) as proxy, Recorder(proxy.feed, tmp_path):
        publisher.wait_for_subscribers()
        publish_numbered(publisher, 0, 10)
        publisher.wait_recorded(60)
        proxy._share = 1.0
        publish_numbered(publisher, 10, 10)
        publisher.flush()
        wait_until(lambda: any(told.lacks for told in positions(publisher)), what="the recorder reports a gap")
        proxy._share = 0.0
        publish_numbered(publisher, 20, 10)
        with pytest.raises(NotRecordedError, match="10 to .*has recorded 10, .* lacks the message with seq.* 10"):
            publisher.wait_recorded(SOON_S)
        assert max(told.recorded for told in positions(publisher)) == 10


def test_losses_on_one_line_do_not_delay_the_position(tmp_path: Path) -> None:
    feed = feed_of(lines=2)
    with Publisher(feed) as publisher, LossyProxy(feed, 0.3) as proxy:
        lines = (proxy.feed.slices[0].lines[0], feed.slices[0].lines[1])
        both = msgspec.structs.replace(feed, slices=(msgspec.structs.replace(feed.slices[0], endpoints=lines),))
        with Recorder(both, tmp_path, line_wait=60):
            for at in range(0, 600, 10):
                publish_numbered(publisher, at, 10)
                publisher.wait_recorded(60)
                assert published(feed, tmp_path) == [*range(at + 10)]
        assert proxy.lost > 3


@pytest.mark.parametrize("make", [feed_of, shared_feed])
def test_positions_of_a_new_epoch_begin_at_zero(tmp_path: Path, make: Callable[[], Feed]) -> None:
    feed = make()
    with Publisher(feed) as publisher, Recorder(feed, tmp_path, fsync_interval=0.001):
        for at in range(0, 500, 100):
            publish_numbered(publisher, at, 100)
            (publisher.wait_recorded if at % 200 else publisher.wait_synced)(60)
            assert [p.recorded for p in positions(publisher)] == [100]
            assert published(feed, tmp_path) == [*range(at + 100)]
            publisher.new_epoch()


def test_the_end_of_an_epoch_ends_waits(tmp_path: Path) -> None:
    feed = feed_of()
    with Publisher(feed) as publisher, ThreadPoolExecutor(1) as thread:
        publish_numbered(publisher, 0, 100)
        waiting = thread.submit(publisher.wait_recorded, 60)
        sender = publisher._slices[0].sender
        wait_until(lambda: sender.subscriptions.times_asked)
        publisher.new_epoch()
        with pytest.raises(NotRecordedError, match="was ended by `new_epoch` while 100 of its messages were not yet"):
            waiting.result()


def test_what_is_recorded_of_the_next_epoch_does_not_count_for_an_earlier_one() -> None:
    with Publisher(feed_of()) as publisher:
        publish_numbered(publisher, 0, 1)
        publisher.flush()
        writer = publisher._slices[0]
        asked = writer.ask_recorders()
        publisher.new_epoch()
        subscriptions = writer.sender.subscriptions
        with subscriptions.changed:
            said = Acknowledgement(bytes(8), publisher.epoch, 0, 5, 5, NOTHING_MISSING, "recorder")
            subscriptions.acknowledgements.note(0, b"", said)
        with pytest.raises(NotRecordedError, match="was ended by `new_epoch` while 1 of its messages"):
            writer.wait_acknowledged("recorded", 1, asked, 60.0, time.monotonic() + 60.0)


def test_a_recorder_that_never_syncs_is_named(tmp_path: Path) -> None:
    feed = feed_of()
    with Publisher(feed) as publisher, Recorder(feed, tmp_path, fsync="never"):
        publish_numbered(publisher, 0, 10)
        publisher.wait_recorded(60)
        with pytest.raises(NotRecordedError, match=r'not synced .* recorded 10, never syncs \(fsync="never"\), of 10'):
            publisher.wait_synced(SOON_S)
        assert [p.synced for p in positions(publisher)] == [None]


def test_a_wait_without_messages_returns_at_once() -> None:
    with Publisher(feed_of(slices=3)) as publisher:
        publisher.wait_synced(0.0, by=2)
        with pytest.raises(ValueError, match="by was 0, expected 1 or more"):
            publisher.wait_recorded(by=0)


@pytest.mark.long
def test_synced_messages_survive_a_power_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power loss keeps of each file what it had when the last finished sync began."""
    feed, choice = feed_of(), random.Random(3)
    on_disk: dict[str, int] = {}

    def sync(fd: int) -> None:
        path, size = str(Path(f"/proc/self/fd/{fd}").readlink()), os.fstat(fd).st_size
        os.fsync(fd)
        on_disk[path] = max(size, on_disk.get(path, 0))

    monkeypatch.setattr(os, "fdatasync", sync)
    cuts: list[tuple[int, dict[str, int]]] = []
    with (
        Publisher(feed, when_full="wait") as publisher,
        Recorder(feed, tmp_path, fsync_interval=0.001, segment_bytes=MIB),
    ):

        def cut() -> None:
            while len(cuts) < 1_000:
                told = publisher.statistics().recorders
                cuts.append((max((each.synced or 0 for each in told), default=0), dict(on_disk)))
                threading.Event().wait(choice.random() / 500)

        thread = threading.Thread(target=cut)
        thread.start()
        while thread.is_alive():
            publish_numbered(publisher, 0, choice.choice([1, 50, 5_000]))
            if choice.random() < 0.3:
                publisher.wait_synced(200)
        thread.join()
    paths = segments(tmp_path, feed)
    assert len(paths) > 1
    assert len({acknowledged for acknowledged, _ in cuts}) > 20
    written = [(str(path), record) for path in paths for record in stored(path)[0]]
    for acknowledged, sizes in cuts:
        whole = itertools.takewhile(lambda each: each[1].stop <= sizes.get(each[0], 0), written)
        assert acknowledged <= sum(record.fields.count - record.first_row for _, record in whole)


class Counted:
    """Model of a recorder's position in one slice, from the set of received sequences."""

    def __init__(self, begin: int) -> None:
        self.begin = self.recorded = self._next = begin
        self.lacks = False
        self._came: set[int] = set()

    def come(self, first: int, end: int) -> None:
        """Receive a block. Messages before the next sequence are duplicates or too late."""
        self._came |= set(range(max(first, self._next), end))
        self._next = max(end, self._next)

    def beat(self, sequence: int) -> None:
        """Receive a heartbeat."""
        self._next = sequence
        while self.recorded in self._came:
            self.recorded += 1
        self.lacks = self.recorded < sequence


@pytest.mark.parametrize("seed", first_of(range(6), keep=4))
def test_positions_match_a_model_that_counts_messages(tmp_path: Path, seed: int) -> None:
    """Blocks of some keys are lost, repeated and overlap: the position is before the first loss."""
    feed, choice = feed_of(key_bytes=2 * (seed % 2)), random.Random(seed)
    topics = [b"A1", b"A2", b"B1", b"B2"]
    with RawPublisher(feed) as publisher:
        for topic in topics[: choice.randrange(3)]:
            publisher.send(publisher.encode([(topic, b"early")] * choice.randrange(1, 4)))
        counted, before, repeatable = Counted(publisher.sequences[0]), b"", 0
        with Recorder(feed, tmp_path):
            for step in range(60):
                topic, count = choice.choice(topics), choice.randrange(1, 5)
                following, what = publisher.sequences[0], choice.random()
                if what < 0.2 or step == 59:
                    publisher.heartbeat()
                    counted.beat(following)
                elif what < 0.22:
                    publisher.encode([(topic, b"lost")] * count)
                    repeatable = 0
                else:
                    back = choice.randrange(min(3, repeatable + 1)) if topic == before else 0
                    sent = publisher.ends[0].get(feed.key_of(topic), End(0, 0)).count - back
                    block = publisher.encode(
                        [(topic, b"")] * (count + back),
                        sequence=following - back,
                        key_sequence=sent if feed.key_bytes else None,
                    )
                    publisher.send(block)
                    counted.come(following - back, following + count)
                    before, repeatable = topic, count
                assert all(told.recorded <= counted.recorded for told in _told(publisher))

            def is_told() -> bool:
                said = {(told.begin, told.recorded, told.missing) for told in _told(publisher)}
                return said == {(counted.begin, counted.recorded, counted.recorded if counted.lacks else -1)}

            wait_until(is_told, what=f"the position is {counted.recorded}, messages are missing: {counted.lacks}")


def _told(publisher: RawPublisher) -> list[Acknowledgement]:
    said = [Acknowledgement.decode(key) for key in publisher.subscriptions() if key.startswith(RECORDED_KEY)]
    return [told for told in said if told is not None]
