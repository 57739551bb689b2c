"""Keys that control a replay, on real pseudo-terminals, whose settings must be restored."""

from __future__ import annotations

import os
import signal
import termios
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from blackbox.cli.live.keyboard import Keys
from blackbox.replay.clock import ManualClock
from blackbox.replay.controls import Action, Controls
from blackbox.testing import wait_until
from tests.examples import first_of
from tests.support import Script

S = 1_000_000_000
START = 1_577_716_200 * S
HOUR = 3_600 * S


class Terminal:
    """A pseudo-terminal: one end for the user, one for the program."""

    def __init__(self) -> None:
        self.person, self.program = os.openpty()

    def type(self, keys: bytes) -> None:
        os.write(self.person, keys)

    def attributes(self) -> list[Any]:
        return termios.tcgetattr(self.person)

    @property
    def gives_single_keys(self) -> bool:
        return not self.attributes()[3] & (termios.ICANON | termios.ECHO)

    def close(self) -> None:
        for fd in (self.person, self.program):
            with suppress(OSError):
                os.close(fd)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal()
    yield terminal
    terminal.close()


@pytest.fixture
def controls() -> Controls:
    controls = Watched(8.0, clock=ManualClock())
    controls.begin(START, START + HOUR)
    return controls


class Watched(Controls):
    """Records the state in which it was stopped."""

    before_stop: tuple[str, float | None, int]

    def stop(self) -> None:
        self.before_stop = state_of(self)
        super().stop()


def state_of(controls: Controls) -> tuple[str, float | None, int]:
    status = controls.status()
    return status.state, status.speed, (status.position_ns - START) // S


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (b" ", ("paused", 8.0, 0)),
        (b"  ", ("playing", 8.0, 0)),
        (b"+", ("playing", 16.0, 0)),
        (b"--", ("playing", 2.0, 0)),
        (b"m", ("playing", None, 0)),
        (b"m+", ("playing", None, 0)),
        (b"m-", ("playing", 64.0, 0)),
        (b"+" * 40, ("playing", 2.0**20, 0)),
        (b"-" * 40, ("playing", 2.0**-10, 0)),
        (b"s", ("stepping", 8.0, 0)),
        (b"\x1b[C\x1b[C", ("playing", 8.0, 120)),
        (b"\x1bOC", ("playing", 8.0, 60)),
        (b"\x1b[C\x1b[C\x1b[D", ("playing", 8.0, 60)),
        (b"\x1b[D", ("playing", 8.0, 0)),
        (b"\x1b+", ("playing", 16.0, 0)),
        (b"x\n\x00\xff\x1b[1;5C\x1b[15~\x1bOP", ("playing", 8.0, 0)),
    ],
)
def test_each_key(keys: bytes, expected: tuple[str, float | None, int], terminal: Terminal, controls: Watched) -> None:
    with Keys(controls, terminal.program) as reader:
        assert reader.is_active
        terminal.type(keys + b"q")
        wait_until(lambda: controls.status().state == "stopping", what="the last key")
    assert controls.before_stop == expected
    assert controls.wait(START).action is Action.STOP


@pytest.mark.parametrize("keys", [b"\x1b[C", b"\x1bOC"])
def test_a_key_may_arrive_byte_by_byte(keys: bytes, controls: Controls) -> None:
    reader = Keys(controls)
    rest = b""
    for number in range(len(keys)):
        rest = reader._press(rest + keys[number : number + 1])
    assert rest == b""
    assert state_of(controls) == ("playing", 8.0, 60)
    for _ in range(100):
        rest = reader._press(rest + b"\x1b[" + b"1" * 50)
        assert len(rest) < 60, "an incomplete sequence is dropped"


def test_the_terminal_is_restored(terminal: Terminal, controls: Controls) -> None:
    before, handler = terminal.attributes(), signal.getsignal(signal.SIGTSTP)
    with pytest.raises(ZeroDivisionError), Keys(controls, terminal.program):
        assert terminal.gives_single_keys
        _ = 1 // 0
    assert terminal.attributes() == before
    assert signal.getsignal(signal.SIGTSTP) is handler


