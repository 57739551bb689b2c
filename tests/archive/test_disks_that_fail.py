"""A full or missing disk ends the recorder with an exact count of lost messages."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from blackbox import Feed
from blackbox.archive.recorder import Recorder
from blackbox.archive.recording import Recording
from blackbox.errors import JournalError
from blackbox.subscribe.supervisor import SubscriberLife
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
from tests.examples import first_of
from tests.process_state import linux_only
from tests.support import Script

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
say(now.messages, now.lost, now.received.messages - now.received.duplicates)
input()
"""

FULL = 2 * MIB


@contextmanager
def small_disk(kind: str, tmp_path: Path, feed: Feed) -> Iterator[tuple[Script, Path]]:
    """Yield a process that records to a disk of FULL bytes, and the disk's path for other processes."""
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
@pytest.mark.parametrize(
    ("kind", "rows"),
    first_of(
        [("tmpfs", 400), ("limit", 20), ("limit", 400), ("limit", 4_000), ("tmpfs", 20), ("tmpfs", 4_000)], keep=2
    ),
)
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
        assert f"{str(path).removeprefix(str(place))}: {reason}; {lost} received messages" in error
        assert lost > 0
        assert messages + lost == received
        found = [number for record in records(place, feed) for number in numbers_of(record)]
        assert found == list(range(messages))
        recording = Recording.open(days(place, feed)[0])
        assert sum(len(run.heads) for run in recording.runs()) == messages // rows
        assert not recording.damage
        script.tell("")


def test_a_removed_directory_ends_the_recorder_and_its_messages_are_lost(tmp_path: Path) -> None:
    with (
        pytest.raises(JournalError, match="was removed or replaced") as raised,
        one_slice(tmp_path) as (
            feed,
            publisher,
            recorder,
        ),
    ):
        publisher.send(publisher.encode([(b"T", b"0")] * 5))
        wait_recorded(recorder, 5)
        (tmp_path / feed.name).rename(tmp_path / "gone")  # at once: the recorder makes files meanwhile
        wait_until(lambda: recorder.state is SubscriberLife.ENDED)
    assert "; 5 received messages were not recorded" in str(raised.value)
    statistics = recorder.statistics()
    assert (statistics.messages, statistics.blocks, statistics.lost) == (0, 0, 5)
    check_sum(statistics)


def test_a_directory_without_write_permission_is_named(tmp_path: Path) -> None:
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


def test_the_same_failure_is_raised_each_time(tmp_path: Path) -> None:
    recorders: list[Recorder] = []
    with pytest.raises(JournalError), one_slice(tmp_path) as (feed, _, recorder):
        recorders.append(recorder)
        (tmp_path / feed.name).rename(tmp_path / "gone")  # at once: the recorder makes files meanwhile
        wait_until(lambda: recorder.state is SubscriberLife.ENDED)
    for _ in range(2):
        with pytest.raises(JournalError, match="was removed"):
            recorders[0].stop()
    with pytest.raises(JournalError, match="was removed"):
        recorders[0].run()
