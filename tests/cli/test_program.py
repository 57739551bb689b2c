"""The program: its help, its commands, and errors that many commands share."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from blackbox import Feed
from blackbox.cli.ui.feeds import LOCAL
from blackbox.cli.ui.status import Status
from tests.cli.commands import PROGRAM, ROOT, assert_one_line, invoke, write_feed
from tests.cli.days import recorded_day
from tests.journals import Day

COMMANDS = sorted(
    f"{name} {inner}".strip()
    for name, command in PROGRAM.commands.items()  # type: ignore[attr-defined]
    for inner in getattr(command, "commands", [""])
)
"""All commands, `feed new` as two words."""
DATE = "2026-11-20"
AS_BLACKBOX = "import sys; sys.argv[0] = 'blackbox'; from blackbox.cli import main; main()"


def command_of(words: str) -> Any:
    """Return the command with a name of one word or two."""
    found: Any = PROGRAM
    for word in words.split():
        found = found.commands[word]
    return found


def examples_of(command: str) -> list[list[str]]:
    """Return the words after `blackbox` in each example of a command's help, without shell syntax."""
    text = inspect.cleandoc(command_of(command).help or "").partition("For example")[2]
    found = []
    for line in re.findall(rf"^(?:for .*? do )?blackbox ({command}\b.*)$", text, re.MULTILINE):
        shell, _, _ = re.split(r"(;|&&|\||  )", line + ";", maxsplit=1)
        found.append(shlex.split(shell.replace("$day", f"recordings/nasdaq/{DATE}")))
    return found


@pytest.mark.parametrize(
    ("words", "pattern"),
    [
        (["publish", "synthetic"], "source was 'synthetic', expected NAME:ARGUMENT"),
        (["publish", "itch:x"], "source was 'itch', expected one of: .*itch50"),
        (["publish", "synthetic:10", "-o", "seed"], "option was 'seed', expected NAME=VALUE"),
        (["publish", "synthetic:10", "-o", "sead=1"], "option was 'sead', expected one of: seed"),
        (["publish", "itch50:nothing.bin", "-o", "date=2020-01-30", "--wait-for", "0"], "nothing.bin"),
        (["publish", "synthetic:10", "--feed", "no.toml"], "feed file 'no.toml' was not found"),
        (["subscribe", "--feed", "no.toml"], "feed file 'no.toml' was not found"),
        (["record", "--serve"], "feed 'local' had no archives, expected endpoints such as"),
        (["serve", "nowhere"], "nowhere/local was not a directory, expected the recordings of feed 'local'"),
        (["stat", "--feed", "no.toml"], "feed file 'no.toml' was not found"),
        (["demo", "iex:nothing.pcap"], "nothing.pcap"),
        (["control", "ipc:///no/where", "pause", "--timeout", "0"], "no replay answered at ipc:///no/where"),
        (["control", "localhost:17300"], "endpoint was 'localhost:17300', expected tcp://"),
    ],
)
def test_each_error_is_one_line_and_status_1(words: list[str], pattern: str, tmp_path: Path) -> None:
    if words[0] == "publish" and "--feed" not in words:
        words = [*words, "--feed", str(write_feed(Feed.local("errors"), tmp_path / "feed.toml"))]
    ended = invoke(*words)
    assert ended.status == Status.ERROR
    assert_one_line(ended, pattern)


WRONG_USAGE = """
publish
publish synthetic:10 --when-full block
subscribe --workers -1
subscribe --on-slow ignore
subscribe --max-lag 1e10
subscribe --max-lag nan
subscribe --start-grace 1e7
record --fsync often
record --compression rar
record --segment-mib 0
record --timeout -1
record --keep-gib inf
import synthetic:10 --out x --date 2026-13-01
import synthetic:10 --out x --date today
relay x.toml tcp://127.0.0.1:5000 --plain --spare x.toml
relay x.toml tcp://127.0.0.1:5000 --plain --name x
relay x.toml tcp://127.0.0.1:5000 --plain --hold 1
relay x.toml tcp://127.0.0.1:5000 --plain --when-full wait
relay x.toml x.toml --in-the-clear
stat --twice
stat --timeout nan
demo --count 0
replay
replay DAY --speed 0
replay DAY --speed fast
replay DAY --start noon
replay DAY --slice x
replay DAY --slice 7
replay DAY --loop -1
replay DAY --max-silence 0
replay DAY --max-silence 1e10
control
control tcp://127.0.0.1:1 jump
control tcp://127.0.0.1:1 pause 10
control tcp://127.0.0.1:1 seek
control tcp://127.0.0.1:1 speed
control tcp://127.0.0.1:1 speed 0
control tcp://127.0.0.1:1 speed nan
control tcp://127.0.0.1:1 step 0
control tcp://127.0.0.1:1 step half
control tcp://127.0.0.1:1 step 999999999999999999999999999999
dump DAY --slice 2
dump DAY --slice all
dump DAY --start noon
dump DAY --count -1
export DAY
export DAY --out x --stop 25:00
compact DAY
compact DAY --out x --compression gzip
compact DAY --out x --block-kib 0
inspect
verify
"""


