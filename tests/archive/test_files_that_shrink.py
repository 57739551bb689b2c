"""A file that shrinks while it is read loses only the cut data, is reported, and crashes no process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy
import pytest

from blackbox import Feed, Publisher, Recording, Replay, Subscriber
from blackbox.archive.crash_recovery import recover_day
from blackbox.archive.mapping import Mapping
from blackbox.block.block import Block
from blackbox.errors import JournalError
from blackbox.publish.batcher import Stored
from tests.examples import first_of
from tests.journals import Day, Put, Row, feed_of

BLOCKS = 600
BODY = 100_000
"""Size of a payload, such that the reader needs several runs."""


def run(script: str, *words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", dedent(script), *map(str, words)], capture_output=True, text=True, timeout=300
    )


def said(script: str, *words: object) -> Any:
    ended = run(script, *words)
    assert ended.returncode == 0, (ended.returncode, ended.stderr)
    return json.loads(ended.stdout.splitlines()[-1])


def large_day(path: Path) -> Day:
    """Write one segment of blocks with one message each, filled with the block's number."""
    day = Day(path, feed_of())
    day.put(0, *(Put((Row(b"A", bytes([i % 251 + 1]) * BODY, i + 1),), i, i, i) for i in range(BLOCKS)))
    return day


READ = """
    import json, os, sys
    from blackbox import Recording
    day, segment, kept = sys.argv[1], sys.argv[2], int(sys.argv[3])
    recording = Recording.open(day)
    found = []
    for batch in recording.batches():
        found += [(sequence, set(message.payload)) for message, sequence in zip(batch, batch.sequence.tolist())]
        if len(found) == 10:
            os.truncate(segment, kept)
    right = all(len(values) == 1 and values == {sequence % 251 + 1} for sequence, values in found)
    print(json.dumps([len(found), right, [str(damage) for damage in recording.damage], len(recording.verify())]))
"""


def test_a_segment_that_shrinks_while_it_is_read_loses_only_the_cut_data(tmp_path: Path) -> None:
    segment = large_day(tmp_path).segments[0]
    start, _ = segment.places[400]
    read, right, damage, verified = said(READ, tmp_path, segment.path, start + 5_000)
    assert right
    assert read == 400
    assert any("shrank to" in text for text in damage)
    assert any("no good record begins here" in text or "checksum" in text for text in damage)
    assert verified


REPLAY = """
    import json, os, sys
    from blackbox import Feed, Recording, Subscriber
    day, segment, kept = sys.argv[1], sys.argv[2], int(sys.argv[3])
    recording = Recording.open(day)
    subscriber = Subscriber(recording.feed)
    found = []
    @subscriber.on(b"A")
    def take(message):
        found.append(set(message.payload))
        if len(found) == 10:
            os.truncate(segment, kept)
    played = subscriber.replay(recording)
    right = all(values == {number % 251 + 1} for number, values in enumerate(found))
    print(json.dumps([len(found), right, played.messages, [str(damage) for damage in recording.damage]]))
"""


@pytest.mark.long
def test_a_segment_that_shrinks_in_a_replay_loses_only_the_cut_data(tmp_path: Path) -> None:
    segment = large_day(tmp_path).segments[0]
    start, _ = segment.places[400]
    called, right, _, damage = said(REPLAY, tmp_path, segment.path, start + 5_000)
    assert right
    assert called == 400
    assert any("shrank to" in text for text in damage)


SEND = """
    import json, os, sys, threading
    from blackbox import Feed, Publisher, Recording, Replay, SlowPolicy, Subscriber
    from blackbox.errors import JournalError
    from blackbox.testing import wait_until
    day, segment, kept = sys.argv[1], sys.argv[2], int(sys.argv[3])
    feed = Feed.local("again", slices=1)
    subscriber = Subscriber(feed, slow=SlowPolicy("warn"))
    found, ended = [], []
    @subscriber.on(b"A")
    def take(message):
        found.append(set(message.payload))
    replay = Replay(Recording.open(day))
    def send():
        try:
            replay.publish(publisher)
        except JournalError as error:
            ended.append(str(error))
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start(timeout=100)
        replay.controls.step(10)
        sender = threading.Thread(target=send)
        sender.start()
        wait_until(lambda: len(found) == 10, 60, "ten messages came")
        os.truncate(segment, kept)
        replay.controls.resume()
        sender.join()
    subscriber.run(until_end=True)
    print(json.dumps([len(found), ended]))
"""


