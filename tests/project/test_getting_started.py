"""The commands of `docs/getting-started.md` run from top to bottom in two terminals, on free ports."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from blackbox import Recordings
from blackbox.feed.endpoint import _free_ports, free_endpoints
from tests.cli.commands import Ended, succeed
from tests.patience import MAX_LAG_NS, PATIENCE_S
from tests.project.scripts import ROOT, start

SECTION = (ROOT / "docs" / "getting-started.md").read_text().partition("\n## Command line\n")[2]
BLOCKS = [re.findall(r"^ {4}blackbox (.*)$", part, re.MULTILINE) for part in re.split(r"\n\n(?! )", SECTION)]
ELSEWHERE = ("doctor", "demo", "analyse")
"""Commands with tests of their own: they look at the machine, take long, or need Spark."""
WAIT = {name: ["--timeout", f"{PATIENCE_S:g}"] for name in ("publish", "stat", "control")}
"""Options of commands that would not wait for a busy machine."""


@pytest.fixture
def terminals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[list[str]]]:
    """Return the words of each command of a terminal, in turn: the first, the other, the first again."""
    for number, (endpoint,) in enumerate(free_endpoints("tcp", "own", 4, 1)):
        monkeypatch.setenv(f"BLACKBOX_FEED_SLICES_{number}_ENDPOINTS", endpoint)
    monkeypatch.setenv("BLACKBOX_FEED_MAX_LAG_NS", str(MAX_LAG_NS))
    monkeypatch.chdir(tmp_path)
    (port,) = _free_ports(1)
    text = "\n\n".join("\n".join(block) for block in BLOCKS if block)
    text = text.replace("127.0.0.1:17300", f"127.0.0.1:{port}").replace("1000000", "20000")
    parts = [[shlex.split(line, comments=True) for line in part.splitlines()] for part in text.split("\n\n")]
    return [[words + WAIT.get(words[0], []) for words in part if words[0] not in ELSEWHERE] for part in parts]


def command(words: list[str]) -> Ended:
    ended = succeed(*words)
    assert "outside of this session" not in ended.errors
    return ended


def test_the_commands_run_from_top_to_bottom_in_two_terminals(terminals: list[list[list[str]]], tmp_path: Path) -> None:
    (*prepare, record), (publish, *offline, replay), (subscribe, stat, stop) = terminals
    for words in prepare:
        command(words)
    with start("-m", "blackbox.cli", *record, cwd=tmp_path) as recorder:
        command(publish)
        _, errors = recorder.communicate(timeout=PATIENCE_S)
    assert recorder.returncode == 0, errors
    for words in offline:
        command(words)
    assert {each.path.name for each in Recordings.open("recordings/own")} > {"2026-01-05", "2026-01-06"}
    with start("-m", "blackbox.cli", *replay, cwd=tmp_path) as replaying:
        assert command(subscribe).out.count("message_type=") == 5
        assert command(stat).out.count("alive") == 4
        command(stop)
        _, errors = replaying.communicate(timeout=PATIENCE_S)
    assert replaying.returncode == 0, errors
