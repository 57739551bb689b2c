"""A recorder: every message that was received is on disk, once, in order and as it came, or is counted as lost."""

from __future__ import annotations

import ctypes
import datetime
import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy
import pytest

from blackbox import Feed, Publisher
from blackbox.errors import JournalError, NotConfirmedError
from blackbox.journal import append
from blackbox.journal.writer import JournalWriter
from blackbox.pipe import Pipe
from blackbox.recorder import Recorder, RecorderStatistics
from blackbox.recording import Recording
from blackbox.sink import BLOCK, BODY, BODY_BYTES, HEAD, IDLE, KIND, TS_RECV
from blackbox.subscriber import State
from blackbox.testing import RawPublisher, wait_until
from tests.journals import Put, Row, Stored, check_index, record_of, stored
from tests.process_state import held, linux_only
from tests.support import Script

A, B = 0, 1
MIB = 1 << 20
ROW_BYTES = 104
BEAT_NS = 200_000_000
"""A plain publisher that is silent for some of these loses its connection, and what is on it."""
FOREVER_NS = 3_600 * 10**9


def feed_of(slices: int = 1, lines: int = 1, key_bytes: int = 0, **settings: Any) -> Feed:
    feed = Feed.local("tape", slices=slices, lines=lines, key_bytes=key_bytes)
    return msgspec.structs.replace(feed, **{"heartbeat_ns": BEAT_NS, "max_lag_ns": FOREVER_NS} | settings)


def days(directory: Path, feed: Feed) -> list[Path]:
    return sorted(path.parent for path in (directory / feed.name).glob("*/manifest.json"))


def segments(directory: Path, feed: Feed, slice_id: int = 0) -> list[Path]:
    return [path for day in days(directory, feed) for path in sorted(day.glob(f"slice-{slice_id:05d}/*.journal"))]


def records(directory: Path, feed: Feed, slice_id: int = 0) -> list[Stored]:
    found = []
    for path in segments(directory, feed, slice_id):
        part, torn = stored(path)
        assert torn == 0, path
        found += part
    return found


def payloads(directory: Path, feed: Feed, slice_id: int = 0) -> list[bytes]:
    return [payload for record in records(directory, feed, slice_id) for _, payload, _ in record.messages()]


def numbers_of(record: Stored) -> Any:
    """The numbers that `numbered` gave the messages of a block."""
    return (
        numpy.frombuffer(record.body, numpy.uint8)[-record.fields.count * ROW_BYTES :]
        .reshape(-1, ROW_BYTES)[record.first_row :, :8]
        .copy()
        .view(numpy.int64)[:, 0]
    )


def numbered(first: int, count: int) -> Any:
    """Payloads that begin with a number, counted up."""
    rows = numpy.zeros((count, ROW_BYTES), numpy.uint8)
    rows[:, :8] = numpy.arange(first, first + count).view(numpy.uint8).reshape(-1, 8)
    return rows


def publish_numbered(publisher: Publisher, first: int, count: int) -> None:
    publisher.publish_many((b"A.t",), numpy.zeros(count, numpy.int32), numbered(first, count))


def wait_recorded(recorder: Recorder, count: int) -> None:
    wait_until(lambda: recorder.statistics().messages >= count, 30, f"{count} messages were recorded")


def check_sum(statistics: RecorderStatistics) -> None:
    received = statistics.received
    assert statistics.messages + statistics.lost == received.received - received.duplicates - received.stale


@contextmanager
def one_slice(tmp_path: Path, **settings: Any) -> Iterator[tuple[Feed, RawPublisher, Recorder]]:
    feed = feed_of()
    with RawPublisher(feed) as publisher, Recorder(feed, tmp_path, **settings) as recorder:
        yield feed, publisher, recorder


# What is recorded


