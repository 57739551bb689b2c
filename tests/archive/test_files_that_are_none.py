"""Pipes, devices and huge files instead of a recording's files are rejected at once, with one clear error."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from blackbox import ConfigError, Feed, Recording
from blackbox.archive.crash_recovery import recover_day
from blackbox.errors import JournalError
from tests.cli.commands import assert_one_line, invoke
from tests.journals import Day, Put, Row, feed_of

pytestmark = pytest.mark.timeout(60)

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
    for command in ("inspect", "verify", "dump", "replay"):
        ended = invoke(command, tmp_path)
        assert ended.status == 1
        assert_one_line(ended, what)


@pytest.mark.parametrize("name", ["manifest.json", "closed.json"])
def test_deeply_nested_json_is_reported_as_damage(tmp_path: Path, name: str) -> None:
    day_of(tmp_path)
    for text in (b"[" * 1_000_000, b'{"a":' * 1_000_000, b'{"format":2,"feed":' + b"[" * 1_000_000):
        (tmp_path / name).write_bytes(text)
        if name == "manifest.json":
            with pytest.raises(JournalError, match="is damaged"):
                Recording.open(tmp_path)
        else:
            (damage,) = Recording.open(tmp_path).verify()
            assert "closed.json is damaged" in damage.what


@pytest.mark.parametrize("make", [pipe, device, directory, huge])
def test_an_irregular_feed_file_is_rejected(tmp_path: Path, make: Callable[[Path], str]) -> None:
    what = make(tmp_path / "feed.toml")
    with pytest.raises(ConfigError, match=what):
        Feed.load(tmp_path / "feed.toml")


def test_a_deeply_nested_feed_file_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "feed.toml"
    path.write_text("a = " + "[" * 100_000)
    with pytest.raises(ConfigError, match="is not TOML"):
        Feed.load(path)
