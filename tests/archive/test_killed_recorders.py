"""A recorder that is killed leaves whole blocks and a torn tail, which the next one cuts and reports."""

from __future__ import annotations

import os
import random
import signal
import threading
from pathlib import Path

import numpy
import pytest

from blackbox import Publisher
from blackbox.archive.recorder import Recorder
from blackbox.archive.recording import Recording
from blackbox.native.jit import njit
from blackbox.native.posix import reserve_file
from blackbox.testing import RawPublisher, wait_until
from tests.archive.recorders import (
    MIB,
    days,
    feed_of,
    numbers_of,
    one_slice,
    publish_numbered,
    records,
    segments,
    wait_recorded,
)
from tests.journals import Put, Row, check_index, record_of, stored
from tests.process_state import linux_only
from tests.support import Script

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


@pytest.mark.long
def test_killed_recorders_leave_a_prefix_and_the_next_one_recovers_it(tmp_path: Path) -> None:
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
            for _ in range(10):
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
    assert errors.count("of an incomplete record") == told
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


def test_a_record_without_its_padding_is_cut(tmp_path: Path) -> None:
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