def test_blocks_are_on_disk_as_they_were_sent(tmp_path: Path) -> None:
    choice = random.Random(1)
    with one_slice(tmp_path) as (feed, publisher, recorder):
        sent, messages = [], 0
        for size in (0, 1, 7, 100, 5_000, 40_000, 300_000, 2 * MIB):
            rows = [(b"T%d.x" % choice.randrange(3), choice.randbytes(size + extra)) for extra in (0, 1, 9)]
            block = publisher.encode(rows, ts_event=[choice.getrandbits(50) for _ in rows])
            publisher.send(block)
            sent.append((block.header, block.body.tobytes()))
            messages += len(rows)
        wait_recorded(recorder, messages)
    found = records(tmp_path, feed)
    assert [(record.header, record.body) for record in found] == sent
    assert all(record.first_row == record.codec == 0 for record in found)
    assert all(record.ts_recv >= record.fields.ts_out for record in found)
    statistics = recorder.statistics()
    assert (statistics.messages, statistics.blocks, statistics.lost) == (messages, len(sent), 0)
    assert statistics.stored_bytes == segments(tmp_path, feed)[0].stat().st_size - 64
    check_sum(statistics)
    check_index(segments(tmp_path, feed)[0])


def test_blocks_without_a_checksum_are_recorded_with_one(tmp_path: Path) -> None:
    with one_slice(tmp_path) as (feed, publisher, recorder):
        block = publisher.encode([(b"A.t", b"payload")], checksum=False)
        publisher.send(block)
        wait_recorded(recorder, 1)
    assert [record.header for record in records(tmp_path, feed)] == [block.header]


@pytest.mark.parametrize("seed", range(3))
def test_two_lines_with_random_loss_are_recorded_once(tmp_path: Path, seed: int) -> None:
    choice = random.Random(seed)
    feed = feed_of(lines=2, heartbeat_ns=60 * 10**9)
    with RawPublisher(feed) as publisher, Recorder(feed, tmp_path, line_wait_ns=1 << 40) as recorder:
        ways: list[list[Any]] = [[], []]
        expected: list[int] = []
        at = 0
        for _ in range(300):
            numbers = range(at, at := at + choice.randint(1, 7))
            block = publisher.encode([(b"T", b"%d" % number) for number in numbers])
            if lines := [line for line in (A, B) if choice.random() < 0.7]:
                expected += numbers
            for line in lines:
                ways[line].append(block)
        while ways[A] or ways[B]:
            line = choice.choice([line for line in (A, B) if ways[line]])
            for _ in range(choice.randint(1, 40)):
                if ways[line]:
                    publisher.send(ways[line].pop(0), [line])
        publisher.heartbeat(end=True)
        recorder.run(until_end=True)
    assert [int(payload) for payload in payloads(tmp_path, feed)] == expected
    statistics = recorder.statistics()
    assert statistics.received.gaps == at - len(expected)
    check_sum(statistics)


def test_rows_that_the_other_line_had_brought_are_left_out(tmp_path: Path) -> None:
    feed = feed_of(lines=2)
    with RawPublisher(feed) as publisher, Recorder(feed, tmp_path) as recorder:
        publisher.send(publisher.encode([(b"T", b"%d" % number) for number in range(3)]), [A])
        wait_recorded(recorder, 3)
        publisher.send(publisher.encode([(b"T", b"%d" % number) for number in range(5)], sequence=0), [B])
        wait_recorded(recorder, 5)
    assert [record.first_row for record in records(tmp_path, feed)] == [0, 3]
    assert payloads(tmp_path, feed) == [b"%d" % number for number in range(5)]
    check_index(segments(tmp_path, feed)[0])


@pytest.mark.parametrize("dead", [A, B])
def test_a_line_that_dies_costs_nothing(tmp_path: Path, dead: int) -> None:
    feed = feed_of(lines=2)
    with RawPublisher(feed) as publisher, Recorder(feed, tmp_path) as recorder:
        for number in range(100):
            if number == 50:
                publisher.close_line(dead)
            lines = [A, B] if number < 50 else [1 - dead]
            publisher.send(publisher.encode([(b"T", b"%d" % number)]), lines)
        wait_recorded(recorder, 100)
    assert payloads(tmp_path, feed) == [b"%d" % number for number in range(100)]
    assert recorder.statistics().received.gaps == 0


def test_messages_published_one_at_a_time(tmp_path: Path) -> None:
    feed, count = feed_of(), 100_000
    with Publisher(feed, when_full="wait") as publisher:
        recorder = Recorder(feed, tmp_path).start()
        for number in range(count):
            publisher.publish(b"A.t", number.to_bytes(8, "little"), number)
    recorder.run(until_end=True)
    assert payloads(tmp_path, feed) == [number.to_bytes(8, "little") for number in range(count)]
    assert recorder.statistics().messages == count


