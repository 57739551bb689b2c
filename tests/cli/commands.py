"""Run commands, as processes or in this one, and read their output."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from typer import testing
from typer.main import get_command

from blackbox import Feed
from blackbox.cli.program import app
from blackbox.cli.ui.status import Status
from blackbox.feed.routing.key_rule import setting_of
from blackbox.testing import wait_until

PROGRAM: Final = get_command(app)
"""The program, built once: that takes a tenth of a second, and a runner builds it for each command."""
testing._get_command = lambda _: PROGRAM  # type: ignore[assignment, attr-defined]
ROOT = Path(__file__).resolve().parents[2]
_COMPILES = "compiling functions at their first use"
"""Text in a line that a command writes only if nothing has compiled them before."""


class Ended(NamedTuple):
    """The result of a command."""

    status: int
    out: str
    errors: str

    def text(self, name: str) -> str:
        """Return a value from a table of names and values."""
        found = re.search(rf"│ {name} +│ +(.+?) +│", self.out)
        assert found is not None, f"no {name!r} in\n{self.out}{self.errors}"
        return found[1]

    def value(self, name: str) -> int:
        """Return a number from a table of names and values."""
        return int(self.text(name).replace(",", ""))


class Command:
    """A `blackbox` process with environment variables; killed when the `with` block is left."""

    def __init__(
        self,
        *words: object,
        stdout: int = subprocess.PIPE,
        stderr: int = subprocess.PIPE,
        stdin: int | None = None,
        **variables: str,
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "blackbox.cli", *map(str, words)],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            text=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT}/feeds"} | variables,
        )

    def read_error(self, text: str) -> None:
        """Wait until a line on stderr contains `text`."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if text in line:
                return
        raise AssertionError(f"the command ended without saying {text!r}")

    def end(self, timeout: float = 200.0) -> Ended:
        """Wait for its end, without a traceback."""
        out, errors = self.process.communicate(timeout=timeout)
        assert "Traceback" not in (errors or ""), errors
        lines = [line for line in (errors or "").splitlines(keepends=True) if _COMPILES not in line]
        return Ended(self.process.returncode, out or "", "".join(lines))

    def interrupt(self, number: signal.Signals = signal.SIGINT) -> Ended:
        """Send a signal, and wait for its end."""
        self.process.send_signal(number)
        return self.end()

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


class Screen:
    """A terminal for a command. A thread reads the output, so that the command never waits for its reader."""

    def __init__(self) -> None:
        self._person, self.program = pty.openpty()
        self._drawn = b""
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        with suppress(OSError):  # all programs have closed it
            while data := os.read(self._person, 65_536):
                self._drawn += data

    def type(self, keys: bytes) -> None:
        os.write(self._person, keys)

    def wait(self, pattern: str) -> None:
        """Wait until the drawn text, without colours, matches a pattern."""

        def is_drawn() -> bool:
            text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self._drawn.decode(errors="replace"))
            return re.search(pattern, text, re.DOTALL) is not None

        wait_until(is_drawn, what=f"{pattern} on the screen")

    def close(self) -> None:
        os.close(self.program)
        self._thread.join()
        os.close(self._person)


class Place(NamedTuple):
    """A feed on free ports, and its file."""

    feed: Feed
    path: Path


def write_feed(feed: Feed, path: Path) -> Path:
    """Return the feed as TOML."""
    lines = [f'name = "{feed.name}"', f'schema = "{feed.schema}"']
    lines += [f"heartbeat_ns = {feed.heartbeat_ns}", f"max_lag_ns = {feed.max_lag_ns}"]
    lines += [f"{name} = {value}" for name, value in setting_of(feed.key_rule).items()]
    lines += [f"archives = {list(feed.archives)}"] if feed.archives else []
    lines += [f'hub = "{feed.hub}"'] if feed.hub else []
    for feed_slice in feed.slices:
        lines += ["[[slices]]", f"endpoints = {list(feed_slice.endpoints)}", f"share = {list(feed_slice.share or ())}"]
    path.write_text("\n".join(lines))
    return path


def invoke(*words: object, stdin: str | None = None) -> Ended:
    """Run a command in this process and thread: faster than a process, and sufficient without signals and terminals."""
    result = testing.CliRunner().invoke(app, list(map(str, words)), input=stdin, env={"COLUMNS": "200"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ended(result.exit_code, result.stdout, result.stderr)


def succeed(*words: object, stdin: str | None = None) -> Ended:
    """Run a command in this process that ends with status 0."""
    ended = invoke(*words, stdin=stdin)
    assert ended.status == 0, ended.errors
    return ended


@contextmanager
def beside(task: Callable[[], object]) -> Iterator[None]:
    """Run a task in a thread while the block runs. Raise what it raised."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(task)
        yield
        running.result()


def assert_one_line(ended: Ended, pattern: str, status: int = Status.ERROR) -> None:
    """Assert that a command ended with a status and exactly one error line, which matches the pattern."""
    errors = [line for line in ended.errors.splitlines() if line.startswith("error: ")]
    assert (ended.status, len(errors)) == (status, 1), ended.errors
    assert re.search(pattern, errors[0]), errors[0]
