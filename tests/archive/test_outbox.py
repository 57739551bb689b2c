"""A killed publisher with an outbox continues its epoch with the next sequence and loses no sent message."""

from __future__ import annotations

import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import numpy
import pytest

from blackbox import ConfigError, Feed, Gap, Message, Publisher, Recorder, Recording, Subscriber
from blackbox.archive.maintain.retention import Retention
from blackbox.archive.record import outbox as outbox_module
from blackbox.archive.record.outbox import Outbox
from blackbox.block.position import End
from blackbox.errors import JournalError
from blackbox.testing import wait_until
from tests.archive.archives import archived_feed
from tests.archive.recorders import FOREVER_NS, check_keys, days, feed_of, publish_numbered, wait_recorded
from tests.damaged import flip
from tests.receive.subscribers import PATIENT
from tests.support import Script

Said = dict[tuple[int, int], bytes]
"""Published payload by (epoch, sequence)."""


def said_in(directory: Path, feed: Feed) -> Said:
    """Return the payloads in recordings, which must have each sequence once."""
    said: Said = {}
    for day in days(directory, feed):
        for batch in Recording.open(day).batches():
            for message in batch:
                place = message.epoch, message.sequence
                assert place not in said
                said[place] = bytes(message.payload or b"")
    return said


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
    """Return a copy of the files that a kill of the publisher would leave now."""
    publisher.flush()
    shutil.copytree(directory, elsewhere, ignore=shutil.ignore_patterns("*.new"))  # files being replaced
    return elsewhere


def test_a_killed_publisher_continues_with_the_next_sequence(tmp_path: Path) -> None:
    feed = feed_of(key_bytes=1)
    topics = (b"A.x", b"B.x", b"C.x")
    with Publisher(feed, outbox=tmp_path / "first") as publisher:
        epoch = publisher.epoch
        publisher.publish_many(topics, [0, 0, 1, 2, 2, 2], numpy.zeros((6, 8), numpy.uint8))
        publisher.publish(b"A.x", b"alone")
        left = killed(publisher, tmp_path / "first", tmp_path / "left")
        assert publisher.statistics().unwanted == 7
    with Publisher(feed, outbox=Outbox(left, again_wait=0)) as publisher:
        assert publisher.epoch == epoch
        publisher.publish_many(topics, [0, 1, 2], numpy.ones((3, 8), numpy.uint8))
        publisher.flush()
        publisher.new_epoch()
        publisher.publish_many(topics, [2, 1, 0, 0], numpy.ones((4, 8), numpy.uint8))
    with Publisher(feed, outbox=Outbox(left, again_wait=0)) as publisher:
        assert publisher.epoch > epoch + 1  # the last one was closed, not killed
        publisher.publish(b"A.x", b"")
    numbers = {epoch: 10, epoch + 1: 4, publisher.epoch: 1}
    assert sorted(said_in(left, feed)) == [(epoch, sequence) for epoch in numbers for sequence in range(numbers[epoch])]
    check_keys(*days(left, feed))


@pytest.mark.parametrize("slices", [1, 2])
def test_a_publisher_closed_without_a_message_since_a_kill_begins_a_new_epoch(tmp_path: Path, slices: int) -> None:
    feed = feed_of(slices)
    with Publisher(feed, outbox=tmp_path / "first") as publisher:
        publisher.publish(b"A.x", b"")
        left = killed(publisher, tmp_path / "first", tmp_path / "left")
    with Publisher(feed, outbox=Outbox(left, again_wait=0)) as again:
        assert again.epoch == publisher.epoch
    with Publisher(feed, outbox=Outbox(left, again_wait=0)) as third:
        assert third.epoch > publisher.epoch


def test_an_epoch_without_messages_continues_after_a_kill(tmp_path: Path) -> None:
    feed = feed_of(heartbeat_ns=FOREVER_NS)
    with Publisher(feed, outbox=Outbox(tmp_path / "first", fsync="block")) as publisher:
        publisher.publish(b"A.x", b"")
        publisher.new_epoch()
        left = killed(publisher, tmp_path / "first", tmp_path / "left")
    with Publisher(feed, outbox=Outbox(left, again_wait=0, fsync="block")) as again:
        assert again.epoch == publisher.epoch


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
        day = days(tmp_path / str(turn), feed)[-1]
        wait_until(lambda: not is_named or any(mark.keys for mark in Recording.open(day).marks()))
        killed(publisher, tmp_path / str(turn), place)
    if turn == 0:
        (day,) = days(place, feed)
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
        check_keys(*days(place, feed))
    blocks = [batch.block for day in days(place, feed) for batch in Recording.open(day).batches()]
    assert [(block.previous, block.key_sequence) for block in blocks[-2:]] == [(1, 1), (2, 1)]


@pytest.mark.parametrize("how", ["deleted", "damaged"])
def test_a_new_epoch_begins_if_ends_of_keys_are_unknown(tmp_path: Path, how: str) -> None:
    feed = feed_of(key_bytes=1, heartbeat_ns=FOREVER_NS)
    for turn in range(2):
        place, epoch = turned(tmp_path, feed, turn, is_named=False)
    day = place / feed.name / "2019-12-30"
    if how == "deleted":
        shutil.rmtree(day)
    else:
        flip(min(day.rglob("*.journal")), b"A.x")
    with pytest.raises(JournalError, match="lacks the end of some key in epoch .* cannot be read or were deleted"):
        Publisher(feed, outbox=Outbox(place, epoch=epoch)).start()
    with Publisher(feed, outbox=place) as publisher:
        assert publisher.epoch > epoch


