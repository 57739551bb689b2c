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
import typer

from blackbox import Feed
from blackbox.archive.consumer_positions import PositionFile
from blackbox.block.position import Position
from blackbox.cli.program import app
from blackbox.cli.ui.status import Status
from tests.cli.commands import invoke, write_feed
from tests.journals import Day, Put, Row, feed_of

VOCABULARY: Final = {
    "--feed": "feed file",
    "--out": "path of the results",
    "--prefix": "topic prefix",
    "--slice": "slice of a recording",
    "--symbol": "symbol",
    "--message-type": "message type",
    "--count": "number of messages after which the command ends",
    "--name": "name of a client, a consumer, a relay or a new feed",
    "--json": "JSON on stdout",
    "--start": "first market time",
    "--stop": "market time to stop before",
    "--date": "session date of sources",
    "--option": "option of a source or a bridge, NAME=VALUE",
    "--timeout": "time limit",
    "--silence-timeout": "time limit for silence of a slice",
    "--wait-for": "subscribers to wait for",
    "--when-full": "policy for a full queue of a subscriber",
    "--until-end": "end with the publishers",
    "--positions": "directory of the positions of durable clients",
    "--durable": "begin a durable subscription",
    "--keep": "keep received messages of durable subscriptions",
    "--synced": "acknowledge once the message is on disk",
    "--endpoint": "endpoint to answer at",
    "--control": "endpoint for the control of a replay",
    "--console": "endpoint of the operator console",
    "--compression": "compression of blocks",
    "--block-kib": "size of blocks",
    "--segment-mib": "size of journal files",
    "--fsync": "when a recorder syncs",
    "--serve": "answer readers of recorded blocks",
    "--keep-days": "days to keep, with what consumers need",
    "--keep-gib": "GiB to keep, with what consumers need",
    "--most-days": "days to keep at most",
    "--most-gib": "GiB to keep at most",
    "--replace": "replace days that exist",
    "--threads": "days at a time",
    "--speed": "market seconds per second",
    "--loop": "times to play",
    "--keep-gaps": "keep recorded gaps",
    "--max-silence": "longest silence of market time",
    "--show": "messages to print",
    "--workers": "threads per slice",
    "--processes": "a process per slice",
    "--max-lag": "lag above which a subscriber is slow",
    "--on-slow": "policy for a slow subscriber",
    "--queue-blocks": "blocks that may wait for a worker",
    "--start-grace": "time in which no subscriber is slow",
    "--plain": "relay single messages",
    "--in-the-clear": "relay to readers without keys",
    "--spare": "feed file of another source",
    "--hold": "time for which a relay keeps subscriptions",
    "--in": "carry into the feed",
    "--password-file": "file of the password",
    "--once": "print once",
    "--to": "position to move a consumer to",
    "--release": "let a held consumer start again",
    "--forget": "delete the positions of a consumer",
    "--top": "number of entries of a ranking",
    "--picture": "picture to draw as well",
    "--report": "page to write as well",
    "--broken": "show cancelled trades",
    "--master": "Spark master",
    "--parquet": "write Parquet",
    "--prices": "form of prices",
    "--order": "order of messages in a file",
    "--alone": "lead without the other hub",
    "--id": "ID of a message",
    "--slices": "number of slices of a new feed",
    "--schema": "schema of a new feed",
    "--key-bytes": "bytes that ZeroMQ filters on",
    "--channels": "number of hashes of a symbol that ZeroMQ filters on",
    "--transport": "transport of a new feed",
    "--host": "address of the publisher",
    "--port": "first port",
    "--lines": "lines per slice",
    "--archive": "add an archive to a new feed",
    "--log-level": "least level of log lines",
    "--log-format": "form of log lines",
}
"""The meaning of each option, in all commands. Use one of these before you add a name."""
REPEATABLE: Final = {"--prefix", "--slice", "--symbol", "--option", "--spare", "--to"}
ARGUMENTS: Final = {
    *("SOURCE...", "[SOURCE...]", "[SOURCE]", "RECORDING", "RECORDING...", "DIR", "FILE", "URL", "ENDPOINT"),
    *("UP.toml", "DOWN", "HUB.toml", "TOPIC", "PAYLOAD", "COMMAND", "VALUE", "new", "NAME"),
}
"""Arguments are what a command works on; settings and results are options."""
WITHOUT_JSON: Final = {"demo", "analyse", "bridge", "client", "unsubscribe", "feed new"}
"""Commands without output for scripts: a demo, a page, a service, a change."""
SECRETS: Final = re.compile("password|secret|token|credential|(^|-)key($|-(?!bytes))")


