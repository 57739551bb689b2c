"""Every received message is on disk once, in order and unchanged, also after a kill and on a full disk."""

from __future__ import annotations

import datetime
import errno
import os
import random
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy
import pytest

from blackbox import Publisher
from blackbox.archive.record.journal_state import Wanted
from blackbox.archive.record.recorder import Recorder
from blackbox.archive.recording import Recording
from blackbox.errors import JournalError
from blackbox.native.compile.jit import njit
from blackbox.native.system.posix import reserve_file
from blackbox.receive.supervise.supervisor import SubscriberLife
from blackbox.testing import RawPublisher, wait_until
from blackbox.transport.wakeup import Pipe
from tests.archive.recorders import (
    MIB,
    ROW_BYTES,
    A,
    B,
    check_sum,
    days,
    feed_of,
    numbered,
    numbers_of,
    one_slice,
    payloads,
    records,
    segments,
    wait_recorded,
)
from tests.archive.written_journals import Journal, block
from tests.journals import Put, Row, check_index, record_of, stored
from tests.process_state import linux_only
from tests.support import Script


@pytest.mark.parametrize(
    ("compression", "codec", "fsync"), [("none", 0, "never"), ("lz4", 1, "interval"), ("zstd", 2, "block")]
)
def test_blocks_are_on_disk_as_they_were_sent(tmp_path: Path, compression: Any, codec: int, fsync: Any) -> None:
    choice, settings = random.Random(1), {"compression": compression, "fsync": fsync, "fsync_interval": 0.001}
    with one_slice(tmp_path, **settings) as (feed, publisher, recorder):
        sent, messages = [], 0
        for size in (0, 1, 7, 100, 5_000, 40_000, 300_000, 2 * MIB):
            for data in (bytes(size), choice.randbytes(size)):
                rows = [(b"T%d.x" % choice.randrange(3), data + bytes(extra)) for extra in (0, 1, 9)]
                times = [choice.getrandbits(50) for _ in rows]
                block = publisher.encode(rows, ts_event=times, checksum=size != 7)
                publisher.send(block)
                sent.append((block.header, block.body.tobytes()))
                messages += len(rows)
        wait_recorded(recorder, messages)
    found = records(tmp_path, feed)
    assert [(record.header, record.body) for record in found] == sent
    assert {record.codec for record in found} | {0} == {0, codec}
    assert all(record.first_row == 0 and record.ts_recv >= record.fields.ts_out for record in found)
    statistics = recorder.statistics()
    assert (statistics.messages, statistics.blocks, statistics.lost) == (messages, len(sent), 0)
    assert statistics.stored_bytes == sum(record.stop - record.start for record in found)
    check_sum(statistics)
    check_index(segments(tmp_path, feed)[0])
    assert (segments(tmp_path, feed)[0].stat().st_size < sum(len(body) for _, body in sent)) == (codec > 0)


def publish_to_slices(publisher: Publisher, recorder: Recorder, first: int) -> int:
    """Publish and record 400 messages of two slices. Return the next number."""
    names = (b"S1.t", b"S2.t", b"S3.t", b"S4.t")
    publisher.publish_many(names, numpy.arange(400) % 4, numbered(first, 400))
    publisher.flush()
    wait_recorded(recorder, first + 400)
    return first + 400


def recorded_over_midnight(directory: Path, seconds: int) -> tuple[Recorder, int, int]:
    """Return a recorder, its number of messages, and the time of midnight, a `day_start` in some seconds.

    Without messages, midnight was before the first ones were recorded.
    """
    now = datetime.datetime.now(datetime.UTC)
    midnight = (now + datetime.timedelta(seconds=seconds)).replace(microsecond=0)
    feed, midnight_ns = feed_of(slices=2, day_start=f"{midnight:%H:%M:%S}"), int(midnight.timestamp()) * 10**9
    with Publisher(feed, when_full="wait") as publisher:
        recorder = Recorder(feed, directory).start()
        published = publish_to_slices(publisher, recorder, 0)
        is_late = time.time_ns() >= midnight_ns
        while not is_late and (
            len(days(directory, feed)) < 2 or published % 2_000 or recorder.statistics().segments < 4
        ):
            published = publish_to_slices(publisher, recorder, published)
    recorder.run(until_end=True)
    return recorder, 0 if is_late else published, midnight_ns


