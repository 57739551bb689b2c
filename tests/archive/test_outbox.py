"""A killed publisher with an outbox continues its epoch with the next sequence and loses no sent message."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Any

import msgspec
import numpy
import pytest

from blackbox import ConfigError, Feed, Gap, Message, Publisher, Recorder, Recording, Subscriber
from blackbox.archive import outbox as outbox_module
from blackbox.archive.outbox import Outbox
from blackbox.archive.retention import Retention
from blackbox.block.position import End
from blackbox.errors import JournalError
from blackbox.testing import wait_until
from tests.archive.archives import archived_feed
from tests.archive.recorders import FOREVER_NS, feed_of, numbered, publish_numbered, wait_recorded
from tests.examples import first_of
from tests.subscribe.subscribers import PATIENT
from tests.support import Script

Said = dict[tuple[int, int], bytes]
"""Published payload by (epoch, sequence)."""


def said_in(directory: Path, feed: Feed) -> Said:
    """Return the payloads in recordings, which must have each sequence once."""
    said: Said = {}
    for manifest in sorted((directory / feed.name).glob("*/manifest.json")):
        for batch in Recording.open(manifest.parent).batches():
            for message in batch:
                place = message.epoch, message.sequence
                assert place not in said
                said[place] = bytes(message.payload or b"")
    return said


def check_keys(directory: Path, feed: Feed) -> None:
    """Check that each block has the end of the earlier blocks of its key, and their number of messages."""
    ends: dict[tuple[int, bytes], End] = {}
    following: dict[int, int] = {}
    for manifest in sorted((directory / feed.name).glob("*/manifest.json")):
        for batch in Recording.open(manifest.parent).batches():
            block = batch.block
            assert block.sequence == following.get(block.epoch, 0)
            assert (block.previous, block.key_sequence) == ends.get((block.epoch, block.key), End(0, 0))
            following[block.epoch] = block.sequence + block.count
            ends[block.epoch, block.key] = End(following[block.epoch], block.key_sequence + block.count)


def heard_by(subscriber: Subscriber) -> tuple[Said, list[Gap]]:
    said: Said = {}
    gaps: list[Gap] = []

    @subscriber.on(b"")
    def _(message: Message) -> None:
        place = message.epoch, message.sequence
        assert place not in said
        said[place] = bytes(message.payload or b"")

    subscriber.on_gap(b"")(gaps.append)
    return said, gaps


def killed(publisher: Publisher, directory: Path, elsewhere: Path) -> Path:
    """Return a copy of the files as they would be if the publisher were killed now."""
    publisher.flush()
    shutil.copytree(directory, elsewhere)
    return elsewhere


@pytest.mark.parametrize("key_bytes", [0, 1])
def test_a_killed_publisher_continues_with_the_next_sequence(tmp_path: Path, key_bytes: int) -> None:
    feed = feed_of(key_bytes=key_bytes)
    topics = (b"A.x", b"B.x", b"C.x")
    with Publisher(feed, outbox=tmp_path / "first") as publisher:
        epoch = publisher.epoch
        publisher.publish_many(topics, [0, 0, 1, 2, 2, 2], numpy.zeros((6, 8), numpy.uint8))
        publisher.publish(b"A.x", b"alone")
        left = killed(publisher, tmp_path / "first", tmp_path / "left")
    with Publisher(feed, outbox=Outbox(left, again_wait=0)) as publisher:
        assert publisher.epoch == epoch
        publisher.publish_many(topics, [0, 1, 2], numpy.ones((3, 8), numpy.uint8))
        publisher.flush()
    assert sorted(said_in(left, feed)) == [(epoch, sequence) for sequence in range(10)]
    check_keys(left, feed)


def turned(tmp_path: Path, feed: Feed, turn: int, *, is_named: bool = True) -> tuple[Path, int]:
    """Continue the outbox of the previous turn, publish, and kill the publisher. Return its outbox and epoch.

    Turn 0 is moved to an earlier day.
    """
    place = tmp_path / f"{turn}-left"
    before = tmp_path / f"{turn - 1}-left"
    if turn:
        shutil.copytree(before, tmp_path / str(turn))
    with Publisher(feed, outbox=Outbox(tmp_path / str(turn), again_wait=0)) as publisher:
        publisher.publish((b"A.x", b"B.x")[turn % 2], b"%d" % turn)
        publisher.flush()
        day = max((tmp_path / str(turn) / feed.name).glob("*/manifest.json")).parent
        wait_until(lambda: not is_named or any(mark.keys for mark in Recording.open(day).marks()), 60)
        killed(publisher, tmp_path / str(turn), place)
    if turn == 0:
        day = next((place / feed.name).glob("*/manifest.json")).parent
        day.rename(day.with_name("2019-12-30"))
    return place, publisher.epoch


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_silent_key_keeps_its_end_across_days(tmp_path: Path, is_deleted: bool) -> None:
    feed = feed_of(key_bytes=1)
    epochs = set()
    for turn in range(4):
        place, epoch = turned(tmp_path, feed, turn)
        epochs.add(epoch)
        if is_deleted and turn == 1:
            shutil.rmtree(place / feed.name / "2019-12-30")
    assert len(epochs) == 1
    said = {sequence: text for (_, sequence), text in said_in(place, feed).items()}
    assert said == {turn: b"%d" % turn for turn in range(is_deleted, 4)}
    if not is_deleted:
        check_keys(place, feed)
    days = sorted((place / feed.name).glob("*/manifest.json"))
    blocks = [batch.block for day in days for batch in Recording.open(day.parent).batches()]
    assert [(block.previous, block.key_sequence) for block in blocks[-2:]] == [(1, 1), (2, 1)]


def test_a_new_epoch_begins_if_ends_of_keys_were_in_deleted_days(tmp_path: Path) -> None:
    feed = feed_of(key_bytes=1, heartbeat_ns=FOREVER_NS)
    for turn in range(2):
        place, epoch = turned(tmp_path, feed, turn, is_named=False)
    shutil.rmtree(place / feed.name / "2019-12-30")
    with pytest.raises(JournalError, match="lacks the end of some key in epoch .* cannot be read or were deleted"):
        Publisher(feed, outbox=Outbox(place, epoch=epoch)).start()
    with Publisher(feed, outbox=place) as publisher:
        assert publisher.epoch > epoch


@pytest.mark.parametrize("key_bytes", [0, 1])
def test_an_outbox_deletes_old_days_and_continues(tmp_path: Path, key_bytes: int) -> None:
    feed = feed_of(key_bytes=key_bytes)
    for turn in range(2):
        place, epoch = turned(tmp_path, feed, turn, is_named=key_bytes > 0)
    with Publisher(feed, outbox=Outbox(place, again_wait=0, retention=Retention(days=1))) as publisher:
        assert publisher.epoch == epoch
        assert publisher.published_count(0) == 2
        wait_until(lambda: not (place / feed.name / "2019-12-30").exists(), 60)


def test_a_closed_publisher_is_followed_by_another_epoch(tmp_path: Path) -> None:
    feed, epochs = feed_of(slices=2), []
    for _ in range(3):
        with Publisher(feed, outbox=tmp_path) as publisher:
            publish_numbered(publisher, 0, 10)
            epochs.append(publisher.epoch)
    assert epochs == sorted(set(epochs))
    assert sorted(said_in(tmp_path, feed)) == [(epoch, number) for epoch in epochs for number in range(10)]


def test_unwanted_messages_are_stored_and_not_sent(tmp_path: Path) -> None:
    feed = feed_of()
    with Publisher(feed, outbox=tmp_path) as publisher:
        publish_numbered(publisher, 0, 1_000)
        publisher.publish(b"A.t", b"single")
        publisher.flush()
        assert publisher.statistics().unwanted == 1_001
    assert len(said_in(tmp_path, feed)) == 1_001


GO_ON = """
with Publisher(feed, outbox=Outbox(input(), again_wait=60)) as publisher:
    publisher.publish(b"A.t", b"after")
    publisher.flush()
    input()
