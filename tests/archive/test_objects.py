"""Days in an object store, here `rclone serve s3`, with its objects as files for these tests to compare."""

from __future__ import annotations

import datetime
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import pytest

from blackbox import Feed, Recording, Recordings
from blackbox.archive.files.day import Lock
from blackbox.archive.objects.fetch import LIMIT_VARIABLE, cached_days
from blackbox.archive.objects.store import Store
from blackbox.archive.objects.sync import Outcome, is_closed, sync
from blackbox.cli.ui.status import Status
from blackbox.errors import ConfigError, JournalError
from blackbox.feed.endpoint import _free_ports
from blackbox.native.system.file_lock import owner_of
from blackbox.testing import wait_until
from tests.cli.commands import invoke
from tests.damaged import flip
from tests.journals import Day, Put, Row, feed_of

URI = "s3://bucket/recordings"
"""A store that no test writes to."""
NS = 10**9
RCLONE = Path(sys.executable).with_name("rclone")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Run a server; yield the directory in which each bucket is a directory."""
    program = shutil.which("rclone") or (str(RCLONE) if RCLONE.exists() else None)
    if program is None:
        pytest.skip("rclone is not installed")
    directory = tmp_path_factory.mktemp("s3")
    (port,) = _free_ports(1)
    words = ["serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", "mykeyid,mysecret", "--vfs-cache-mode", "off"]
    with pytest.MonkeyPatch.context() as patch, (directory / "log").open("w") as log:
        settings = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "mykeyid",
            "AWS_SECRET_ACCESS_KEY": "mysecret",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        for name, value in settings.items():
            patch.setenv(name, value)
        root = directory / "objects"
        (root / "bucket").mkdir(parents=True)
        process = subprocess.Popen([program, *words, root], stdout=log, stderr=log)
        try:
            wait_until(lambda: _answers(port), what="the server answers")
            yield root
        finally:
            process.kill()
            process.wait()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Prefix(NamedTuple):
    """A prefix of a bucket."""

    uri: str
    path: Path
    """The server's directory of its objects. Only change files in place: the server remembers names and sizes."""


