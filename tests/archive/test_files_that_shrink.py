"""A file that shrinks while it is read loses only the cut data; pipes, devices and huge files are rejected."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy
import pytest

from blackbox import ConfigError, Feed, Message, Publisher, Recording, Replay, SlowPolicy, Subscriber
from blackbox.archive.files.mapping import Mapping
from blackbox.archive.record.crash_recovery import recover_day
from blackbox.block.form.block import Block, HeaderFields
from blackbox.block.form.rows import PayloadColumns
from blackbox.errors import JournalError
from blackbox.publish.send.batcher import Stored
from blackbox.testing import wait_until
from tests.cli.commands import assert_one_line, invoke
from tests.examples import first_of
from tests.journals import Day, Put, Row, feed_of

BLOCKS = 600
BODY = 100_000
"""Size of a payload, such that the reader needs several runs."""


def large_day(path: Path) -> Day:
    """Write one segment of blocks with one message each, filled with the block's number."""
    day = Day(path, feed_of())
    day.put(0, *(Put((Row(b"A", bytes([i % 251 + 1]) * BODY, i + 1),), i, i, i) for i in range(BLOCKS)))
    return day


@pytest.mark.parametrize("read", ["batches", "replay"])
def test_a_segment_that_shrinks_while_it_is_read_loses_only_the_cut_data(tmp_path: Path, read: str) -> None:
    segment = large_day(tmp_path).segments[0]
    recording, found = Recording.open(tmp_path), list[set[int]]()

    def take(message: Message) -> None:
        found.append(set(message.payload or b""))
        if len(found) == 10:
            os.truncate(segment.path, segment.places[400][0] + 5_000)

    if read == "batches":
        for batch in recording.batches():
            for message in batch:
                take(message)
    else:
        subscriber = Subscriber(recording.feed)
        subscriber.on(b"A")(take)
        subscriber.replay(recording)
    assert found == [{number % 251 + 1} for number in range(400)]
    assert any("shrank to" in str(damage) for damage in recording.damage)
    assert any("no good record begins here" in str(each) or "checksum" in str(each) for each in recording.damage)
    assert recording.verify()


@pytest.mark.parametrize(("is_queued", "kept"), [(False, 400), (True, 5)])
def test_a_segment_that_shrinks_while_it_is_sent_ends_the_replay_with_an_error(
    tmp_path: Path, is_queued: bool, kept: int
) -> None:
    """Queued blocks are sent unchanged."""
    segment, feed = large_day(tmp_path).segments[0], Feed.local("again", slices=1)
    hwm_blocks, queue_blocks = (8, 1) if is_queued else (128, 16)
    subscriber = Subscriber(feed, slow=SlowPolicy("warn"), hwm_blocks=hwm_blocks, queue_blocks=queue_blocks)
    replay, go_on = Replay(Recording.open(tmp_path)), threading.Event()
    found, ended = list[tuple[int, set[int]]](), list[str]()

    @subscriber.on(b"A")
    def _(message: Message) -> None:
        assert not is_queued or go_on.wait(100)
        found.append((message.sequence, set(message.payload or b"")))

    def send() -> None:
        try:
            replay.publish(publisher)
        except JournalError as error:
            ended.append(str(error))

    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start(timeout=100)
        if not is_queued:
            replay.controls.step(10)
        sender = threading.Thread(target=send)
        sender.start()
        wait_until(lambda: publisher.statistics().waits > 3 if is_queued else len(found) == 10, what="full queues")
        queued = publisher.statistics().messages
        size = segment.places[kept][0] + 5_000
        os.truncate(segment.path, size)
        go_on.set()
        replay.controls.resume()
        sender.join()
    subscriber.run(until_end=True)
    assert queued <= len(found) < BLOCKS if is_queued else len(found) == 10
    assert found == [(number, {number % 251 + 1}) for number in range(len(found))]
    (error,) = ended
    assert error.startswith(f"{segment.path}: the file shrank to {size} bytes while it was read")
    assert error.endswith("the rest is not sent")


def test_a_file_cut_within_its_last_page_while_sent_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    day = Day(tmp_path, feed_of())
    day.put(0, Put((Row(b"A", b"1" * BODY, 1),), 0, 0, 0))
    segment, put = day.segments[0].path, Publisher._publish_rows

    def shrink(*arguments: Any) -> None:
        os.truncate(segment, segment.stat().st_size - 8)
        put(*arguments)

    monkeypatch.setattr(Publisher, "_publish_rows", shrink)
    with Publisher(Feed.local("again", slices=1)) as publisher, Subscriber(publisher.feed) as subscriber:
        subscriber.on(b"")(lambda message: None)
        publisher.wait_for_subscribers()
        with pytest.raises(JournalError, match="the file shrank"):
            Replay(Recording.open(tmp_path)).publish(publisher)