"""


def test_messages_published_before_the_kill_are_sent_again(tmp_path: Path) -> None:
    """The subscriber and the recorder start with the second publisher and get the earlier messages too."""
    feed = archived_feed()
    with Publisher(feed, outbox=tmp_path / "outbox") as publisher:
        for start in range(0, 1_000, 100):
            publish_numbered(publisher, start, 100)
            publisher.flush()
        left = killed(publisher, tmp_path / "outbox", tmp_path / "left")
    subscriber = Subscriber(feed, slow=PATIENT)
    heard, gaps = heard_by(subscriber)
    with Script(GO_ON, feed) as script:
        script.tell(str(left))
        subscriber.start(timeout=60)
        wait_until(lambda: len(heard) == 1_001, 60)
        script.tell("")
        subscriber.run(until_end=True)
    assert sorted(number for _, number in heard) == list(range(1_001))
    assert gaps == []
    assert heard == said_in(left, feed)


@pytest.mark.parametrize("key_bytes", [0, 1])
def test_only_blocks_that_no_archive_has_are_sent_again(tmp_path: Path, key_bytes: int) -> None:
    feed = archived_feed(key_bytes=key_bytes)
    recorder = Recorder(feed, tmp_path / "recorded", serve=True)
    with Publisher(feed, outbox=tmp_path / "outbox") as publisher:
        recorder.start()
        for start in range(0, 1_000, 100):
            publish_numbered(publisher, start, 100)
            publisher.flush()
        wait_recorded(recorder, 1_000)
        wait_until(lambda: len(said_in(tmp_path / "recorded", feed)) == 1_000)
        copied = killed(publisher, tmp_path / "outbox", tmp_path / "copied")
        found = Outbox(copied).open(feed)
        assert found.slices[0].sequence == 1_000
        assert found.slices[0].ends == {b"A"[:key_bytes]: End(1_000, 1_000)}
        assert found.slices[0].again == []
    recorder.stop()


def test_the_size_of_messages_sent_again_is_bounded(tmp_path: Path) -> None:
    feed = feed_of(block_bytes=8_192)
    with Publisher(feed, outbox=tmp_path / "outbox") as publisher:
        publish_numbered(publisher, 0, 2_000)
        copied = killed(publisher, tmp_path / "outbox", tmp_path / "copied")
    outbox = Outbox(copied, again_bytes=30_000)
    box = outbox.open(feed).slices[0]
    outbox.close()
    assert 0 < sum(block.body.nbytes for block in box.again) <= 30_000
    assert box.again[-1].sequence + box.again[-1].count == 2_000
    assert box.sequence == 2_000


PUBLISH = """
seed, directory, archive = input().split()
chance = numpy.random.default_rng(int(seed))
outbox = Outbox(directory, serve=archive, again_wait=0.2)
with Publisher(feed, when_full="wait", outbox=outbox) as publisher:
    say("up", publisher.epoch)
    while True:
        count = int(chance.integers(1, 50))
        rows = chance.integers(0, 256, (count, 16), numpy.uint8)
        publisher.publish_many((b"A.x", b"B.x"), chance.integers(0, 2, count), rows)
        publisher.publish(b"B.x", rows[0].tobytes())
        threading.Event().wait(0.0005)