@pytest.fixture
def prefix(server: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Prefix:
    """Return an empty prefix. The cache of days is empty too."""
    monkeypatch.setattr("blackbox.archive.objects.fetch.user_cache", lambda: tmp_path / "cache")
    return Prefix(f"s3://bucket/{tmp_path.name}", server / "bucket" / tmp_path.name)


def make_day(directory: Path, date: str, count: int = 1_000, name: str = "tape", mark: bytes = b"-") -> Path:
    start = int(datetime.datetime.fromisoformat(f"{date}T12:00:00+00:00").timestamp()) * NS
    table = {
        "topic": [f"{'ABCD'[number % 4]}.t" for number in range(count)],
        "ts_event": numpy.arange(start, start + count),
        "payload": [b"%s%s%d" % (date.encode(), mark, number) for number in range(count)],
    }
    return Recording.create(directory, Feed.local(name), table, date=date).path


def messages(recording: Recording | Recordings) -> list[tuple[int, int, bytes, bytes | None]]:
    return [
        (message.slice_id, message.sequence, message.topic, message.payload)
        for batch in recording.batches()
        for message in batch
    ]


def files_below(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


def test_closed_days_are_copied_byte_for_byte_once_and_read_back(prefix: Prefix, tmp_path: Path) -> None:
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    days = [make_day(tmp_path / "local", date) for date in ("2026-01-05", "2026-01-06", today)]
    ended = invoke("sync", tmp_path / "local", prefix.uri, "--json")
    assert ended.status == 0, ended.errors
    told = json.loads(ended.out)["days"]
    assert [(each["name"], each["outcome"]) for each in told] == [
        ("tape/2026-01-05", "copied"),
        ("tape/2026-01-06", "copied"),
        (f"tape/{today}", "open"),
    ]
    for day in days[:2]:
        stored = files_below(prefix.path / "tape" / day.name)
        del stored["files.json"]
        assert stored == files_below(day)
    assert not (prefix.path / "tape" / today).exists()

    before = {path: path.stat().st_mtime_ns for path in prefix.path.rglob("*")}
    again = list(sync(tmp_path / "local", Store(prefix.uri)))
    assert [(each.outcome, each.uploaded) for each in again[:2]] == [(Outcome.PRESENT, 0)] * 2
    assert {path: path.stat().st_mtime_ns for path in prefix.path.rglob("*")} == before

    for day in days[:2]:
        recording = Recording.open(f"{prefix.uri}/tape/{day.name}")
        assert recording.path.is_relative_to(cached_days())
        assert (recording.verify(), messages(recording)) == ([], messages(Recording.open(day)))
    assert invoke("verify", f"{prefix.uri}/tape/2026-01-05").status == 0
    assert messages(Recordings.open(f"{prefix.uri}/tape", first="2026-01-06")) == messages(Recording.open(days[1]))
    with pytest.raises(JournalError, match=r"tape/2026-01-09 is not a recorded day: it has no manifest.json"):
        Recording.open(f"{prefix.uri}/tape/2026-01-09")


def test_the_page_reads_days_of_the_store(prefix: Prefix, tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "production.md").read_text()
    _, code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    for date in ("2026-11-02", "2026-11-03", "2026-11-09"):
        make_day(tmp_path / "recorder-1", date, 100, name="itch")
    (words,) = re.findall(r"^    blackbox (sync .*)$", page, re.MULTILINE)
    command = words.replace("data/recorder-1", f"{tmp_path}/recorder-1").replace(
        "s3://market-data/recordings", prefix.uri
    )
    assert invoke(*command.split()).status == 0
    names: dict[str, Any] = {}
    exec(compile(code.replace("s3://market-data/recordings", prefix.uri), "the page", "exec"), names)
    assert messages(names["day"]) == messages(Recording.open(tmp_path / "recorder-1" / "itch" / "2026-11-02"))
    assert [str(day.date) for day in names["days"]] == ["2026-11-02", "2026-11-03"]


def test_an_interrupted_copy_is_no_day_and_is_resumed(prefix: Prefix, tmp_path: Path) -> None:
    day = make_day(tmp_path / "local", "2026-01-05", 5_000)
    parts: list[int] = []

    def break_off(size: int) -> None:
        parts.append(size)
        if len(parts) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(sync(tmp_path / "local", Store(prefix.uri), break_off))
    with pytest.raises(JournalError, match="has no whole day"):
        Recordings.open(prefix.uri)
    # An object of the right size may be cut or changed.
    stored = prefix.path / "tape" / "2026-01-05"
    left = sorted(path for path in stored.rglob("*") if path.is_file())
    assert left
    left[0].write_bytes(bytes(left[0].stat().st_size))
    (done,) = sync(tmp_path / "local", Store(prefix.uri))
    assert done.outcome is Outcome.COPIED
    assert 0 < done.uploaded < done.bytes
    found = files_below(stored)
    del found["files.json"]
    assert found == files_below(day)


def test_a_day_that_differs_from_its_copy_is_reported_and_left(prefix: Prefix, tmp_path: Path) -> None:
    make_day(tmp_path / "one", "2026-01-05", 1_000)
    make_day(tmp_path / "two", "2026-01-05", 1_500)
    same_size = make_day(tmp_path / "three", "2026-01-05", 1_000, mark=b"+")
    assert [each.outcome for each in sync(tmp_path / "one", Store(prefix.uri))] == [Outcome.COPIED]
    before = files_below(prefix.path)
    ended = invoke("sync", tmp_path / "two", prefix.uri)
    assert ended.status == Status.LOST
    assert f"1 day differs from its copy in {prefix.uri}: tape/2026-01-05" in ended.errors
    assert [each.outcome for each in sync(same_size, Store(prefix.uri))] == [Outcome.DIFFERS]
    assert files_below(prefix.path) == before


def test_a_slice_without_files_is_not_damage(prefix: Prefix, tmp_path: Path) -> None:
    day = Day(tmp_path / "local" / "recorded" / "2026-01-05", feed_of(2), date="2026-01-05")
    day.put(1, Put((Row(b"B", b"1", 1),)))
    list(sync(tmp_path / "local", Store(prefix.uri)))
    assert Recording.open(f"{prefix.uri}/recorded/2026-01-05").verify() == Recording.open(day.path).verify() == []


def test_a_day_is_named_also_if_its_directory_is_the_current_one(
    prefix: Prefix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(make_day(tmp_path / "local", "2026-01-05", 10))
    (done,) = sync(Path(), Store(prefix.uri.replace("//bucket/", "//bucket//")))
    assert (done.outcome, done.name) == (Outcome.COPIED, "tape/2026-01-05")
    assert (prefix.path / "tape" / "2026-01-05" / "files.json").exists()


def test_an_interrupted_removal_from_the_cache_leaves_no_part_of_a_day(
    prefix: Prefix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for date in ("2026-01-05", "2026-01-06"):
        make_day(tmp_path / "local", date)
    list(sync(tmp_path / "local", Store(prefix.uri)))
    monkeypatch.setenv(LIMIT_VARIABLE, "0.000001")
    first = Recording.open(f"{prefix.uri}/tape/2026-01-05").path

    def interrupt(path: Path, **_: object) -> None:
        if path.exists():  # the draft of a fetched day was renamed
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", interrupt)
        Recording.open(f"{prefix.uri}/tape/2026-01-06")
    assert not first.exists()
    for draft in cached_days().glob(".draft-*"):
        os.utime(draft, (0, 0))
    assert Recording.open(f"{prefix.uri}/tape/2026-01-05").path.exists()
    assert not list(cached_days().glob(".draft-*"))


def test_a_day_that_another_process_removes_from_the_cache_is_one_error(
    prefix: Prefix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_day(tmp_path / "local", "2026-01-05", 10)
    list(sync(tmp_path / "local", Store(prefix.uri)))
    use = os.utime

    def remove(path: Path) -> None:
        shutil.rmtree(path)
        use(path)

    with monkeypatch.context() as patch, pytest.raises(JournalError, match="was not found"):
        patch.setattr(os, "utime", remove)
        Recording.open(f"{prefix.uri}/tape/2026-01-05")
    monkeypatch.setenv(LIMIT_VARIABLE, "inf")
    assert len(messages(Recording.open(f"{prefix.uri}/tape/2026-01-05"))) == 10


def test_a_day_is_open_until_its_recorder_has_left_every_slice(tmp_path: Path) -> None:
    day = make_day(tmp_path, "2026-01-05")
    now = int(datetime.datetime(2026, 1, 7, tzinfo=datetime.UTC).timestamp()) * NS
    assert not is_closed(Recording.open(day), now - 24 * 3_600 * NS - 1)  # its session is not over
    assert is_closed(Recording.open(day), now)
    lock = Lock(day.parent)
    try:
        assert owner_of(day.parent / ".recorder.lock") == f"process {os.getpid()}"
        assert is_closed(Recording.open(day), now)  # each file has its end mark
        for journal in day.glob("slice-*/*.journal"):  # as if they were still written
            journal.write_bytes(journal.read_bytes()[:-96])
            journal.with_suffix(".index").unlink()
        assert not is_closed(Recording.open(day), now)
        make_day(tmp_path, "2026-01-06")
        assert is_closed(Recording.open(day), now)
    finally:
        lock.close()
    assert owner_of(day.parent / ".recorder.lock") is None


def test_damaged_objects_are_errors_and_the_cache_is_bounded(
    prefix: Prefix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for date in ("2026-01-05", "2026-01-06", "2026-01-07"):
        make_day(tmp_path / "local", date)
    list(sync(tmp_path / "local", Store(prefix.uri)))
    stored = prefix.path / "tape"
    journal = next((stored / "2026-01-05").glob("slice-*/*.journal"))
    flip(journal, journal.stat().st_size // 2)
    with pytest.raises(JournalError, match="SHA-256 was"):
        Recording.open(f"{prefix.uri}/tape/2026-01-05")
    assert list(cached_days().iterdir()) == []

    monkeypatch.setenv(LIMIT_VARIABLE, "0.000001")
    first = Recording.open(f"{prefix.uri}/tape/2026-01-06")
    had = messages(first)
    second = Recording.open(f"{prefix.uri}/tape/2026-01-07")
    assert (first.path.exists(), second.path.exists()) == (False, True)
    assert messages(Recording.open(f"{prefix.uri}/tape/2026-01-06")) == had
    monkeypatch.setenv(LIMIT_VARIABLE, "none")
    before = sorted(cached_days().iterdir())
    with pytest.raises(ConfigError, match="BLACKBOX_CACHE_GIB was 'none'"):
        Recording.open(f"{prefix.uri}/tape/2026-01-07")
    assert sorted(cached_days().iterdir()) == before
    monkeypatch.delenv(LIMIT_VARIABLE)

    listed = stored / "2026-01-07" / "files.json"
    document = json.loads(listed.read_text())
    document["files"]["../../escaped"] = {"size": 1, "sha256": "0" * 64}
    listed.write_text(json.dumps(document))
    with pytest.raises(JournalError, match=r"files.json is damaged: path was '../../escaped'"):
        Recording.open(f"{prefix.uri}/tape/2026-01-07")


@pytest.mark.parametrize(("uri", "error"), [("gs://bucket", "expected s3://BUCKET"), ("s3://", "expected s3://BUCKET")])
def test_a_store_that_is_not_s3(uri: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        Store(uri)


def test_a_store_that_cannot_be_reached_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = _free_ports(1)
    for name, value in {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "x"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    make_day(tmp_path, "2026-01-05", 10)
    ended = invoke("sync", tmp_path, URI)
    assert ended.status == Status.ERROR
    assert "error: s3://bucket/recordings" in ended.errors