def test_several_slices_with_keys(tmp_path: Path) -> None:
    feed = feed_of(slices=3, key_bytes=2)
    names = [b"S%d.t" % number for number in range(40)]
    with Publisher(feed, when_full="wait") as publisher:
        recorder = Recorder(feed, tmp_path).start()
        index = numpy.arange(20_000) % len(names)
        publisher.publish_many(tuple(names), index, numbered(0, 20_000))
    recorder.run(until_end=True)
    found = [record for i in range(3) for record in records(tmp_path, feed, i)]
    messages = [row for record in found for row in record.messages(record.messages()[0][0][:2])]
    assert len(messages) == recorder.statistics().messages == 20_000
    by_name: dict[bytes, list[int]] = {name: [] for name in names}
    for topic, payload, _ in messages:
        by_name[topic].append(int.from_bytes(payload[:8], "little"))
    assert by_name == {name: list(range(place, 20_000, len(names))) for place, name in enumerate(names)}
    for slice_id in range(3):
        check_index(segments(tmp_path, feed, slice_id)[0])


def test_segments_roll_and_their_indexes_are_complete(tmp_path: Path) -> None:
    feed, count = feed_of(), 0
    with Publisher(feed, when_full="wait") as publisher:
        recorder = Recorder(feed, tmp_path, segment_bytes=MIB).start()
        while count < 120_000 or (recorder.statistics().segments < 4 and count < 10_000_000):
            publish_numbered(publisher, count, 1_000)
            count += 1_000
    recorder.run(until_end=True)
    paths = segments(tmp_path, feed)
    assert len(paths) >= 3
    assert [int(path.stem) for path in paths] == list(range(len(paths)))
    assert all(path.stat().st_size >= MIB for path in paths[:-1])
    assert recorder.statistics().segments in (len(paths), len(paths) + 1)  # a last one that held nothing is removed
    assert numpy.concatenate([numbers_of(record) for record in records(tmp_path, feed)]).tolist() == [*range(count)]
    for path in paths:
        check_index(path)


@pytest.mark.parametrize("fsync", ["never", "interval", "block"])
def test_every_sync_policy_records_all(tmp_path: Path, fsync: Literal["never", "interval", "block"]) -> None:
    with one_slice(tmp_path, fsync=fsync, fsync_interval_ns=1_000_000) as (feed, publisher, recorder):
        for number in range(200):
            publisher.send(publisher.encode([(b"T", b"%d" % number), (b"T", bytes(20_000 * (number % 3)))]))
        wait_recorded(recorder, 400)
    assert payloads(tmp_path, feed)[::2] == [b"%d" % number for number in range(200)]
    assert recorder.statistics().lost == 0


@pytest.mark.parametrize(("sync_each", "stored_messages"), [(True, 0), (False, 2)])
def test_each_block_is_synced_when_told(tmp_path: Path, sync_each: bool, stored_messages: int) -> None:
    """A pipe in place of the file can be written but not synced: who syncs sees that."""
    pipe, wake = Pipe(), Pipe()
    day = (tmp_path, FOREVER_NS * 10**6)
    writer = JournalWriter(0, 0, MIB, sync_each, "none", wake, lambda _: day)
    function = ctypes.CFUNCTYPE(None, ctypes.c_int64)(writer.at.function)
    words = writer._words
    words[append.FD] = pipe.writer
    header, body = (numpy.frombuffer(part, numpy.uint8) for part in Put((Row(b"T", b"1"), Row(b"T", b"2"))).block(0))
    words[HEAD], words[BODY], words[BODY_BYTES], words[TS_RECV] = header.ctypes.data, body.ctypes.data, len(body), 1
    for kind in (BLOCK, IDLE):
        words[KIND] = kind
        function(writer.at.words)
    assert writer.count(append.MESSAGES) == stored_messages
    assert writer.count(append.LOST) == 2 - stored_messages
    assert writer.count(append.ERRNO) == (errno.EINVAL if sync_each else 0)
    writer.close()


