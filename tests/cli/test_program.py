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
from tests.cli.commands import PROGRAM, ROOT, invoke, succeed
from tests.cli.days import recorded_day

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


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches_by_valid_examples_and_names_the_exit_statuses(command: str) -> None:
    ended = succeed(*command.split(), "--help")
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