"""


@pytest.mark.parametrize("key_bytes", first_of([1, 0]))
def test_kills_reuse_no_sequence_and_lose_nothing(tmp_path: Path, key_bytes: int) -> None:
    """After any kill, the outbox has the same message as the subscriber under each sequence."""
    feed = archived_feed(key_bytes=key_bytes)
    subscriber = Subscriber(feed, on_gap="repair", repair_wait=60, slow=PATIENT)
    heard, gaps = heard_by(subscriber)
    ends: list[bytes] = []
    for topic in (b"A.end", b"B.end"):
        subscriber.on(topic, fields=("topic",))(ends.append)
    epochs, before = set(), 0
    for seed in range(3):
        with Script(PUBLISH, feed) as script:
            script.tell(f"{seed} {tmp_path} {feed.archives[0]}")
            epochs.add(script.read().split()[1])
            if seed == 0:
                subscriber.start(timeout=60)
            wait_until(lambda before=before: len(heard) > before + 2_000, 60)  # type: ignore[misc]
            before = len(heard)
            script.process.send_signal(signal.SIGKILL)
            script.process.wait()
    with Publisher(feed, outbox=Outbox(tmp_path, serve=True)) as publisher:
        epochs.add(str(publisher.epoch))
        publisher.wait_for_subscribers()
        publisher.publish(b"A.end", b"")
        publisher.publish(b"B.end", b"")
        publisher.flush()
        wait_until(lambda: len(ends) == 2, 60)
    subscriber.run(until_end=True)
    assert len(epochs) == 1
    assert gaps == []
    kept = said_in(tmp_path, feed)
    assert heard == {place: text for place, text in kept.items() if place >= min(heard)}
    check_keys(tmp_path, feed)


FILL = """
import resource
directory, limit = input().split()
resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), resource.RLIM_INFINITY))
try:
    with Publisher(feed, outbox=directory) as publisher:
        publisher.wait_for_subscribers()
        while True:
            publisher.publish_many((b"A.t",), numpy.zeros(100, int), numpy.zeros((100, 100), numpy.uint8))
            publisher.flush()
except PublisherError as error:
    say(error)