@pytest.mark.parametrize(("compression", "codec"), [("lz4", 1), ("zstd", 2)])
def test_compressed_bodies_unpack_to_what_was_sent(tmp_path: Path, compression: Any, codec: int) -> None:
    with one_slice(tmp_path, compression=compression) as (feed, publisher, recorder):
        sent = []
        for size in (10, 1_000, 100_000, MIB):
            for data in (bytes(size), random.Random(size).randbytes(size)):
                block = publisher.encode([(b"T", data)] * 2)
                publisher.send(block)
                sent.append((block.header, block.body.tobytes()))
        wait_recorded(recorder, 2 * len(sent))
    found = records(tmp_path, feed)
    assert [(record.header, record.body) for record in found] == sent
    assert {record.codec for record in found} == {0, codec} or {record.codec for record in found} == {codec}
    check_index(segments(tmp_path, feed)[0])
    assert segments(tmp_path, feed)[0].stat().st_size < sum(len(body) for _, body in sent)


@pytest.mark.parametrize(("compression", "library"), [("lz4", "lz4.block"), ("zstd", "zstandard")])
def test_a_missing_compression_library_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: Any, library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    before = held()
    recorder = Recorder(feed_of(), tmp_path, compression=compression)
    with pytest.raises(JournalError, match=f"needs {library.partition('.')[0]}, which is not installed"):
        recorder.start()
    del recorder
    assert held() == before


# Reading while it is written


def test_a_reader_sees_what_was_recorded_while_it_is_recorded(tmp_path: Path) -> None:
    feed, count = feed_of(), 200_000
    seen = 0
    with Publisher(feed, when_full="wait") as publisher:
        recorder = Recorder(feed, tmp_path, segment_bytes=MIB).start()
        recording = Recording.open(days(tmp_path, feed)[0])
        for first in range(0, count, 10_000):
            publish_numbered(publisher, first, 10_000)
            recording.refresh()
            now = sum(int(segment.entries["messages"].sum()) for segment in recording._slices.get(0, []))
            assert now >= seen
            seen = now
    wait_recorded(recorder, count)

    def all_seen() -> bool:
        recording.refresh()
        return sum(int(segment.entries["messages"].sum()) for segment in recording._slices[0]) == count

    wait_until(all_seen, what="the reader saw all")
    recorder.run(until_end=True)
    recording.refresh()
    assert all_seen()
    assert not recording.damage


# Killed recorders

RECORD_AGAIN_AND_AGAIN = """
parent = os.getpid()
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        end = lambda: (wait_until(lambda: os.getppid() != parent, 120), os._exit(1))
        threading.Thread(target=end, daemon=True).start()
        recorder = Recorder(feed, line.strip(), segment_bytes=4 << 20).start()
        say(os.getpid(), recorder.statistics().cut_bytes)
        recorder.run()
    os.waitpid(pid, 0)
    say("killed")
"""


def torn_bytes(segment: Path) -> int:
    size = segment.stat().st_size
    return size if size < 64 else stored(segment)[1]


def test_killed_recorders_leave_a_prefix_and_the_next_one_mends_it(tmp_path: Path) -> None:
    feed = feed_of()
    choice = random.Random(7)
    ending = threading.Event()

    def publish(publisher: Publisher) -> None:
        at = 0
        while not ending.is_set():
            publish_numbered(publisher, at, 10_000)
            at += 10_000

    torn_before, told = 0, 0
    runs: list[list[Path]] = []
    with Publisher(feed, when_full="wait") as publisher, Script(RECORD_AGAIN_AND_AGAIN, feed) as script:
        thread = threading.Thread(target=publish, args=(publisher,))
        thread.start()
        try:
            for _ in range(20):
                known = {path for run in runs for path in run}
                script.tell(str(tmp_path))
                pid, cut = map(int, script.read().split())
                assert cut == torn_before
                told += cut > 0
                much = choice.randrange(12 * MIB)

                def written(known: set[Path] = known) -> int:
                    return sum(p.stat().st_size for p in segments(tmp_path, feed) if p not in known)

                wait_until(lambda: written() > much)
                os.kill(pid, signal.SIGKILL)
                script.expect("killed")
                fresh = [p for p in segments(tmp_path, feed) if p not in known]
                torn_before = sum(torn_bytes(p) for p in fresh)
                runs.append([p for p in fresh if p.stat().st_size > 64 and stored(p)[0]])
        finally:
            ending.set()
            thread.join()
        script.process.stdin.close()  # type: ignore[union-attr]
        script.process.stdin = None
        _, _, errors = script.finish()
    assert errors.count("of a block that was not written whole") == told
    with Publisher(feed), Recorder(feed, tmp_path) as recorder:
        assert recorder.statistics().cut_bytes == torn_before
    last = -1
    for run in runs:
        found = [record for p in run for record in stored(p)[0]]
        numbers = numpy.concatenate([numbers_of(record) for record in found] or [numpy.empty(0, numpy.int64)])
        assert (numpy.diff(numbers) == 1).all()
        if len(numbers):
            assert numbers[0] > last
            last = int(numbers[-1])
    recording = Recording.open(days(tmp_path, feed)[0])
    assert not recording.damage
    for path in segments(tmp_path, feed):
        check_index(path)


