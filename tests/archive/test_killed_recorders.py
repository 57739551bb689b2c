"""Recorders that are killed or run out of disk: whole blocks, a torn tail that is cut, and exact counts."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest

from blackbox.archive.record.recorder import Recorder
from blackbox.archive.recording import Recording
from blackbox.errors import JournalError
from blackbox.native.compile.jit import njit
from blackbox.native.system.posix import reserve_file
from blackbox.receive.supervise.supervisor import SubscriberLife
from blackbox.testing import RawPublisher, wait_until
from tests.archive.recorders import (
    MIB,
    ROW_BYTES,
    check_sum,
    days,
    feed_of,
    numbered,
    numbers_of,
    one_slice,
    records,
    segments,
    wait_recorded,
)
from tests.journals import Put, Row, check_index, record_of, stored
from tests.process_state import linux_only
from tests.support import Script

WHOLE = record_of(Put((Row(b"T", bytes(101)),)), 0)


@pytest.mark.parametrize(
    ("torn", "day"),
    [(1, "today"), (31, "2001-02-03"), (96, "today"), (150, "today"), (len(WHOLE) - 2, "2001-02-03")],
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