def test_a_segment_that_shrinks_while_it_is_sent_ends_the_replay_with_an_error(tmp_path: Path) -> None:
    segment = large_day(tmp_path).segments[0]
    start, _ = segment.places[400]
    sent, ended = said(SEND, tmp_path, segment.path, start + 5_000)
    shrank = f"{segment.path}: the file shrank to {start + 5_000} bytes while it was read"
    assert sent == 10
    assert len(ended) == 1
    assert ended[0].startswith(shrank)
    assert ended[0].endswith("the rest is not sent")


QUEUED = """
    import json, os, sys, threading
    from blackbox import Feed, Publisher, Recording, Replay, SlowPolicy, Subscriber
    from blackbox.errors import JournalError
    from blackbox.testing import wait_until
    day, segment, kept = sys.argv[1], sys.argv[2], int(sys.argv[3])
    feed = Feed.local("again", slices=1)
    subscriber = Subscriber(feed, slow=SlowPolicy("warn"), hwm_blocks=8, queue_blocks=1)
    found, ended, go_on = [], [], threading.Event()
    @subscriber.on(b"A")
    def take(message):
        assert go_on.wait(100)
        found.append((message.sequence, set(message.payload)))
    def send():
        try:
            Replay(Recording.open(day)).publish(publisher)
        except JournalError as error:
            ended.append(str(error))
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start(timeout=100)
        sender = threading.Thread(target=send)
        sender.start()
        wait_until(lambda: publisher.statistics().waits > 3, 60, "all queues are full")
        queued = publisher.statistics().messages
        os.truncate(segment, kept)
        go_on.set()
        sender.join()
    subscriber.run(until_end=True)
    right = [payload == {sequence % 251 + 1} for sequence, payload in found]
    print(json.dumps([queued, len(found), all(right), ended]))
"""


@pytest.mark.long
def test_queued_blocks_of_a_segment_that_shrinks_are_sent_unchanged(tmp_path: Path) -> None:
    segment = large_day(tmp_path).segments[0]
    start, _ = segment.places[5]
    queued, found, right, ended = said(QUEUED, tmp_path, segment.path, start + 5_000)
    assert 5 < queued <= found < BLOCKS
    assert right
    assert len(ended) == 1
    assert ended[0].startswith(f"{segment.path}: the file shrank to {start + 5_000} bytes while it was read")


def test_a_file_cut_within_its_last_page_while_sent_is_reported_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    day = Day(tmp_path, feed_of())
    day.put(0, Put((Row(b"A", b"1" * BODY, 1),), 0, 0, 0))
    segment, put = day.segments[0].path, Publisher._publish_columns

    def shrink(*arguments: Any) -> None:
        with segment.open("r+b") as file:
            file.truncate(segment.stat().st_size - 8)
        put(*arguments)

    monkeypatch.setattr(Publisher, "_publish_columns", shrink)
    with Publisher(Feed.local("again", slices=1)) as publisher, Subscriber(publisher.feed) as subscriber:
        subscriber.on(b"")(lambda message: None)
        publisher.wait_for_subscribers()
        with pytest.raises(JournalError, match="the file shrank"):
            Replay(Recording.open(tmp_path)).publish(publisher)