@pytest.mark.parametrize("form", ["messages", "blocks", "header"])
def test_lost_pages_of_a_mapped_file_are_not_published(tmp_path: Path, form: str) -> None:
    path = tmp_path / "file"
    block = Block.encode([b"T"], [0], PayloadColumns(b"\1" * 100_000, offsets=[0, 100_000]), HeaderFields(epoch=1))
    header = numpy.frombuffer(block.header, numpy.uint8).copy()
    path.write_bytes((bytes(header) if form == "header" else b"") + bytes(block.body))
    mapping = Mapping(path)
    memory, head = mapping.array(), header.ctypes.data
    body = memory.ctypes.data
    if form == "header":
        head, body = body, body + len(header)
    os.truncate(path, 0 if form == "header" else 5_000)
    with Publisher(Feed.local("shrinks", slices=1)) as publisher, Subscriber(publisher.feed) as subscriber:
        subscriber.on(b"")(lambda message: None)
        publisher.wait_for_subscribers()
        publisher._slices[0].warm_up_stored()
        heads, bodies, skips = (numpy.array([at]) for at in (head, body, 0))
        stored = Stored(heads.ctypes.data, bodies.ctypes.data, skips.ctypes.data, 1)
        truncated = "slice 0: a recording's file was truncated while it was being published"
        with pytest.raises(JournalError, match=truncated):
            if form == "messages":
                publisher.publish_many((b"T",), [0], memory, offsets=[0, len(memory)])
            else:
                publisher._slices[0].put_stored([b""], stored)
        publisher.flush()
        assert (publisher.statistics().messages, publisher.statistics().blocks) == (0, 0)


def test_readers_survive_the_cut_of_a_torn_tail(tmp_path: Path) -> None:
    segment = large_day(tmp_path).segments[0]
    size = segment.path.stat().st_size
    with segment.path.open("ab") as file:
        file.write(b"\1" * 50_000)
    recording = Recording.open(tmp_path)
    ((_, (known,)),) = recording.segments.of()
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
    os.truncate(path, 5_000)
    assert numpy.count_nonzero(memory) == 5_000
    assert mapping.lost() == "the file shrank to 5000 bytes while it was read"
    os.truncate(path, 100_000)
    assert mapping.lost() == f"{-(-100_000 // 4096) - 2} pages were lost while they were read"
    del memory, mapping
    assert Mapping(path).array()[:5_000].all()


DIE = """
    import faulthandler, mmap, sys
    from pathlib import Path
    from blackbox.archive.files.mapping import Mapping
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
    command = [sys.executable, "-c", dedent(DIE), str(tmp_path / "file"), handler]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stdout) == (-signal.SIGBUS, "0\n")
    assert ("Bus error" in ended.stderr) == (handler != "none")


FILES = ["manifest.json", "closed.json", "slice-00000/000000.journal", "slice-00000/000000.index"]


def pipe(path: Path) -> str:
    os.mkfifo(path)
    return "it is a pipe, expected a regular file"


def device(path: Path) -> str:
    path.symlink_to("/dev/zero")
    return "it is a device, expected a regular file"


def directory(path: Path) -> str:
    path.mkdir()
    return "it is a directory, expected a regular file"


def huge(path: Path) -> str:
    with path.open("wb") as file:
        file.truncate(40 << 30)
    return f"it has {40 << 30} bytes, expected at most"


def day_of(path: Path) -> Day:
    day = Day(path, feed_of())
    day.put(0, Put((Row(b"A", b"x"),)))
    return day


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("make", [pipe, device, directory, huge])
def test_a_day_with_an_irregular_file_is_rejected(tmp_path: Path, name: str, make: Callable[[Path], str]) -> None:
    if make is huge and name.endswith(".journal"):
        pytest.skip("a segment may be large")
    day_of(tmp_path)
    (tmp_path / name).unlink(missing_ok=True)
    what = make(tmp_path / name)
    if name == "closed.json":
        (damage,) = Recording.open(tmp_path).verify()
        assert what in damage.what
        return
    with pytest.raises(JournalError, match=what) as raised:
        Recording.open(tmp_path)
    assert str(tmp_path / name.replace(".index", "")) in str(raised.value)
    assert recover_day(tmp_path) == 0
    ended = invoke("inspect", tmp_path)
    assert ended.status == 1
    assert_one_line(ended, what)


@pytest.mark.parametrize("name", ["manifest.json", "closed.json"])
def test_deeply_nested_json_is_reported_as_damage(tmp_path: Path, name: str) -> None:
    day_of(tmp_path)
    fields = b'{"name":"a","format":"|V1","offset":0,"fields":[' * 100_000 + b"]}" * 100_000
    types = b'"id":9,"types":{"t":{"bytes":1,"fields":[%s]}}' % fields
    schema = (tmp_path / "manifest.json").read_bytes().replace(b'"id": 0', types)
    assert types in schema
    for text in (b"[" * 1_000_000, b'{"a":' * 1_000_000, b'{"format":2,"feed":' + b"[" * 1_000_000, schema):
        (tmp_path / name).write_bytes(text)
        if name == "manifest.json":
            with pytest.raises(JournalError, match="is damaged"):
                Recording.open(tmp_path)
        else:
            (damage,) = Recording.open(tmp_path).verify()
            assert "closed.json is damaged" in damage.what


def test_an_irregular_or_deeply_nested_feed_file_is_rejected(tmp_path: Path) -> None:
    for number, make in enumerate((pipe, device, directory, huge)):
        path = tmp_path / f"{number}.toml"
        with pytest.raises(ConfigError, match=make(path)):
            Feed.load(path)
    path = tmp_path / "feed.toml"
    path.write_text("a = " + "[" * 100_000)
    with pytest.raises(ConfigError, match="is not TOML"):
        Feed.load(path)