def test_messages_after_midnight_are_in_the_next_day(tmp_path: Path) -> None:
    for seconds in (3, 10, 60):  # more on a busy machine
        recorder, published, midnight_ns = recorded_over_midnight(tmp_path / str(seconds), seconds)
        if published:
            break
    assert recorder.statistics().messages == published
    assert recorder.statistics().lost == recorder.statistics().received.gaps == 0
    first, second = sorted(recorder.directory.glob("*-*-*"))
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


def test_rows_received_on_the_other_line_are_left_out(tmp_path: Path) -> None:
    feed = feed_of(lines=2)
    with RawPublisher(feed) as publisher, Recorder(feed, tmp_path) as recorder:
        publisher.send(publisher.encode([(b"T", b"%d" % number) for number in range(3)]), [A])
        wait_recorded(recorder, 3)
        publisher.send(publisher.encode([(b"T", b"%d" % number) for number in range(5)], sequence=0), [B])
        wait_recorded(recorder, 5)
    assert [record.first_row for record in records(tmp_path, feed)] == [0, 3]
    assert payloads(tmp_path, feed) == [b"%d" % number for number in range(5)]
    check_index(segments(tmp_path, feed)[0])


WHOLE = record_of(Put((Row(b"T", bytes(101)),)), 0)


@pytest.mark.parametrize(
    ("torn", "day"), [(1, "today"), (31, "2001-02-03"), (96, "today"), (150, "today"), (len(WHOLE) - 2, "2001-02-03")]
)
def test_a_torn_tail_is_cut_and_reported(tmp_path: Path, torn: int, day: str, caplog: pytest.LogCaptureFixture) -> None:
    """Also a record without its padding, the head of a next segment, and the tail of the day before."""
    with one_slice(tmp_path) as (feed, publisher, recorder):
        publisher.send(publisher.encode([(b"T", b"0")]))
        wait_recorded(recorder, 1)
    if day != "today":
        (today,) = days(tmp_path, feed)
        today.rename(today.with_name(day))
    path = segments(tmp_path, feed)[0]
    whole = path.stat().st_size
    with path.open("ab") as file:
        file.write(WHOLE[:torn])
    if torn > 31:
        path.with_suffix(".index").unlink()
    # Left by a recorder killed while it begins the next segment.
    path.with_name("000001.journal").write_bytes(path.read_bytes()[:40])
    with RawPublisher(feed), Recorder(feed, tmp_path) as recorder:
        assert recorder.statistics().cut_bytes == torn + 40
        assert f"{path}: cut {torn} bytes of an incomplete record" in caplog.text
    assert path.stat().st_size == whole
    assert [segment for segment in segments(tmp_path, feed) if stored(segment)[0]] == [path]
    check_index(path)


@njit
def reserve(fd: int, start: int, size: int) -> bool:
    return bool(reserve_file(fd, start, size))


@linux_only
def test_reserved_disk_space_is_released(tmp_path: Path) -> None:
    def spare() -> int:
        status = path.stat()
        return 512 * status.st_blocks - status.st_size

    with one_slice(tmp_path) as (feed, publisher, recorder):
        publisher.send(publisher.encode([(b"T", bytes(50_000))]))
        wait_recorded(recorder, 1)
        path = segments(tmp_path, feed)[0]
        if spare() < MIB:
            pytest.skip("this file system reserves nothing")
    assert spare() < MIB
    with path.open("r+b") as file:  # left by a killed recorder
        assert reserve(file.fileno(), 0, 4 * MIB)
    assert spare() > MIB
    with RawPublisher(feed), Recorder(feed, tmp_path) as recorder:
        assert recorder.statistics().cut_bytes == 0
    assert spare() < MIB
    assert len(records(tmp_path, feed)) == 1


RECORD_UNTIL_FULL = """
recorder = Recorder(feed, input()).start()
say("started")
try:
    recorder.run()
except Exception as error:
    say(error)
now = recorder.statistics()
say(now.messages, now.lost, now.received.messages - now.received.duplicates)
input()
"""

FULL = 2 * MIB


