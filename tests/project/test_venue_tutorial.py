"""Each command and program of `docs/venue-tutorial.md` runs, on free ports: from a file to a venue and back."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from blackbox import Feed
from blackbox.cli.ui.status import Status
from blackbox.feed.endpoint import _free_ports, free_endpoints
from blackbox.testing import wait_until
from tests.cli.commands import succeed
from tests.project.scripts import ROOT, start
from tests.recorded import wait_for_whole_day

PAGE = (ROOT / "docs" / "venue-tutorial.md").read_text()
LINES = re.findall(r"^ {4}(\S.*)$", re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL), re.MULTILINE)
(STRATEGY,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
PORTS = ("26400", "26401", "26402")
_PATIENCE_S = 180.0


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Return the words of each command of the page, with free ports."""
    (tmp_path / "strategy.py").write_text(STRATEGY)
    ((endpoint,),) = free_endpoints("tcp", "tutorial", 1, 1)
    monkeypatch.setenv("BLACKBOX_FEED_SLICES_0_ENDPOINTS", endpoint)
    monkeypatch.chdir(tmp_path)
    free = dict(zip(PORTS, map(str, _free_ports(len(PORTS))), strict=True))
    text = re.sub("|".join(PORTS), lambda found: free[found[0]], "\n".join(LINES))
    return [shlex.split(line) for line in text.splitlines()]


def is_bound(port: str) -> bool:
    """Return True if a UDP socket of this machine has the port."""
    return f":{int(port):04X} " in Path("/proc/net/udp").read_text()


def test_from_a_file_to_a_venue_a_feed_a_strategy_and_back(
    lines: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    new, make, live, record, publish, replay, sent, received, _compare, *results = (words[1:] for words in lines)
    for words in (new, make):
        ended = succeed(*words)
    wait_for_whole_day(Feed.load("venue.toml"), _PATIENCE_S)
    (source,) = [word for word in publish if word.startswith("moldudp64:")]
    publish[publish.index(source)] = f"{source}&hold={_PATIENCE_S:g}"  # a busy machine answers late
    client_ports = re.findall(r"127\.0\.0\.1:(\d+)", " ".join(publish))[:2]
    with (
        start(*live, cwd=tmp_path) as strategy,
        start("-m", "blackbox.cli", *record, cwd=tmp_path) as recorder,
        start("-m", "blackbox.cli", *publish, "--wait-for", "2", cwd=tmp_path) as client,
    ):
        wait_until(lambda: all(map(is_bound, client_ports)), _PATIENCE_S, "the client listens")
        with start("-m", "blackbox.cli", *replay[:-1], f"{replay[-1]}&linger={_PATIENCE_S:g}", cwd=tmp_path) as venue:
            for process in (client, recorder):
                _, errors = process.communicate(timeout=_PATIENCE_S)
                assert process.returncode == 0, errors
            venue.send_signal(signal.SIGINT)  # while it still answers
            served, errors = venue.communicate(timeout=_PATIENCE_S)
        assert (venue.returncode, "answers 0" in served) == (Status.INTERRUPTED, False), errors
        out, errors = strategy.communicate(timeout=_PATIENCE_S)
    assert "lost: 0" in out, errors
    for words in results:
        monkeypatch.setattr(sys, "argv", words)
        runpy.run_path(words[0])
        assert capsys.readouterr().out == out
    received[1] = str(next(Path().glob(received[1].replace("*", "[!.]*"))))  # as a shell does
    for words in (sent, received):
        ended = succeed(*words, "--json")
        assert json.loads(ended.out)["messages"] == 20_000
    assert subprocess.run(lines[8], check=False).returncode == 0
