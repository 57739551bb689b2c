"""`blackbox warmup`: what it compiles is in the cache for the next process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from blackbox.cli.ui import warm
from blackbox.cli.ui.status import Status
from blackbox.native.compile import kernel_cache
from tests.cli.commands import ROOT, Command, assert_one_line, invoke

COUNT = """
import json
from numba.core.event import install_listener
from blackbox import Feed, Publisher, Subscriber
from blackbox.cli.ui.warm import Compiled, count_loaded
compiled = Compiled(lambda kernel: print(kernel))
with install_listener("numba:compile", compiled):
    feed = Feed.local("second", slices=2)
    subscriber = Subscriber(feed)
    subscriber.on(b"A")(lambda message: None)
    with Publisher(feed) as publisher:
        subscriber.start(timeout=600)
        publisher.publish(b"A.x", b"1")
    subscriber.run(until_end=True)
print(json.dumps([compiled.count, count_loaded()]))
"""


@pytest.mark.long
def test_what_was_warmed_up_is_loaded_by_later_processes() -> None:
    with Command("warmup", "--json") as first:
        ended = first.end(timeout=390)
    assert ended.status == 0, ended.errors
    assert all(f"{name}: " in ended.errors for name in warm.PARTS)
    with Command("warmup", "--json") as second:
        again = second.end(timeout=390)
    found = json.loads(again.out)
    assert found["compiled"] == 0, again.errors
    assert found["from_cache"] > 100
    user = subprocess.run([sys.executable, "-c", COUNT], cwd=ROOT, capture_output=True, text=True)
    compiled, loaded = json.loads(user.stdout.splitlines()[-1])
    assert (compiled, loaded > 10) == (0, True), user.stdout


def test_a_cache_that_cannot_be_written_is_status_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(kernel_cache, "cache_root", lambda: tmp_path / "file" / "kernels")
    ended = invoke("warmup")
    assert ended.status == Status.ERROR
    assert_one_line(
        ended, "compiled kernels cannot be cached: .* is not writable .Not a directory.; set XDG_CACHE_HOME"
    )


def test_a_source_is_imported_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "PARTS", {})
    ended = invoke("warmup", "synthetic:100", "-o", "symbols=3")
    assert ended.status == 0, ended.errors
    assert "synthetic:100: 100 messages imported" in ended.errors
    assert_one_line(invoke("warmup", "nothing:x"), "source was 'nothing', expected one of")
