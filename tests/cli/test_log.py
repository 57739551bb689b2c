"""The log of commands: level, format, and where both are set."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from blackbox import Feed
from blackbox.cli.ui.log import json_line
from blackbox.cli.ui.status import Status
from tests.cli.commands import Command, invoke, write_feed
from tests.journals import Day, feed_of

LOG = logging.getLogger("blackbox")


@pytest.fixture(autouse=True)
def unset_level() -> Iterator[None]:
    before = LOG.level
    LOG.setLevel(logging.NOTSET)
    yield
    LOG.setLevel(before)


def test_every_line_on_stderr_is_an_object_with_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLACKBOX_FEED_KEY_BYTES", "0")  # logged at level INFO
    feed = write_feed(Feed.local("logged"), tmp_path / "feed.toml")
    words = ("--log-level", "info", "stat", "--once", "--timeout", 0, "--feed", feed, "--log-format", "json")
    with Command(*words) as command:
        ended = command.end()
    assert ended.status == Status.ERROR
    lines = [json.loads(line) for line in ended.errors.splitlines()]
    assert [(line["level"], line["logger"]) for line in lines] == [("info", "blackbox"), ("error", "blackbox.cli")]
    assert lines[0]["message"] == f"{feed}: settings from the environment: BLACKBOX_FEED_KEY_BYTES"
    assert lines[1]["message"].startswith("feed 'logged': no publisher was heard in 0 s at tcp://")
    assert set(lines[0]) == {"time", "level", "logger", "message"}
    assert set(lines[1]) == {"time", "level", "logger", "message", "feed"}
    assert lines[1]["feed"] == "logged"


@pytest.mark.parametrize(
    ("message", "about"),
    [
        ("feed 'tape' slice 3 epoch 17: the publisher sends again", {"feed": "tape", "slice": 3, "epoch": 17}),
        ("feed 'tape': slice 0: no publisher", {"feed": "tape", "slice": 0}),
        ("slice 12: it publishes slice 1, expected 12", {"slice": 12}),
        ("relay 'site' of feed 'tape' slice 1: publisher epoch 5 began", {"feed": "tape", "slice": 1}),
        ("hub of feed 'orders' ended: slice 2 epoch 3", {"feed": "orders"}),
        ("compiling functions of slice 3 of feed 'tape'", {}),
    ],
)
def test_json_has_the_feed_slice_and_epoch_at_the_start_of_a_message(message: str, about: dict[str, object]) -> None:
    line = json.loads(json_line("warning", message, "blackbox", 1.5))
    assert {name: line[name] for name in ("feed", "slice", "epoch") if name in line} == about


def test_a_line_of_json_is_one_line_with_a_time_in_utc() -> None:
    line = json_line("warning", 'two\nlines "quoted"', "blackbox", 1.5, "Traceback\n  x")
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "1970-01-01T00:00:01.500000Z",
        "level": "warning",
        "logger": "blackbox",
        "message": 'two\nlines "quoted"',
        "traceback": "Traceback\n  x",
    }


def test_a_path_that_is_not_utf_8_is_escaped_in_json(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"\xff") / "2026-11-20"
    Day(path, feed_of())
    ended = invoke("inspect", path, "--json", "--log-format", "json")
    assert (ended.status, json.loads(ended.out)["recording"]) == (0, str(path)), ended.errors
    assert json.loads(ended.errors.splitlines()[0])["message"] == f"reading {path}"


def test_the_level_is_set_by_the_environment_before_or_after_the_command(
    day: Day, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "warning: see `blackbox verify`" in invoke("inspect", day.path).errors
    assert LOG.getEffectiveLevel() == logging.WARNING
    assert "warning: " not in invoke("inspect", day.path, "--log-level", "error").errors
    assert LOG.level == logging.ERROR
    invoke("--log-level", "debug", "inspect", day.path)
    assert LOG.level == logging.DEBUG
    monkeypatch.setenv("BLACKBOX_LOG_LEVEL", "info")
    invoke("inspect", day.path)
    assert LOG.level == logging.INFO
    assert "warning: " not in invoke("inspect", day.path, "--log-level", "error").errors
    monkeypatch.setenv("BLACKBOX_LOG_LEVEL", "loud")
    assert invoke("inspect", day.path).status == Status.USAGE


def test_the_format_is_that_of_this_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (("--log-format", "json", "verify", tmp_path), ("verify", tmp_path, "--log-format", "json")):
        assert json.loads(invoke(*words).errors)["level"] == "error"
        assert invoke("verify", tmp_path).errors.startswith("error: ")
    monkeypatch.setenv("BLACKBOX_LOG_FORMAT", "json")
    assert json.loads(invoke("verify", tmp_path).errors)["level"] == "error"
    assert invoke("verify", tmp_path, "--log-format", "text").errors.startswith("error: ")