@pytest.mark.parametrize("torn", [1, 31, 96, 150])
def test_a_torn_tail_is_cut_and_reported(tmp_path: Path, torn: int, caplog: pytest.LogCaptureFixture) -> None:
    with one_slice(tmp_path) as (feed, publisher, recorder):
        publisher.send(publisher.encode([(b"T", b"0")]))
        wait_recorded(recorder, 1)
    path = segments(tmp_path, feed)[0]
    whole = path.stat().st_size
    with path.open("ab") as file:
        file.write(record_of(Put((Row(b"T", bytes(100)),)), 0)[:torn])
    # What a recorder leaves that is killed while it begins the next segment.
    path.with_name("000001.journal").write_bytes(path.read_bytes()[:40])
    with RawPublisher(feed), Recorder(feed, tmp_path) as recorder:
        assert recorder.statistics().cut_bytes == torn + 40
        assert f"{path}: cut {torn} bytes of a block that was not written whole" in caplog.text
    assert path.stat().st_size == whole
    assert segments(tmp_path, feed) == [path]
    check_index(path)


def test_the_tail_of_the_day_before_is_cut_too(tmp_path: Path) -> None:
    with one_slice(tmp_path) as (feed, publisher, recorder):
        publisher.send(publisher.encode([(b"T", b"0")]))
        wait_recorded(recorder, 1)
    today = days(tmp_path, feed)[0]
    yesterday = today.rename(today.with_name("2001-02-03"))
    path = yesterday / "slice-00000" / "000000.journal"
    path.with_suffix(".index").unlink()
    with path.open("ab") as file:
        file.write(b"BREC")
    with RawPublisher(feed), Recorder(feed, tmp_path) as recorder:
        assert recorder.statistics().cut_bytes == 4
    check_index(path)


def test_a_record_that_lacks_its_padding_is_cut(tmp_path: Path) -> None:
    with one_slice(tmp_path) as (feed, publisher, recorder):
        for size in (10, 50_001):
            publisher.send(publisher.encode([(b"T", bytes(size))]))
        wait_recorded(recorder, 2)
    path = segments(tmp_path, feed)[0]
    first, second = records(tmp_path, feed)
    os.truncate(path, second.stop - 9)
    path.with_suffix(".index").unlink()
    with RawPublisher(feed), Recorder(feed, tmp_path) as recorder:
        assert recorder.statistics().cut_bytes == second.stop - 9 - first.stop
    assert path.stat().st_size == first.stop
    check_index(path)


# Disks that fail

RECORD_UNTIL_FULL = """
import resource
limit = int(input())
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
recorder = Recorder(feed, input()).start()
say("started")
try:
    recorder.run()
except Exception as error:
    say(error)
now = recorder.statistics()
say(now.messages, now.lost, now.received.received - now.received.duplicates)
input()
"""
FULL = 2 * MIB