@pytest.mark.parametrize("form", ["messages", "blocks"])
def test_lost_pages_of_a_mapped_file_are_not_published(tmp_path: Path, form: str) -> None:
    path = tmp_path / "file"
    block = Block.encode([b"T"], [0], b"\1" * 100_000, offsets=[0, 100_000], epoch=1)
    path.write_bytes(bytes(block.body))
    mapping = Mapping(path)
    memory = mapping.array()
    with path.open("r+b") as file:
        file.truncate(5_000)
    with Publisher(Feed.local("shrinks", slices=1)) as publisher, Subscriber(publisher.feed) as subscriber:
        subscriber.on(b"")(lambda message: None)
        publisher.wait_for_subscribers()
        publisher._warm_up_stored()
        header = numpy.frombuffer(block.header, numpy.uint8).copy()
        heads, bodies, skips = (numpy.array([at]) for at in (header.ctypes.data, memory.ctypes.data, 0))
        stored = Stored(heads.ctypes.data, bodies.ctypes.data, 0, skips.ctypes.data, 1)
        with pytest.raises(
            JournalError, match="slice 0: a recording's file was truncated while it was being published"
        ):
            if form == "messages":
                publisher.publish_many((b"T",), [0], memory, offsets=[0, len(memory)])
            else:
                publisher._publish_stored(0, [b""], stored)
        publisher.flush()
        assert publisher.statistics().messages == 0


def test_a_lost_header_of_a_mapped_file_is_not_published(tmp_path: Path) -> None:
    path = tmp_path / "file"
    block = Block.encode([b"T"], [0], b"\1" * 100, offsets=[0, 100], epoch=1)
    path.write_bytes(bytes(block.header) + bytes(block.body))
    mapping = Mapping(path)
    path.write_bytes(b"")
    with Publisher(Feed.local("shrinks", slices=1)) as publisher, Subscriber(publisher.feed) as subscriber:
        subscriber.on(b"")(lambda message: None)
        publisher.wait_for_subscribers()
        publisher._warm_up_stored()
        body = mapping.address + len(block.header)
        heads, bodies, skips = (numpy.array([at]) for at in (mapping.address, body, 0))
        stored = Stored(heads.ctypes.data, bodies.ctypes.data, 0, skips.ctypes.data, 1)
        with pytest.raises(
            JournalError, match="slice 0: a recording's file was truncated while it was being published"
        ):
            publisher._publish_stored(0, [b""], stored)
        publisher.flush()
        assert publisher.statistics().blocks == 0


def test_readers_survive_the_cut_of_a_torn_tail(tmp_path: Path) -> None:
    segment = large_day(tmp_path).segments[0]
    size = segment.path.stat().st_size
    with segment.path.open("ab") as file:
        file.write(b"\1" * 50_000)
    recording = Recording.open(tmp_path)
    ((_, (known,)),) = recording._segments_of()
    assert len(known.memory) == size + 50_000
    assert recover_day(tmp_path) == 50_000
    assert not known.memory[-4096:].any()
    assert sum(len(batch) for batch in recording.batches()) == BLOCKS
    recording.refresh()
    assert Recording.open(tmp_path).verify() == []


def test_lost_bytes_of_a_mapped_file_are_zeros_and_reported(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\1" * 100_000)
    mapping = Mapping(path)
    memory = mapping.array()
    assert mapping.lost() == ""
    with path.open("r+b") as file:
        file.truncate(5_000)
    assert numpy.count_nonzero(memory) == 5_000
    assert mapping.lost() == "the file shrank to 5000 bytes while it was read"
    with path.open("r+b") as file:
        file.truncate(100_000)
    assert mapping.lost() == f"{-(-100_000 // 4096) - 2} pages were lost while they were read"
    del memory, mapping
    assert Mapping(path).array()[:5_000].all()


DIE = """
    import faulthandler, mmap, sys
    from pathlib import Path
    from blackbox.archive.mapping import Mapping
    path = Path(sys.argv[1])
    path.write_bytes(bytes(100_000))
    if "before" in sys.argv:
        faulthandler.enable()
    ours = [Mapping(path)]
    if "after" in sys.argv:
        faulthandler.enable()
        ours.append(Mapping(path))
    with path.open("r+b") as file:
        theirs = mmap.mmap(file.fileno(), 0)
        file.truncate(10)
    print(ours[-1].array()[50_000], flush=True)
    print(theirs[50_000])
"""


@pytest.mark.parametrize("handler", first_of(["before", "none", "after"]))
def test_a_foreign_memory_fault_still_ends_the_process(tmp_path: Path, handler: str) -> None:
    ended = run(DIE, tmp_path / "file", handler)
    assert (ended.returncode, ended.stdout) == (-signal.SIGBUS, "0\n")
    assert ("Bus error" in ended.stderr) == (handler != "none")
