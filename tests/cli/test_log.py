"""The log of commands: level, format, and where both are set."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import msgspec
import pytest

from blackbox import Feed
from blackbox.cli.ui.log import json_line
from blackbox.cli.ui.status import Status
from tests.cli.commands import Command, Ended, invoke, write_feed
from tests.cli.days import recorded_day
from tests.cli.test_program import COMMANDS, command_of


def stat(feed: Path, *after: object, before: tuple[object, ...] = ()) -> Ended:
    """A command that logs a line at level INFO, because a setting comes from the environment, and fails."""
    with Command(*before, "stat", "--once", "--timeout", 0, "--feed", feed, *after) as command:
        return command.end()


@pytest.fixture
def feed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BLACKBOX_FEED_KEY_BYTES", "0")
    return write_feed(Feed.local("logged"), tmp_path / "feed.toml")


LINE = "settings from the environment: BLACKBOX_FEED_KEY_BYTES"


def test_the_level_defaults_to_warning(feed: Path) -> None:
    assert LINE not in stat(feed).errors


def test_the_level_is_set_before_or_after_the_command(feed: Path) -> None:
    for ended in (stat(feed, "--log-level", "info"), stat(feed, before=("--log-level", "debug"))):
        assert f"info: {feed}: {LINE}\n" in ended.errors
        assert ended.status == Status.ERROR


@pytest.mark.long
def test_the_environment_sets_both_and_the_command_line_wins(feed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLACKBOX_LOG_LEVEL", "info")
    monkeypatch.setenv("BLACKBOX_LOG_FORMAT", "json")
    ended = stat(feed)
    assert [json.loads(line)["level"] for line in ended.errors.splitlines()] == ["info", "error"]
    assert LINE not in stat(feed, "--log-level", "error").errors
    assert stat(feed, "--log-format", "text").errors.startswith(f"info: {feed}: {LINE}\n")
    monkeypatch.setenv("BLACKBOX_LOG_LEVEL", "loud")
    assert stat(feed).status == Status.USAGE


def test_every_line_on_stderr_is_an_object_with_json(feed: Path) -> None:
    ended = stat(feed, "--log-format", "json", "--log-level", "info")
    lines = [json.loads(line) for line in ended.errors.splitlines()]
    assert [(line["level"], line["logger"]) for line in lines] == [("info", "blackbox"), ("error", "blackbox.cli")]
    assert lines[0]["message"] == f"{feed}: {LINE}"
    assert lines[1]["message"].startswith("feed 'logged': no publisher was heard in 0 s at tcp://")
    assert all(set(line) == {"time", "level", "logger", "message"} for line in lines)


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


def test_warnings_of_a_command_are_hidden_where_only_errors_are_shown(tmp_path: Path) -> None:
    day = recorded_day(tmp_path / "recordings" / "recorded" / "2026-11-20")
    log = logging.getLogger("blackbox")
    before = log.level
    try:
        assert "warning: see `blackbox verify`" in invoke("inspect", day.path).errors
        assert "warning: " not in invoke("inspect", day.path, "--log-level", "error").errors
    finally:
        log.setLevel(before)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_the_options_of_the_log(command: str) -> None:
    names = {option for parameter in command_of(command).params for option in parameter.opts}
    assert {"--log-level", "--log-format"} <= names


def test_the_program_keeps_no_format_of_an_earlier_command(tmp_path: Path) -> None:
    assert json.loads(invoke("--log-format", "json", "verify", tmp_path).errors)["level"] == "error"
    assert invoke("verify", tmp_path).errors.startswith("error: ")
    assert msgspec.json.decode(invoke("verify", tmp_path, "--log-format", "json").errors)["level"] == "error"