@contextmanager
def small_disk(kind: str, tmp_path: Path, feed: Feed) -> Iterator[tuple[Script, Path]]:
    """A process that is to record to a place with room for FULL bytes, and where others see that place."""
    if kind == "limit":
        with Script(RECORD_UNTIL_FULL, feed) as script:
            script.tell(str(FULL))
            yield script, tmp_path
        return
    mount = ["unshare", "-m", "sh", "-c", f'mount -t tmpfs -o size={FULL} tmpfs "$0" && exec "$@"', str(tmp_path)]
    if subprocess.run([*mount, "true"], capture_output=True).returncode:
        pytest.skip("mounting is not permitted here")
    with Script(RECORD_UNTIL_FULL, feed, mount) as script:
        script.tell("0")
        yield script, Path(f"/proc/{script.process.pid}/root{tmp_path}")


@linux_only
@pytest.mark.parametrize("kind", ["limit", "tmpfs"])
@pytest.mark.parametrize("rows", [20, 400, 4_000])
def test_a_full_disk_ends_it_with_an_exact_count(tmp_path: Path, kind: str, rows: int) -> None:
    feed = feed_of()
    with RawPublisher(feed) as publisher, small_disk(kind, tmp_path, feed) as (script, place):
        script.tell(str(tmp_path))
        script.expect("started")
        sent = 0
        while (sent // rows) * (rows * (ROW_BYTES + 12) + 128) < FULL + MIB:
            block = publisher.encode([(b"A.t", row.tobytes()) for row in numbered(sent, rows)])
            publisher.send(block)
            sent += rows
        error = script.read()
        messages, lost, received = map(int, script.read().split())
        path = segments(place, feed)[0]
        reason = os.strerror(errno.EFBIG if kind == "limit" else errno.ENOSPC)
        assert f"{str(path).removeprefix(str(place))}: {reason}; {lost} messages were received" in error
        assert lost > 0
        assert messages + lost == received
        found = [number for record in records(place, feed) for number in numbers_of(record)]
        assert found == list(range(messages))
        recording = Recording.open(days(place, feed)[0])
        assert sum(len(chunk.heads) for chunk in recording.chunks()) == messages // rows
        assert not recording.damage
        script.tell("")


def test_a_directory_that_is_removed_ends_it_and_what_was_in_it_is_lost(tmp_path: Path) -> None:
    with (
        pytest.raises(JournalError, match="has been removed or replaced") as raised,
        one_slice(tmp_path) as (
            feed,
            publisher,
            recorder,
        ),
    ):
        publisher.send(publisher.encode([(b"T", b"0")] * 5))
        wait_recorded(recorder, 5)
        shutil.rmtree(tmp_path / feed.name)
        wait_until(lambda: recorder.state is State.ENDED)
    assert "; 5 messages were received and not recorded" in str(raised.value)
    statistics = recorder.statistics()
    assert (statistics.messages, statistics.blocks, statistics.lost) == (0, 0, 5)
    check_sum(statistics)


def test_a_place_that_may_not_be_written_is_named(tmp_path: Path) -> None:
    place = tmp_path / "locked"
    place.mkdir(mode=0o555)
    script = Script(
        """
        place = input()
        if os.geteuid() == 0:
            os.setuid(65534)
        try:
            Recorder(feed, place).start()
        except JournalError as error:
            say(error)
        """.replace("JournalError", "BlackBoxError"),
        feed_of(),
    )
    with script:
        tmp_path.chmod(0o755)
        script.tell(str(place))
        said = script.read()
    assert said.endswith(os.strerror(errno.EACCES))
    assert str(tmp_path) in said or str(tmp_path.parent) in said


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "tape").write_text("")
    with pytest.raises(JournalError, match=r"tape.*(File exists|Not a directory)"):
        Recorder(feed_of(), tmp_path).start()


def test_another_feed_of_that_name_is_refused(tmp_path: Path) -> None:
    with one_slice(tmp_path):
        pass
    other = feed_of(key_bytes=2)
    with pytest.raises(JournalError, match="holds a feed whose key_bytes is 0, expected 2"):
        Recorder(other, tmp_path).start()


@pytest.mark.parametrize("where", ["tend", "sync"])
def test_a_keeper_that_fails_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no more")

    with pytest.raises(JournalError, match="its keeper failed: no more"), one_slice(tmp_path) as (_, __, recorder):
        monkeypatch.setattr(JournalWriter, where, fail)
        wait_until(lambda: recorder.state is State.ENDED)
        monkeypatch.undo()


# One recorder at a time


