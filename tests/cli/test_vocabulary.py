"""One vocabulary of options for all commands: one name per meaning, and JSON for all output that scripts read."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pytest

from blackbox import Feed
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
ELSEWHERE: Final = """
console control doctor dump export get hub inspect instruments keys positions put record relay serve stat subscribe
sync tap top trace verify warmup
"""
"""Commands that other files run with `--json`, as well as `feed check`."""
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


RUNS: Final = {
    "publish": "synthetic:100 --feed FEED --wait-for 0",
    "replay": "DAY --feed FEED --wait-for 0",
    "import": "synthetic:100 --out imported --date 2026-01-05",
    "repair": "DAMAGED",
    "compact": "DAY --out packed",
}
"""Arguments of the commands that are run here."""


@pytest.mark.parametrize("command", RUNS)
def test_json_is_one_document(command: str, day: Day, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    feed = msgspec.structs.replace(Feed.local("vocabulary"), schema="itch50")
    damaged = Day(tmp_path / "damaged" / "2026-11-20", feed_of())
    damaged.put(0, Put((Row(b"A", b"a", 1),)))
    (damaged.path / "manifest.json").unlink()
    names = {"DAY": day.path, "DAMAGED": damaged.path, "FEED": write_feed(feed, tmp_path / "feed.toml")}
    ended = invoke(command, *(names.get(word, word) for word in RUNS[command].split()), "--json")
    assert ended.status in (Status.OK, Status.LOST), ended.errors
    assert json.loads(ended.out)


def test_every_command_for_scripts_has_json() -> None:
    tested = {*RUNS, *ELSEWHERE.split(), "feed check"}
    assert {each.command for each in options() if each.name == "--json"} == tested
    assert tested == set(COMMANDS) - WITHOUT_JSON