"""


def test_a_full_disk_ends_the_publisher_before_it_sends_unstored_messages(tmp_path: Path) -> None:
    feed = feed_of()
    subscriber = Subscriber(feed, slow=PATIENT)
    heard, _ = heard_by(subscriber)
    with Script(FILL, feed) as script:
        script.tell(f"{tmp_path} 300000")
        subscriber.start(timeout=60)
        said = script.read()
        assert "the outbox refused a block: " in said
        assert ".journal: File too large" in said
        script.process.wait()
    subscriber.stop()
    kept = said_in(tmp_path, feed)
    assert len(kept) > 1_000
    assert set(heard) <= set(kept)


def test_after_a_reboot_a_new_epoch_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page cache is lost, so the last used sequence is unknown."""
    feed = feed_of()
    with Publisher(feed, outbox=Outbox(tmp_path / "a", fsync="block")) as publisher:
        epoch = publisher.epoch
        publish_numbered(publisher, 0, 10)
        copied = killed(publisher, tmp_path / "a", tmp_path / "b")
        again = killed(publisher, tmp_path / "a", tmp_path / "c")
    (tmp_path / "id").write_text("another")
    monkeypatch.setattr(outbox_module, "_BOOT_ID", tmp_path / "id")
    with Publisher(feed, outbox=copied) as publisher:
        assert publisher.epoch > epoch
    with Publisher(feed, outbox=Outbox(again, fsync="block", again_wait=0)) as publisher:
        assert publisher.epoch == epoch


def test_a_new_epoch_of_the_same_publisher_is_stored_too(tmp_path: Path) -> None:
    feed = feed_of()
    with Publisher(feed, outbox=tmp_path / "first") as publisher:
        epoch = publisher.epoch
        publish_numbered(publisher, 0, 30)
        left = killed(publisher, tmp_path / "first", tmp_path / "left")
    with Publisher(feed, outbox=Outbox(left, again_wait=0)) as publisher:
        publish_numbered(publisher, 30, 10)
        publisher.new_epoch()
        publish_numbered(publisher, 0, 20)
        publisher.flush()
    kept = said_in(left, feed)
    assert sorted(kept) == [
        *((epoch, number) for number in range(40)),
        *((epoch + 1, number) for number in range(20)),
    ]
    rows = numbered(0, 40)
    assert all(kept[epoch, number] == rows[number].tobytes() for number in range(40))


def test_an_outbox_in_use_is_rejected(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path)
    with Publisher(feed_of(), outbox=outbox) as publisher:
        with pytest.raises(JournalError, match="is being recorded by"):
            Publisher(feed_of(), outbox=tmp_path).start()
        with pytest.raises(JournalError, match="was used before"):
            Publisher(feed_of(), outbox=outbox).start()
        publish_numbered(publisher, 0, 10)
    assert len(said_in(tmp_path, publisher.feed)) == 10


def test_invalid_settings_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="again_bytes was -1"):
        Outbox(tmp_path, again_bytes=-1)
    with pytest.raises(ConfigError, match="had no archives"):
        Publisher(feed_of(), outbox=Outbox(tmp_path, serve=True)).start()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_an_outbox_changes_nothing_for_subscribers(tmp_path: Path, transport: Any) -> None:
    feed = msgspec.structs.replace(feed_of(), slices=Feed.local("tape", slices=1, transport=transport).slices)
    subscriber = Subscriber(feed, slow=PATIENT)
    heard, gaps = heard_by(subscriber)
    with Publisher(feed, when_full="wait", outbox=tmp_path) as publisher:
        subscriber.start()
        for start in range(0, 20_000, 1_000):
            publish_numbered(publisher, start, 1_000)
            publisher.publish(b"A.t", b"%d" % start)
        publisher.flush()
        assert publisher.statistics().messages == 20_020
    subscriber.run(until_end=True)
    assert heard == said_in(tmp_path, feed)
    assert (len(heard), gaps) == (20_020, [])


def test_an_outbox_with_unreadable_keys_begins_a_new_epoch(tmp_path: Path) -> None:
    feed = feed_of(key_bytes=1)
    with Publisher(feed, outbox=tmp_path / "first") as publisher:
        epoch = publisher.epoch
        for start in range(0, 100, 10):
            publish_numbered(publisher, start, 10)
            publisher.flush()
        left = killed(publisher, tmp_path / "first", tmp_path / "left")
    segment = next(left.rglob("*.journal"))
    data = bytearray(segment.read_bytes())
    data[data.rindex(b"A.t")] ^= 0xFF
    segment.write_bytes(data)
    with pytest.raises(JournalError, match="lacks the end of some key in epoch .* cannot be read or were deleted"):
        Publisher(feed, outbox=Outbox(left, epoch=epoch)).start()
    with Publisher(feed, outbox=left) as publisher:
        assert publisher.epoch > epoch