def test_a_second_recorder_is_refused_and_told_who_records(tmp_path: Path) -> None:
    feed = feed_of()
    script = Script("recorder = Recorder(feed, input()).start()\nsay('started')\nrecorder.run()", feed)
    with RawPublisher(feed), script:
        script.tell(str(tmp_path))
        script.expect("started")
        with pytest.raises(JournalError, match=f"is being recorded by process {script.process.pid},"):
            Recorder(feed, tmp_path).start()
        with Recorder(feed, tmp_path / "elsewhere"):
            pass
        script.kill()
        with Recorder(feed, tmp_path):
            pass


# Days


def test_messages_after_midnight_are_in_the_next_day(tmp_path: Path) -> None:
    """Midnight is two seconds ahead: a `day_start` in UTC."""
    now = datetime.datetime.now(datetime.UTC)
    midnight = (now + datetime.timedelta(seconds=3)).replace(microsecond=0)
    feed = feed_of(slices=2, day_start=f"{midnight:%H:%M:%S}")
    midnight_ns = int(midnight.timestamp()) * 10**9
    names = (b"S1.t", b"S2.t", b"S3.t", b"S4.t")
    with Publisher(feed, when_full="wait") as publisher:
        recorder = Recorder(feed, tmp_path).start()
        published = 0
        while len(days(tmp_path, feed)) < 2 or published % 2_000 or recorder.statistics().segments < 4:
            publisher.publish_many(names, numpy.arange(400) % 4, numbered(published, 400))
            publisher.flush()
            published += 400
    recorder.run(until_end=True)
    assert recorder.statistics().messages == published
    assert recorder.statistics().lost == recorder.statistics().received.gaps == 0
    first, second = days(tmp_path, feed)
    assert datetime.date.fromisoformat(second.name) - datetime.date.fromisoformat(first.name) == datetime.timedelta(1)
    found: list[int] = []
    for slice_id in range(2):
        for day in (first, second):
            for path in sorted(day.glob(f"slice-{slice_id:05d}/*.journal")):
                for record in stored(path)[0]:
                    assert (record.ts_recv >= midnight_ns) == (day == second)
                    found += numbers_of(record).tolist()
                check_index(path)
    assert sorted(found) == list(range(published))
    assert Recording.open(second).date == datetime.date.fromisoformat(second.name)


# Its life


def test_it_is_used_once(tmp_path: Path) -> None:
    with one_slice(tmp_path) as (feed, publisher, recorder):
        with pytest.raises(JournalError, match="start was called when running"):
            recorder.start()
        publisher.send(publisher.encode([(b"T", b"0")]))
        wait_recorded(recorder, 1)
        recorder.stop()
        recorder.stop()
        with pytest.raises(JournalError, match="start was called when ended"):
            recorder.start()
    assert payloads(tmp_path, feed) == [b"0"]
    assert recorder.state is State.ENDED


def test_stop_before_start_opens_nothing(tmp_path: Path) -> None:
    recorder = Recorder(feed_of(), tmp_path)
    recorder.stop()
    assert recorder.statistics().messages == 0
    with pytest.raises(JournalError, match="start was called when ended"):
        recorder.start()
    assert list(tmp_path.iterdir()) == []


@linux_only
def test_without_a_publisher_it_says_so_and_leaves_nothing_open(tmp_path: Path) -> None:
    feed = feed_of(slices=2)
    before = held()
    for _ in range(3):
        with pytest.raises(NotConfirmedError, match="no publisher at"):
            Recorder(feed, tmp_path).start(timeout=0.1)
    assert segments(tmp_path, feed) == segments(tmp_path, feed, 1) == []
    wait_until(lambda: held() == before)


@linux_only
def test_it_leaves_no_thread_and_no_file_open(tmp_path: Path) -> None:
    feed = feed_of(slices=2)
    with RawPublisher(feed) as publisher:
        before = held()
        for _ in range(3):
            with Recorder(feed, tmp_path, segment_bytes=MIB) as recorder:
                for _ in range(5):
                    publisher.send(publisher.encode([(b"T", bytes(500_000))]))
                wait_recorded(recorder, 5)
        del recorder
        wait_until(lambda: held() == before, what="all is closed")


