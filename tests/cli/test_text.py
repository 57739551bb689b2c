"""Text from others, and characters missing in a locale, are shown and end no command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from blackbox.cli.program import app
from blackbox.cli.ui.terminal import bad_if, columns_table, stdout, values_table
from tests.cli.commands import ROOT, invoke
from tests.examples import first_of
from tests.journals import Day, Put, Row, feed_of

TOPICS = (b"A[red]B.x", b"A[/red]B.x", b"[bold]", b"[/]", b"A:smile:.x", b"\\[x]", "caf\u00e9.\u20ac".encode())
COMMANDS = sorted(command.name or "" for command in app.registered_commands)


@pytest.fixture
def day(tmp_path: Path) -> Day:
    made = Day(tmp_path / "recordings" / "2026-11-20", feed_of())
    made.put(0, *(Put((Row(topic, b"x", i + 1),), i, i, i) for i, topic in enumerate(TOPICS)))
    return made


def blackbox(encoding: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "blackbox.cli", *words],
        capture_output=True,
        text=True,
        encoding=encoding,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT}/feeds", "PYTHONIOENCODING": encoding, "COLUMNS": "200"},
    )


def test_topics_that_look_like_markup_are_shown_as_they_are(day: Day) -> None:
    told = invoke("inspect", day.path, "--top", len(TOPICS))
    assert told.status == 0, told.errors
    for topic in TOPICS:
        assert topic.decode() in told.out


@pytest.mark.parametrize("encoding", first_of(["ascii", "iso-8859-1"]))
def test_topics_missing_in_the_locale_are_escaped(day: Day, encoding: str) -> None:
    told = blackbox(encoding, "inspect", str(day.path), "--top", str(len(TOPICS)))
    assert told.returncode == 0, told.stderr
    shown = "caf\\xe9.\\u20ac" if encoding == "ascii" else "caf\u00e9.\\u20ac"
    assert shown in told.stdout


@pytest.mark.parametrize("encoding", first_of(["ascii", "iso-8859-1"]))
def test_help_works_in_every_locale(encoding: str) -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from blackbox import cli; import blackbox.cli.program as p\n"
        f"for name in {COMMANDS!r}:\n"
        "    sys.argv = ['blackbox', name, '--help']\n"
        "    try:\n"
        "        cli.main()\n"
        "    except SystemExit as ended:\n"
        "        assert not ended.code, name\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        encoding=encoding,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT}/feeds", "PYTHONIOENCODING": encoding, "COLUMNS": "200"},
    )
    assert told.returncode == 0, told.stderr
    assert told.stdout.count("Usage: ") == len(COMMANDS)


def test_help_shows_all_of_an_url() -> None:
    told = invoke("bridge", "--help")
    assert "amqp://USER@HOST/VHOST" in told.out
    assert "rediss and amqps" in told.out


def test_tables_do_not_interpret_markup() -> None:
    table = columns_table(("[b]name[/b]", "value"))
    table.add_row("[/x]", bad_if(True, "[/y]"))
    console = Console(file=sys.stdout, width=60, markup=stdout._markup, emoji=stdout._emoji)
    with console.capture() as shown:
        console.print(table)
        console.print(values_table([("[/x]", bad_if(True, "[red]"), ":smile:")]))
    for text in ("[b]name[/b]", "[/x]", "[/y]", "[red]", ":smile:"):
        assert text in shown.get()