class Option(NamedTuple):
    """An option of a command."""

    command: str
    name: str
    parameter: Any


def commands() -> dict[str, Any]:
    """Return all commands by name, `feed new` as two words."""
    found: dict[str, Any] = {}
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        found |= {name: command} if inner is None else {f"{name} {each}": inner[each] for each in inner}
    return found


def options() -> Iterator[Option]:
    """Yield all options of all commands, by each of their long names."""
    for command, found in commands().items():
        for parameter in found.params:
            if parameter.param_type_name == "option":
                for name in (*parameter.opts, *parameter.secondary_opts):
                    if name.startswith("--") and name != "--help":
                        yield Option(command, name, parameter)


def test_every_option_has_a_name_of_the_vocabulary() -> None:
    unknown = sorted({(each.command, each.name) for each in options() if each.name not in VOCABULARY})
    assert not unknown, f"use a name of VOCABULARY, or add one that means something else: {unknown}"


def test_a_name_means_the_same_in_every_command() -> None:
    forms = defaultdict(set)
    for _, name, parameter in options():
        metavar = None if name == "--out" else parameter.metavar  # a file, a directory, or either
        forms[name].add((parameter.multiple, parameter.is_flag, metavar))
    assert {name: found for name, found in forms.items() if len(found) > 1} == {}


def test_options_that_select_can_be_repeated() -> None:
    repeatable = {each.name for each in options() if each.parameter.multiple}
    assert repeatable == {each.name for each in options()} & REPEATABLE


def test_commands_choose_topics_by_prefix_and_by_symbol() -> None:
    taking = {name: {each.command for each in options() if each.name == name} for name in ("--prefix", "--symbol")}
    assert taking["--prefix"] <= taking["--symbol"]


def test_settings_and_results_are_no_arguments() -> None:
    found = {
        (command, parameter.metavar)
        for command, each in commands().items()
        for parameter in each.params
        if parameter.param_type_name == "argument" and parameter.metavar not in ARGUMENTS
    }
    assert found == set()


def test_no_option_holds_a_secret() -> None:
    """Other users read a process's arguments: a secret comes from a file or the environment."""
    found = {each.name for each in options() if SECRETS.search(each.name) and not each.name.endswith("-file")}
    assert found == set()


def test_every_command_for_scripts_has_json() -> None:
    with_json = {each.command for each in options() if each.name == "--json"}
    assert commands().keys() - with_json == WITHOUT_JSON


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
"""Arguments of the commands that are run here. Tests of the others run them with `--json` themselves."""
ELSEWHERE: Final = {
    **dict.fromkeys(("subscribe", "record"), "test_live_json.py"),
    **dict.fromkeys(("relay", "serve", "hub", "put", "get"), "test_live_json.py"),
    "stat": "test_stat.py",
    "control": "test_control.py",
    "warmup": "test_warmup.py",
}


@pytest.mark.parametrize("command", RUNS)
def test_json_is_one_document_or_one_per_line(command: str, day: Day, tmp_path: Path) -> None:
    feed = msgspec.structs.replace(Feed.local("vocabulary"), schema="itch50")
    files = Files(tmp_path, day.path, write_feed(feed, tmp_path / "feed.toml"))
    ended = invoke(*command.split(), *RUNS[command](files), "--json")
    assert ended.status in (Status.OK, Status.ERROR, Status.LOST), ended.errors
    lines = ended.out.splitlines()
    assert lines, ended.errors
    found = [json.loads(line) for line in lines]
    assert command in ("dump", "export") or len(found) == 1


def test_every_command_with_json_is_run_with_it() -> None:
    assert RUNS.keys() | ELSEWHERE.keys() == commands().keys() - WITHOUT_JSON
    for command, name in ELSEWHERE.items():
        text = (Path(__file__).parent / name).read_text()
        assert f'"{command}"' in text, f"{command} is not run by {name}"
        assert '"--json"' in text