@linux_only
def test_a_start_that_fails_halfway_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feed = feed_of(slices=2)
    before = held()
    make = Recorder._make_writer

    def second_fails(recorder: Recorder, slice_id: int) -> JournalWriter:
        if slice_id:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "some file")
        return make(recorder, slice_id)

    monkeypatch.setattr(Recorder, "_make_writer", second_fails)
    with pytest.raises(JournalError, match="some file: Too many open files"):
        Recorder(feed, tmp_path).start()
    assert held() == before
    monkeypatch.undo()
    with RawPublisher(feed), Recorder(feed, tmp_path):
        pass  # the lock is free


def test_an_error_in_the_with_block_is_the_one_that_is_raised(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), one_slice(tmp_path) as (feed, publisher, recorder):
        publisher.send(publisher.encode([(b"T", b"0")]))
        wait_recorded(recorder, 1)
        raise ZeroDivisionError
    assert recorder.state is State.ENDED
    assert payloads(tmp_path, feed) == [b"0"]


def test_the_same_failure_is_raised_each_time(tmp_path: Path) -> None:
    recorders: list[Recorder] = []
    with pytest.raises(JournalError), one_slice(tmp_path) as (feed, _, recorder):
        recorders.append(recorder)
        shutil.rmtree(tmp_path / feed.name)
        wait_until(lambda: recorder.state is State.ENDED)
    for _ in range(2):
        with pytest.raises(JournalError, match="has been removed"):
            recorders[0].stop()
    with pytest.raises(JournalError, match="has been removed"):
        recorders[0].run()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_run_without_loss(tmp_path: Path, number: signal.Signals) -> None:
    feed = feed_of()
    script = Script(
        """
        recorder = Recorder(feed, input())
        threading.Thread(target=lambda: (wait_until(lambda: recorder.statistics().messages >= 1), say("some")),
                         daemon=True).start()
        recorder.run()
        now = recorder.statistics()
        say(now.messages, now.lost, now.received.received)
        """,
        feed,
    )
    with Publisher(feed, when_full="wait") as publisher, script:
        script.tell(str(tmp_path))
        publisher.wait_for_subscribers(timeout=60)
        publish_numbered(publisher, 0, 50_000)
        script.expect("some")
        script.process.send_signal(number)
        messages, lost, received = map(int, script.read().split())
        assert script.finish()[0] == 0
    assert lost == 0
    assert messages == received
    assert numpy.concatenate([numbers_of(record) for record in records(tmp_path, feed)]).tolist() == [*range(messages)]


def test_stop_in_one_thread_ends_run_in_another(tmp_path: Path) -> None:
    with one_slice(tmp_path) as (feed, publisher, recorder):
        thread = threading.Thread(target=recorder.run)
        thread.start()
        publisher.send(publisher.encode([(b"T", b"0")]))
        wait_recorded(recorder, 1)
        recorder.stop()
        thread.join()
    assert payloads(tmp_path, feed) == [b"0"]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"segment_bytes": 5}, "segment_bytes was 5, expected 1048576 to"),
        ({"fsync_interval_ns": 0}, "fsync_interval_ns was 0, expected"),
        ({"fsync": "often"}, "fsync was 'often', expected never, interval or block"),
        ({"compression": "rar"}, "compression was 'rar', expected none, lz4 or zstd"),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Recorder(feed_of(), tmp_path, **settings)


def test_a_publisher_that_starts_again_goes_on_in_the_same_segment(tmp_path: Path) -> None:
    feed = feed_of()
    with RawPublisher(feed, epoch=1) as publisher:
        recorder = Recorder(feed, tmp_path).start()
        publisher.send(publisher.encode([(b"T", b"0")]))
        wait_recorded(recorder, 1)
    with RawPublisher(feed, epoch=2) as publisher:
        wait_until(lambda: len(publisher.subscriptions()) >= 2)
        publisher.heartbeat()
        wait_until(lambda: recorder.statistics().received.epochs == 2)
        publisher.send(publisher.encode([(b"T", b"1")]))
        wait_recorded(recorder, 2)
        recorder.stop()
    assert [record.fields.epoch for record in records(tmp_path, feed)] == [1, 2]
    check_index(segments(tmp_path, feed)[0])
