"""Ctrl-C at any moment, while modules still load as well: one line, status 130, no traceback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import pytest
import zmq

from blackbox.cli.ui.status import Status
from blackbox.feed.endpoint import free_endpoints
from tests.cli.commands import ROOT, Command
from tests.cli.days import recorded_day
from tests.cli.test_hub import FEED
from tests.examples import first_of

INTERRUPTED: Final = "interrupted\n"
AT_IMPORT: Final = """
import os, signal, sys

class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, CtrlC())
import blackbox.cli
blackbox.cli.main()
"""
"""Presses Ctrl-C when a module is about to be imported."""


class Files(NamedTuple):
    """Paths and endpoints for commands. Nothing publishes, no hub runs, Redis does not answer."""

    directory: Path
    feed: Path
    day: Path
    line: str
    hub: str
    redis: str

    def words(self, command: str) -> list[str]:
        """Return the arguments of a command."""
        feed = ["--feed", str(self.feed)]
        durable = ["--name", "desk", "--positions", str(self.directory / "positions")]
        return {
            "demo": ["--count", "1000"],
            "publish": ["synthetic:1000", *feed],
            "subscribe": feed,
            "subscribe --durable": ["--timeout", "600", *durable, *feed],
            "relay": [str(self.feed), str(self.directory / "down.toml")],
            "relay --plain": [str(self.feed), f"ipc://{self.directory}/plain"],
            "bridge": [self.redis, *feed],
            "bridge --in": ["ws://127.0.0.1:0", *feed],
            "stat": ["--timeout", "600", *feed],
            "record": ["--out", str(self.directory / "out"), *feed],
            "import": ["synthetic:1000", "--out", str(self.directory / "out"), *feed],
            "replay": [str(self.day), *feed],
            "control": [f"ipc://{self.directory}/control", "--timeout", "600"],
            "serve": [str(self.directory), *feed],
            "inspect": [str(self.day)],
            "verify": [str(self.day)],
            "dump": [str(self.day)],
            "export": [str(self.day), "--out", str(self.directory / "day.itch")],
            "compact": [str(self.day), "--out", str(self.directory / "packed")],
            "hub": [str(self.directory / "hub.toml")],
            "put": ["A", "x", "--timeout", "600", *feed],
            "client": [f"ipc://{self.directory}/client", *durable, *feed],
            "analyse": [str(self.day), "--out", str(self.directory / "day.html")],
            "doctor": feed,
            "warmup": [],
        }[command]


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Files]:
    (line,), (archive,), (hub,) = free_endpoints("tcp", "orders", 3, 1)
    (tmp_path / "feed.toml").write_text(FEED.format(line=line, archive=archive, hub=hub))
    (tmp_path / "down.toml").write_text(f'name = "orders"\n[[slices]]\nendpoints = ["ipc://{tmp_path}/down"]\n')
    (tmp_path / "hub.toml").write_text('feed = "feed.toml"\ndirectory = "kept"\n')
    (tmp_path / "orders").mkdir()
    day = recorded_day(tmp_path / "day").path
    with socket.create_server(("127.0.0.1", 0)) as silent:
        redis = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        yield Files(tmp_path, tmp_path / "feed.toml", day, line, hub, redis)


def run_at_import(module: str, words: list[str]) -> tuple[int, str, str]:
    """Run a command that gets Ctrl-C when it imports a module; return how it ended, and what it printed."""
    ran = subprocess.run(
        [sys.executable, "-c", AT_IMPORT.format(module=module), *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=120,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT}/feeds"},
    )
    return ran.returncode, ran.stdout, ran.stderr


def test_until_ctrl_c_is_heeded_nothing_is_imported_that_takes_time() -> None:
    script = "import sys, blackbox.cli; assert not {'typer', 'rich', 'numpy', 'msgspec'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)


@pytest.mark.parametrize("module", ["typer", "rich.live", "numba._devicearray"])
def test_ctrl_c_before_a_command_begins_is_one_line_and_status_130(module: str, files: Files) -> None:
    ended = run_at_import(module, ["replay", *files.words("replay")])
    assert ended == (Status.INTERRUPTED, "", INTERRUPTED)


@pytest.mark.parametrize(
    ("command", "module"),
    first_of(
        [
            ("subscribe", "blackbox.subscriber"),
            ("hub", "blackbox.hub.load"),
            ("demo", "blackbox.cli.demo.runs"),
            ("relay", "blackbox.relay.relay"),
            ("record", "blackbox.archive.recorder"),
            ("replay", "blackbox.replay.replay"),
            ("put", "blackbox.hub.client"),
            ("publish", "blackbox.cli.ui.source_publisher"),
            ("subscribe --durable", "blackbox.hub.client"),
            ("relay --plain", "blackbox.relay.plain"),
            ("bridge", "blackbox.bridge.bridge"),
            ("bridge --in", "blackbox.bridge.websocket_inlet"),
            ("stat", "blackbox.monitor.heartbeats"),
            ("import", "blackbox.archive.import_days"),
            ("control", "blackbox.replay.control_socket"),
            ("serve", "blackbox.archive.serve.server"),
            ("inspect", "blackbox.report.rate_picture"),
            ("verify", "blackbox.archive.recording"),
            ("dump", "blackbox.archive.recording"),
            ("export", "blackbox.archive.export.source_file"),
            ("compact", "blackbox.archive.compact"),
            ("client", "blackbox.hub.driven_client"),
            ("analyse", "blackbox.archive.recording"),
            ("doctor", "blackbox.cli.ui.machine"),
            ("warmup", "blackbox.cli.ui.warm"),
        ],
        keep=2,
    ),
)
def test_ctrl_c_while_a_command_imports_is_one_line_and_status_130(command: str, module: str, files: Files) -> None:
    status, out, errors = run_at_import(module, [*command.split(), *files.words(command)])
    assert (status, out) == (Status.INTERRUPTED, ""), errors
    # A line that the command prints just before it starts may come first.
    assert errors.splitlines()[-1:] == ["interrupted"], errors
    lines = [line for line in errors.splitlines() if not line.startswith("warning: compiling")]
    assert len(lines) <= 2, errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("command", "line"),
    first_of(
        [
            ("publish", "waiting for 1 subscriber"),
            ("record", "waiting for the publishers"),
            ("hub", "takes puts at"),
            ("relay --plain", "waits for the publishers"),
            ("replay", "waiting for 1 subscriber"),
            ("subscribe", "waiting for the publishers"),
            ("relay", "relays feed"),
            ("bridge", "waits for its publishers"),
            ("bridge --in", "is carried into"),
            ("serve", "serving"),
            ("client", "answers at"),
            ("warmup", "kernel"),
        ],
        keep=4,
    ),
)
def test_ctrl_c_while_a_command_waits_ends_with_one_line_and_status_130(command: str, line: str, files: Files) -> None:
    with Command(*command.split(), *files.words(command)) as running:
        running.read_error(line)
        ended = running.interrupt()
    assert ended.status == Status.INTERRUPTED, ended.errors
    assert ended.errors.endswith(INTERRUPTED)
    assert "Traceback" not in ended.errors


@contextmanager
def bound(kind: int, endpoint: str) -> Iterator[zmq.Socket[bytes]]:
    """Bind a socket that answers nothing."""
    with zmq.Context() as context, context.socket(kind) as socket:
        socket.linger = 0
        socket.bind(endpoint)
        yield socket


@pytest.mark.parametrize(
    ("command", "kind", "endpoint"),
    first_of(
        [
            ("put", zmq.ROUTER, lambda files: files.hub),
            ("stat", zmq.XPUB, lambda files: files.line),
            ("subscribe --durable", zmq.ROUTER, lambda files: files.hub),
            ("control", zmq.ROUTER, lambda files: f"ipc://{files.directory}/control"),
        ]
    ),
)
def test_ctrl_c_while_a_command_waits_for_an_answer_is_one_line_and_status_130(
    command: str, kind: int, endpoint: Callable[[Files], str], files: Files
) -> None:
    with bound(kind, endpoint(files)) as silent, Command(*command.split(), *files.words(command)) as running:
        assert silent.poll(120_000)
        ended = running.interrupt()
    assert (ended.status, ended.out, ended.errors) == (Status.INTERRUPTED, "", INTERRUPTED)