def test_wrong_usage_is_status_2(day: Day) -> None:
    write_feed(Feed.local("usage"), file := day.path.parent / "x.toml")
    names = {"DAY": str(day.path), "x.toml": str(file)}
    lines = WRONG_USAGE.strip().splitlines()
    ended = {line: invoke(*(names.get(word, word) for word in line.split())).status for line in lines}
    assert ended == dict.fromkeys(lines, Status.USAGE)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches_by_valid_examples_and_names_the_exit_statuses(command: str) -> None:
    ended = invoke(*command.split(), "--help")
    assert ended.status == 0
    text = " ".join(re.sub(r"[│╭╮╰╯─]", " ", ended.out).split())
    assert "For example" in text
    assert "Exit status: 0 fine, 1 error" in text
    assert "130 Ctrl-C" in text
    found = command_of(command)
    assert {"--log-level", "--log-format"} <= {option for parameter in found.params for option in parameter.opts}
    paragraphs = (found.help or "").split("\n\n")
    assert not [text for text in paragraphs if "\n" in text], "the terminal wraps paragraphs"
    examples = examples_of(command)
    assert min(len(examples), text.count(f"blackbox {command}")) >= 2
    for words in examples:
        found.make_context(command, words[len(command.split()) :])


@pytest.mark.parametrize("command", ["inspect", "verify", "dump", "export", "compact"])
def test_every_example_about_a_recording_runs(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded_day(tmp_path / "recordings" / "nasdaq" / DATE)
    monkeypatch.chdir(tmp_path)
    for words in examples_of(command):
        expected = Status.LOST if command == "verify" else Status.OK  # the day has a gap
        ended = invoke(*words)
        assert ended.status == expected, (words, ended.errors)
    more = ["--out", tmp_path / "out"] if command in {"export", "compact"} else []
    ended = invoke(command, tmp_path / "nothing", *more)
    assert ended.status == Status.ERROR
    assert ended.errors == f"error: recording '{tmp_path}/nothing' was not found\n"


def test_the_help_groups_every_command_by_task() -> None:
    text = invoke("--help").out
    assert all(command.split()[0] in text for command in COMMANDS)
    panels = ("Live", "Watch", "Recordings", "Hub", "Analysis", "Setup")
    assert {command_of(name.split()[0]).rich_help_panel for name in COMMANDS} == set(panels)
    places = [text.index(f"─ {panel} ─") for panel in panels]
    assert places == sorted(places)
    assert re.fullmatch(r"blackbox \d+\.\d+\.\d+\n", invoke("--version").out)
    assert "amqp://USER@HOST/VHOST" in invoke("bridge", "--help").out


def run_as_blackbox(*words: str, **variables: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", AS_BLACKBOX, *words],
        env=os.environ | variables,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert not ended.stderr
    return ended.stdout


def test_completion_is_installed_and_completes_options(tmp_path: Path) -> None:
    run_as_blackbox(
        "--install-completion", "bash", HOME=str(tmp_path), _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1"
    )
    (file,) = (tmp_path / ".bash_completions").iterdir()
    assert "_BLACKBOX_COMPLETE" in file.read_text()
    assert str(file) in (tmp_path / ".bashrc").read_text()
    words = {"COMP_WORDS": "blackbox inspect --pic", "COMP_CWORD": "2"}
    assert run_as_blackbox(_BLACKBOX_COMPLETE="complete_bash", **words).split() == ["--picture"]


def test_help_needs_nothing_heavy() -> None:
    script = "import sys, blackbox.cli.program; assert not {'numba', 'zmq', 'pyarrow'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)


def test_the_built_in_feed_equals_the_configuration_file() -> None:
    assert Feed.load(ROOT / "configs" / "local.toml") == LOCAL