def test_an_outbox_deletes_old_days_and_continues(tmp_path: Path) -> None:
    feed = feed_of(key_bytes=1)
    for turn in range(2):
        place, epoch = turned(tmp_path, feed, turn)
    with Publisher(feed, outbox=Outbox(place, again_wait=0, retention=Retention(days=1))) as publisher:
        assert publisher.epoch == epoch
        assert publisher.published_count(0) == 2
        wait_until(lambda: not (place / feed.name / "2019-12-30").exists())


def test_messages_published_before_the_kill_are_sent_again(tmp_path: Path) -> None:
    """The subscriber starts with the second publisher and gets the earlier messages too."""
    feed = archived_feed()
    with Publisher(feed, outbox=tmp_path / "outbox") as publisher:
        for start in range(0, 1_000, 100):
            publish_numbered(publisher, start, 100)
            publisher.flush()
        left = killed(publisher, tmp_path / "outbox", tmp_path / "left")
    subscriber = Subscriber(feed, slow=PATIENT)
    heard, gaps = heard_by(subscriber)

    def go_on() -> None:
        with Publisher(feed, outbox=Outbox(left, again_wait=60)) as publisher:
            publisher.publish(b"A.t", b"after")

    thread = threading.Thread(target=go_on)
    thread.start()
    subscriber.start(timeout=200)
    subscriber.run(until_end=True)
    thread.join()
    assert sorted(number for _, number in heard) == list(range(1_001))
    assert gaps == []
    assert heard == said_in(left, feed)


def test_what_on_demand_publishes_takes_no_sequence_of_a_block_that_is_sent_again(tmp_path: Path) -> None:
    feed = archived_feed()
    with Publisher(feed, outbox=tmp_path / "outbox") as publisher:
        publish_numbered(publisher, 0, 100)
        left = killed(publisher, tmp_path / "outbox", tmp_path / "left")
    subscriber = Subscriber(feed, slow=PATIENT)
    heard, gaps = heard_by(subscriber)
    again = Publisher(feed, outbox=Outbox(left, again_wait=2.0))
    again.on_demand(lambda _prefix, is_wanted: again.publish(b"A.t", b"snapshot") if is_wanted else None)
    thread = threading.Thread(target=subscriber.start, args=(200,))
    thread.start()
    with again:
        thread.join()
    subscriber.run(until_end=True)
    assert said_in(left, feed)[again.epoch, 100] == b"snapshot"
    assert heard[again.epoch, 100] == b"snapshot"
    assert gaps == []


def test_only_blocks_that_no_archive_has_are_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feed = archived_feed(key_bytes=1)
    recorder = Recorder(feed, tmp_path / "recorded", serve=True)
    with Publisher(feed, outbox=tmp_path / "outbox") as publisher:
        recorder.start()
        for start in range(0, 1_000, 100):
            publish_numbered(publisher, start, 100)
            publisher.flush()
        wait_recorded(recorder, 1_000)
        wait_until(lambda: len(said_in(tmp_path / "recorded", feed)) == 1_000)
        copied = killed(publisher, tmp_path / "outbox", tmp_path / "copied")
        limited = shutil.copytree(copied, tmp_path / "limited")
        with monkeypatch.context() as patched:
            patched.setattr(outbox_module, "_ASK_S", 60.0)
            box = opened(Outbox(copied), feed)
        assert (box.sequence, box.again) == (1_000, [])
        assert box.ends == {b"A": End(1_000, 1_000)}
    recorder.stop()
    again = opened(Outbox(limited, again_bytes=30_000), feed).again
    assert 0 < sum(block.body.nbytes for block in again) <= 30_000
    assert again[-1].sequence + again[-1].count == 1_000


def opened(outbox: Outbox, feed: Feed) -> Any:
    """Return slice 0 of an outbox that was left by a killed publisher."""
    found = outbox.open(feed).slices[0]
    outbox.close()
    return found


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


def test_kills_reuse_no_sequence_and_lose_nothing(tmp_path: Path) -> None:
    """After any kill, the outbox has the same message as the subscriber under each sequence."""
    feed = archived_feed(key_bytes=1)
    subscriber = Subscriber(feed, on_gap="repair", repair_wait=60, slow=PATIENT)
    heard, gaps = heard_by(subscriber)
    ends: list[bytes] = []
    for topic in (b"A.end", b"B.end"):
        subscriber.on(topic, fields=("topic",))(ends.append)
    epochs, before = set(), 0
    for seed in range(2):
        with Script(PUBLISH, feed) as script:
            script.tell(f"{seed} {tmp_path} {feed.archives[0]}")
            epochs.add(script.read().split()[1])
            if seed == 0:
                subscriber.start(timeout=200)
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
        wait_until(lambda: len(ends) == 2)
    subscriber.run(until_end=True)
    assert len(epochs) == 1
    assert gaps == []
    first, kept = min(heard), said_in(tmp_path, feed)
    assert heard == {place: text for place, text in kept.items() if place >= first}
    check_keys(*days(tmp_path, feed))


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
        subscriber.start(timeout=200)
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


def test_an_outbox_in_use_and_invalid_settings_are_rejected(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path)
    with Publisher(feed_of(), outbox=outbox) as publisher:
        with pytest.raises(JournalError, match="is being recorded by"):
            Publisher(feed_of(), outbox=tmp_path).start()
        with pytest.raises(JournalError, match="was used before"):
            Publisher(feed_of(), outbox=outbox).start()
        publish_numbered(publisher, 0, 10)
    assert len(said_in(tmp_path, publisher.feed)) == 10
    with pytest.raises(ValueError, match="again_bytes was -1"):
        Outbox(tmp_path, again_bytes=-1)
    with pytest.raises(ConfigError, match="had no archives"):
        Publisher(feed_of(), outbox=Outbox(tmp_path, serve=True)).start()