def test_a_closed_terminal_ends_only_the_keys(terminal: Terminal, controls: Controls) -> None:
    with Keys(controls, terminal.program) as reader:
        os.close(terminal.person)
        reader._thread.join(200)
        assert not reader._thread.is_alive()
    assert controls.status().state == "playing"


def test_without_a_terminal_it_does_nothing(controls: Controls) -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb"), os.fdopen(writer, "wb") as pipe:
        with Keys(controls, reader) as keys:
            assert not keys.is_active
            pipe.write(b"q")
        with Keys(controls, -1) as keys:
            assert not keys.is_active
    assert controls.status().state == "playing"


PROGRAM = """
import sys
import typer
from blackbox.cli.live.keyboard import Keys
from blackbox.cli.ui.status import exit_statuses
from blackbox.replay.controls import Action, Controls

controls = Controls(1.0)
controls.begin(0, 10**18)
try:
    with exit_statuses(), Keys(controls):
        print("playing", flush=True)
        assert controls.wait(10**18).action is Action.STOP
except typer.Exit as end:
    sys.exit(end.exit_code)
"""

SHELL = """
# Like a shell: owns the terminal, and gives it to the program in its foreground.
import os, signal, subprocess, sys
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
terminal = os.open(sys.argv[1], os.O_RDWR)  # the first that a session's leader opens controls it

def to_foreground(group):
    os.tcsetpgrp(terminal, group)

def wait():
    _, status = os.waitpid(program.pid, os.WUNTRACED)
    stopped = os.WIFSTOPPED(status)
    if stopped:
        to_foreground(os.getpgrp())
    print("stopped" if stopped else f"ended {os.waitstatus_to_exitcode(status)}", flush=True)

program = subprocess.Popen(
    [sys.executable, "-c", sys.argv[2]], stdin=terminal, stdout=subprocess.PIPE, process_group=0, text=True
)
to_foreground(program.pid)
assert program.stdout.readline() == "playing\\n"
print("playing", flush=True)
for line in sys.stdin:
    match line.split():
        case ["fg"]:
            to_foreground(program.pid)
            os.kill(program.pid, signal.SIGCONT)
        case ["bg"]:
            os.kill(program.pid, signal.SIGCONT)
        case ["foreground"]:
            to_foreground(program.pid)
        case ["kill"]:
            os.kill(program.pid, signal.SIGTERM)
        case ["read"]:
            print(os.read(terminal, 100), flush=True)
            continue
        case ["wait"]:
            wait()
            continue
    print("done", flush=True)
"""


class Shell:
    """A program with keys in the foreground of a new terminal."""

    def __init__(self, terminal: Terminal) -> None:
        code = f"import sys; sys.argv[1:] = [{os.ttyname(terminal.program)!r}, {PROGRAM!r}]\n" + SHELL
        self._script = Script("import os; os.setsid()\n" + code)

    def __enter__(self) -> Shell:
        self._script.__enter__()
        self._script.expect("playing")
        return self

    def __exit__(self, *error: object) -> None:
        self._script.__exit__(*error)

    def tell(self, command: str, answer: str = "done") -> None:
        self._script.tell(command)
        self._script.expect(answer)


@pytest.mark.parametrize(("end", "status"), first_of([("ctrl-c", 130), ("kill", 143), ("q", 0)], keep=2))
def test_job_control_and_signals_restore_the_terminal(terminal: Terminal, end: str, status: int) -> None:
    before = terminal.attributes()
    with Shell(terminal) as shell:
        assert terminal.gives_single_keys
        if end != "kill":
            terminal.type(b"\x1a")
            shell.tell("wait", "stopped")
            assert terminal.attributes() == before
            shell.tell("fg")
            wait_until(lambda: terminal.gives_single_keys, what="single keys in the foreground again")
            terminal.type(b"\x1a")
            shell.tell("wait", "stopped")
            shell.tell("bg")
            terminal.type(b"q\n")
            shell.tell("read", "b'q\\n'")
            assert terminal.attributes() == before, "changed in the background"
            shell.tell("foreground")
            wait_until(lambda: terminal.gives_single_keys, what="single keys in the foreground again")
        if end == "kill":
            shell.tell("kill")
        else:
            terminal.type(b"\x03" if end == "ctrl-c" else b"q")
        shell.tell("wait", f"ended {status}")
    assert terminal.attributes() == before
