"""One vocabulary of options for all commands: one name per meaning, and JSON for all output that scripts read."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pytest

from blackbox import Feed
from blackbox.archive.consumer_positions import PositionFile
from blackbox.block.position import Position
from blackbox.cli.ui.status import Status
from tests.cli.commands import invoke, write_feed
from tests.cli.test_program import COMMANDS, command_of
from tests.journals import Day, Put, Row, feed_of

VOCABULARY: Final = """
alone also archives block-kib broken channels command compression console control count date delta durable endpoint
epoch every feed field forget fsync history hold host id images in in-the-clear json keep keep-days keep-gaps keep-gib
key-bytes line lines listen log-format log-level loop master max-lag max-peer-age max-silence message-type metrics
most-days most-gib name on-slow once option order out parquet password-file picture plain port positions prefix prices
processes queue-blocks rate release repair replace report schema segment-mib serve show silence-timeout slice slices
slow-peer spare speed start start-grace stop symbol synced threads timeout to top topics transport until-end wait-for
watch webhook when-full workers
"""
"""The names of all options; their help texts have the meanings. Use one of these before you add a name."""
REPEATABLE: Final = {"--also", "--field", "--prefix", "--slice", "--symbol", "--option", "--spare", "--to", "--watch"}
WITHOUT_JSON: Final = {"dashboard", "demo", "analyse", "bridge", "client", "unsubscribe", "feed new"}
"""Commands without output for scripts: a demo, a page, a service, a change."""
ELSEWHERE: Final = {
    "instruments",
    "subscribe",
    "record",
    "relay",
    "serve",
    "hub",
    "put",
    "get",
    "stat",
    "tap",
    "trace",
    "top",
    "console",
    "control",
    "sync",
    "warmup",
}
"""Commands that other files run with `--json`."""
SECRETS: Final = re.compile("password|secret|token|credential|(^|-)key($|-(?!bytes))")


class Option(NamedTuple):
    """An option of a command."""

    command: str
    name: str
    parameter: Any


def options() -> Iterator[Option]:
    """Yield all options of all commands, by each of their long names."""
    for command in COMMANDS:
        for parameter in command_of(command).params:
            if parameter.param_type_name == "option":
                for name in (*parameter.opts, *parameter.secondary_opts):
                    if name.startswith("--") and name != "--help":
                        yield Option(command, name, parameter)


def test_every_option_has_a_name_of_the_vocabulary_and_means_the_same_in_every_command() -> None:
    assert {each.name for each in options()} == {f"--{name}" for name in VOCABULARY.split()}
    forms = defaultdict(set)
    for command, name, parameter in options():
        if (command, name) == ("replay", "--serve"):  # at a URL; a recorder serves at the feed's endpoint
            continue
        metavar = None if name == "--out" else parameter.metavar  # a file, a directory, or either
        forms[name].add((parameter.multiple, parameter.is_flag, metavar))
    assert {name: found for name, found in forms.items() if len(found) > 1} == {}
    assert {each.name for each in options() if each.parameter.multiple} == REPEATABLE


def test_no_option_holds_a_secret() -> None:
    """Other users read a process's arguments: a secret comes from a file or the environment."""
    found = {each.name for each in options() if SECRETS.search(each.name) and not each.name.endswith("-file")}
    assert found == set()


class Files(NamedTuple):
    """Paths that commands are run on."""

    directory: Path
    day: Path
    feed: Path


def damaged_manifest(files: Files) -> Path:
    """Return a recorded day of one slice without its manifest."""
    day = Day(files.directory / "damaged" / "2026-11-20", feed_of())
    day.put(0, Put((Row(b"A", b"a", 1),)))
    (day.path / "manifest.json").unlink()
    return day.path


def consumer(files: Files) -> Path:
    """Return a directory with the positions of a consumer."""
    file = PositionFile(files.directory / "positions", "strategy")
    file.own(0)
    file.keep("tape", {0: Position(1, 2)})
    file.close()
    return files.directory / "positions"


RUNS: Final[dict[str, Callable[[Files], list[object]]]] = {
    "publish": lambda files: ["synthetic:100", "--feed", files.feed, "--wait-for", 0],
    "replay": lambda files: [files.day, "--feed", files.feed, "--wait-for", 0],
    "import": lambda files: ["synthetic:100", "--out", files.directory / "imported", "--date", "2026-01-05"],
    "positions": lambda files: [consumer(files)],
    "inspect": lambda files: [files.day],
    "verify": lambda files: [files.day],
    "repair": lambda files: [damaged_manifest(files)],
    "dump": lambda files: [files.day, "--prefix", "AAPL.", "--prefix", "MSFT.", "--slice", 0, "--slice", 1],
    "export": lambda files: [files.day, "--out", files.directory / "day.itch"],
    "compact": lambda files: [files.day, "--out", files.directory / "packed"],
    "keys": lambda files: ["new", "desk", "--out", files.directory / "keys"],
    "doctor": lambda files: ["--feed", files.feed],
    "feed check": lambda files: [files.feed],
}
"""Arguments of the commands that are run here."""


@pytest.mark.parametrize("command", RUNS)
def test_json_is_one_document_or_one_per_line(command: str, day: Day, tmp_path: Path) -> None:
    feed = msgspec.structs.replace(Feed.local("vocabulary"), schema="itch50")
    files = Files(tmp_path, day.path, write_feed(feed, tmp_path / "feed.toml"))
    ended = invoke(*command.split(), *RUNS[command](files), "--json")
    assert ended.status in (Status.OK, Status.ERROR, Status.LOST), ended.errors
    found = [json.loads(line) for line in ended.out.splitlines()]
    assert len(found) == 1 or (found and command in ("dump", "export"))


def test_every_command_for_scripts_has_json() -> None:
    assert {each.command for each in options() if each.name == "--json"} == RUNS.keys() | ELSEWHERE
    assert RUNS.keys() | ELSEWHERE == set(COMMANDS) - WITHOUT_JSON
