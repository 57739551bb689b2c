"""Ctrl-C at any moment, while modules still load as well: one line, status 130, no traceback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest
import zmq

from blackbox.cli.ui.status import Status
from tests.cli.commands import ROOT, Command
from tests.cli.days import recorded_day
from tests.cli.test_hub import write_files
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


class Case(NamedTuple):
    """A command, a module that it imports, and a line that it prints before it waits."""

    words: str
    module: str
    line: str = ""


DURABLE: Final = "--name desk --positions DIR/positions"
CASES: Final = {
    "publish": Case("synthetic:1000 --feed FEED", "blackbox.cli.ui.source_publisher", "waiting for 1 subscriber"),
    "subscribe": Case("--feed FEED", "blackbox.subscriber.subscriber", "waiting for the publishers"),
    "demo": Case("--count 1000", "blackbox.cli.demo.runs"),
    "subscribe --durable": Case(f"--timeout 600 --feed FEED {DURABLE}", "blackbox.services.hub.client.client"),
    "relay": Case("FEED DIR/down.toml", "blackbox.services.relay.relay", "relays feed"),
    "relay --plain": Case("FEED ipc://DIR/plain", "blackbox.services.relay.plain_clients", "waits for the publishers"),
    "bridge": Case("REDIS --feed FEED", "blackbox.services.bridge.bridge", "waits for its publishers"),
    "bridge --in": Case("ws://127.0.0.1:0 --feed FEED", "blackbox.services.bridge.websocket.inlet", "is carried into"),
    "stat": Case("--timeout 600 --feed FEED", "blackbox.services.monitor.heartbeats"),
    "record": Case("--out DIR/out --feed FEED", "blackbox.archive.record.recorder", "waiting for the publishers"),
    "import": Case("synthetic:1000 --out DIR/out --feed FEED", "blackbox.archive.importing.import_days"),
    "replay": Case("DAY --feed FEED", "blackbox.replay.replay", "waiting for 1 subscriber"),
    "control": Case("ipc://DIR/control --timeout 600", "blackbox.replay.control_socket"),
    "serve": Case("DIR --feed FEED", "blackbox.archive.serve.server", "serving"),
    "inspect": Case("DAY", "blackbox.analysis.report.rate_picture"),
    "verify": Case("DAY", "blackbox.archive.recording"),
    "dump": Case("DAY", "blackbox.archive.recording"),
    "export": Case("DAY --out DIR/day.itch", "blackbox.archive.export.source_file"),
    "compact": Case("DAY --out DIR/packed", "blackbox.archive.maintain.compact"),
    "hub": Case("DIR/hub.toml", "blackbox.services.hub.hub_file", "takes puts at"),
    "put": Case("A x --timeout 600 --feed FEED", "blackbox.services.hub.client.client"),
    "client": Case(
        f"ipc://DIR/client --feed FEED {DURABLE}", "blackbox.services.hub.client.driven_client", "answers at"
    ),
    "analyse": Case("DAY --out DIR/day.html", "blackbox.archive.recording"),
    "doctor": Case("--feed FEED", "blackbox.cli.feed.machine"),
    "warmup": Case("", "blackbox.cli.ui.warm", "kernel"),
}


class Files(NamedTuple):
    """Paths and endpoints for commands. Nothing publishes, no hub runs, Redis does not answer."""

    names: dict[str, str]
    line: str
    hub: str

    def words(self, command: str) -> list[str]:
        """Return a command with its arguments."""
        words = f"{command} {CASES[command].words}"
        for name, value in self.names.items():
            words = words.replace(name, value)
        return words.split()


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Files]:
    line, hub = write_files(tmp_path)
    down = f'name = "orders"\nmax_topics = 4\n[[slices]]\nendpoints = ["ipc://{tmp_path}/down"]\n'
    (tmp_path / "down.toml").write_text(down)
    (tmp_path / "orders").mkdir()
    day = recorded_day(tmp_path / "day").path
    with socket.create_server(("127.0.0.1", 0)) as silent:
        redis = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        names = {"DIR": str(tmp_path), "FEED": str(tmp_path / "feed.toml"), "DAY": str(day), "REDIS": redis}
        yield Files(names, line, hub)


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


@pytest.mark.parametrize("module", first_of(["numba._devicearray", "rich.live", "typer"]))
def test_ctrl_c_before_a_command_begins_is_one_line_and_status_130(module: str, files: Files) -> None:
    assert run_at_import(module, files.words("replay")) == (Status.INTERRUPTED, "", INTERRUPTED)


@pytest.mark.parametrize("command", first_of(CASES))
def test_ctrl_c_while_a_command_imports_is_one_line_and_status_130(command: str, files: Files) -> None:
    status, out, errors = run_at_import(CASES[command].module, files.words(command))
    assert (status, out) == (Status.INTERRUPTED, ""), errors
    # A line that the command prints just before it starts may come first.
    assert errors.splitlines()[-1:] == ["interrupted"], errors
    lines = [line for line in errors.splitlines() if not line.startswith("warning: compiling")]
    assert len(lines) <= 2, errors
    assert "Traceback" not in errors


@pytest.mark.long
@pytest.mark.parametrize("command", [name for name, case in CASES.items() if case.line])
def test_ctrl_c_while_a_command_waits_ends_with_one_line_and_status_130(command: str, files: Files) -> None:
    with Command(*files.words(command)) as running:
        running.read_error(CASES[command].line)
        ended = running.interrupt()
    assert ended.status == Status.INTERRUPTED, ended.errors
    assert ended.errors.endswith(INTERRUPTED)


@pytest.mark.parametrize(
    ("command", "kind"),
    first_of([("put", zmq.ROUTER), ("stat", zmq.XPUB), ("subscribe --durable", zmq.ROUTER), ("control", zmq.ROUTER)]),
)
def test_ctrl_c_while_a_command_waits_for_an_answer_is_one_line_and_status_130(
    command: str, kind: int, files: Files
) -> None:
    endpoint = {"stat": files.line, "control": f"ipc://{files.names['DIR']}/control"}.get(command, files.hub)
    with zmq.Context() as context, context.socket(kind) as silent:
        silent.linger = 0
        silent.bind(endpoint)
        with Command(*files.words(command)) as running:
            assert silent.poll(120_000)
            ended = running.interrupt()
    assert (ended.status, ended.out, ended.errors) == (Status.INTERRUPTED, "", INTERRUPTED)
