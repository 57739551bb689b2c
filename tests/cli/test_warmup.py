"""`blackbox warmup`: what it compiles is in the cache for the next process."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from blackbox.cli.ui import warm
from blackbox.cli.warmup import _remove
from blackbox.native.compile import kernel_cache
from tests.cli.commands import ROOT, Command, Screen, assert_one_line, invoke, succeed
from tests.feeds.databento_live.gateway import KEY

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


VENUES = """
import gc, sys, tempfile, threading
from pathlib import Path
from numba.core.dispatcher import Dispatcher
from blackbox.cli.ui import warm
from blackbox.feed.endpoint import _free_ports
from blackbox.feed.source import open_source
from blackbox.archive.recording import Recording
from blackbox.replay.play.to_venue import VenuePlayer, order_for_venue
from blackbox.replay.play.venue_server import make_venue_server
from blackbox.replay.replay import Replay
from blackbox.testing import wait_until
from tests.feeds.databento_live.gateway import Gateway, trade

def compiled():
    kernels = [each for each in gc.get_objects() if issubclass(type(each), Dispatcher)]
    return {f"{each.py_func.__module__}.{each.py_func.__name__}{kind}" for each in kernels for kind in each.signatures}

def receive(spec, until):
    source, found = open_source(spec), []
    def run():
        for chunk in source.chunks():
            found.append(chunk)
    thread = threading.Thread(target=run)
    thread.start()
    until(source)
    source.stop()
    thread.join()
    print(spec.partition(":")[0], source.statistics().messages > 0)

def serve(url, days, spec):
    def until(source):
        with make_venue_server(url, days) as server:
            server.wait_for(0 if "mold" in url else 1, 60)
            while not source.statistics().messages:
                Replay(days, order=order_for_venue(days)).run(VenuePlayer(server, days))
    receive(spec, until)

def gateway():
    def session(peer):
        peer.begin()
        peer.send(*map(trade, range(10)))
        peer.wait_for_close()
    with warm._with_key(), Gateway(session) as there:
        spec = f"databento://GLBX.MDP3?schema=trades&gateway=127.0.0.1:{there.port}"
        receive(spec, lambda source: wait_until(lambda: source.statistics().messages >= 10))

with tempfile.TemporaryDirectory() as name:
    place = Path(name)
    for part in (warm.imported, warm.received, warm.served):
        part(place)
    before = compiled()
    itch, frames = (
        [Recording.open(path.parent) for path in (place / part).glob("*/*/manifest.json")]
        for part in ("first", "frames")
    )
    mold, soup, binance = (f"127.0.0.1:{port}" for port in _free_ports(3))
    serve(f"moldudp64://{mold}?linger=0", itch, f"moldudp64://{mold}")
    serve(f"soupbintcp://{soup}?linger=0", itch, f"soupbintcp://me@{soup}")
    serve(f"binance+ws://{binance}", frames, f"binance+ws://{binance}/stream?streams=a@trade")
    gateway()
print("compiled later:", sorted(compiled() - before))
"""


@pytest.mark.long
def test_venue_clients_and_servers_compile_nothing_after_the_warmup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABENTO_API_KEY", KEY)
    ended = subprocess.run([sys.executable, "-c", VENUES], cwd=ROOT, capture_output=True, text=True)
    assert ended.stdout.splitlines() == [
        "moldudp64 True",
        "soupbintcp True",
        "binance+ws True",
        "databento True",
        "compiled later: []",
    ], ended.stdout + ended.stderr


def test_a_cache_that_cannot_be_written_is_status_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(kernel_cache, "cache_root", lambda: tmp_path / "file" / "kernels")
    ended = invoke("warmup")
    assert_one_line(ended, "compiled kernels cannot be cached in .*/kernels: Not a directory; set XDG_CACHE_HOME")


@pytest.mark.parametrize(
    ("on_interrupt", "numbers", "text"),
    [
        (signal.default_int_handler, [signal.SIGINT], "interrupted"),
        (signal.SIG_IGN, [signal.SIGINT, signal.SIGTERM], "terminated"),
    ],
    ids=["ctrl_c", "ignored_ctrl_c"],
)
def test_a_signal_ends_it_although_a_kernel_is_being_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_interrupt: Any, numbers: list[signal.Signals], text: str
) -> None:
    for variable in ("XDG_CACHE_HOME", "TMPDIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
        (tmp_path / variable).mkdir()
    monkeypatch.setenv("TERM", "xterm")
    with closing(Screen()) as screen:
        before = signal.signal(signal.SIGINT, on_interrupt)  # the command inherits whether it is ignored
        try:
            command = Command("warmup", stderr=screen.program)
        finally:
            signal.signal(signal.SIGINT, before)
        with command:
            screen.wait(r"compiling blackbox\.")
            for number in numbers:
                command.process.send_signal(number)
            ended = command.end()
    assert ended.status == 128 + numbers[-1]
    assert screen._drawn.endswith(f"{text}\r\n".encode())
    assert re.findall(rb"\x1b\[\?25([hl])", screen._drawn) == [b"l", b"h"]  # the cursor is hidden, then shown
    assert list((tmp_path / "TMPDIR").iterdir()) == []


def test_files_written_during_the_removal_are_removed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "warmup").mkdir()
    rmdir, late = os.rmdir, ["first", "second"]

    def write_and_remove(path: str, *, dir_fd: int | None = None) -> None:
        if late:
            (tmp_path / "warmup" / late.pop()).touch()
        rmdir(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "rmdir", write_and_remove)
    _remove(tmp_path / "warmup")
    assert (late, list(tmp_path.iterdir())) == ([], [])


def test_a_source_is_imported_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "PARTS", {})
    ended = succeed("warmup", "synthetic:100", "-o", "symbols=3")
    assert "synthetic:100: 100 messages imported" in ended.errors
    assert_one_line(invoke("warmup", "nothing:x"), "source was 'nothing', expected one of")