@linux_only
def test_a_full_disk_ends_it_with_an_exact_count(tmp_path: Path) -> None:
    feed, rows = feed_of(), 400
    mount = ["unshare", "-m", "sh", "-c", f'mount -t tmpfs -o size={FULL} tmpfs "$0" && exec "$@"', str(tmp_path)]
    if subprocess.run([*mount, "true"], capture_output=True).returncode:
        pytest.skip("mounting is not permitted here")
    with RawPublisher(feed) as publisher, Script(RECORD_UNTIL_FULL, feed, mount) as script:
        script.tell(str(tmp_path))
        script.expect("started")
        sent = 0
        while (sent // rows) * (rows * (ROW_BYTES + 12) + 128) < FULL + MIB:
            block = publisher.encode([(b"A.t", row.tobytes()) for row in numbered(sent, rows)])
            publisher.send(block)
            sent += rows
        error = script.read()
        messages, lost, received = map(int, script.read().split())
        place = Path(f"/proc/{script.process.pid}/root{tmp_path}")
        path = segments(place, feed)[0]
        assert f"{str(path).removeprefix(str(place))}: {os.strerror(errno.ENOSPC)}; {lost} received messages" in error
        assert lost > 0
        assert messages + lost == received
        found = [number for record in records(place, feed) for number in numbers_of(record)]
        assert found == list(range(messages))
        recording = Recording.open(days(place, feed)[0])
        assert sum(len(run.heads) for run in recording.runs()) == messages // rows
        assert not recording.damage
        script.tell("")


def test_a_removed_directory_ends_the_recorder_and_each_call_raises_it(tmp_path: Path) -> None:
    failure = "was removed or replaced.*; 5 received messages were not recorded"
    with pytest.raises(JournalError, match=failure), one_slice(tmp_path) as (feed, publisher, recorder):
        publisher.send(publisher.encode([(b"T", b"0")] * 5))
        wait_recorded(recorder, 5)
        (tmp_path / feed.name).rename(tmp_path / "gone")  # at once: the recorder makes files meanwhile
        wait_until(lambda: recorder.state is SubscriberLife.ENDED)
    statistics = recorder.statistics()
    assert (statistics.messages, statistics.blocks, statistics.lost) == (0, 0, 5)
    check_sum(statistics)
    for call in (recorder.stop, recorder.stop, recorder.run):
        with pytest.raises(JournalError, match="was removed"):
            call()


def test_a_directory_without_write_permission_is_named(tmp_path: Path) -> None:
    place = tmp_path / "locked"
    place.mkdir(mode=0o555)
    tmp_path.chmod(0o755)
    record = """
        place = input()
        if os.geteuid() == 0:
            os.setuid(65534)
        try:
            Recorder(feed, place).start()
        except BlackBoxError as error:
            say(error)
    """
    with Script(record, feed_of()) as script:
        script.tell(str(place))
        said = script.read()
    assert said.endswith(os.strerror(errno.EACCES))
    assert str(tmp_path) in said or str(tmp_path.parent) in said


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "tape").write_text("")
    with pytest.raises(JournalError, match=r"tape.*(File exists|Not a directory)"):
        Recorder(feed_of(), tmp_path).start()


@pytest.mark.parametrize("sync_each", [True, False])
def test_each_block_is_synced_when_told(tmp_path: Path, sync_each: bool) -> None:
    """The file is replaced with a pipe, which cannot be synced, so a sync raises."""
    pipe = Pipe()
    with Journal(tmp_path, fsync="block" if sync_each else "interval") as journal:
        state = journal.writer.state
        state.fd = pipe.writer
        journal.put(block(0, 2))
        journal.rest()
        assert (state.messages, state.lost) == ((0, 2) if sync_each else (2, 0))
        assert state.error == (errno.EINVAL if sync_each else 0)


def test_no_sync_succeeds_after_one_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path)
    journal.put(block(0))
    journal.writer.state.wanted = Wanted.MORE_ROOM
    journal.writer.tend()
    journal.put(block(1))  # to the next segment
    sync, failed = os.fdatasync, list[int]()

    def fails_once(fd: int) -> None:
        if failed:
            return sync(fd)
        failed.append(fd)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", fails_once)
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output error"):
            journal.writer.sync(what_is_written=True)
    with pytest.raises(OSError, match="Input/output error"):
        journal.writer.close()


def test_synced_data_is_not_synced_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    with Journal(tmp_path) as journal:
        for number in range(3):
            for _ in range(3):
                journal.writer.sync(what_is_written=True)
                assert len(synced) == 1 + number, "the head of the segment, then each block"
            journal.put(block(number))
            journal.write()
    assert len(synced) == 4
