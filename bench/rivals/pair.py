"""A contender as two processes, a publisher and a subscriber, and its rounds."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, Final, Self

from bench.contest import Figure, Lost, Spent
from bench.cost import cpu_seconds, wire_bytes

if TYPE_CHECKING:
    from bench.rivals.servers import Server

_START_S: Final = 120.0
"""For imports, and for what is compiled at first use."""
_ROUND_S: Final = 60.0


class Missing(Exception):  # noqa: N818  # a fact about this machine, not an error of the benchmark
    """A rival is not installed, or did not start; the text says how to get it."""


def need(*packages: str) -> None:
    """Raise Missing unless these can be imported, named as pip names them (`redis`, `eclipse-zenoh:zenoh`)."""
    for package in packages:
        name, _, module = package.partition(":")
        if find_spec(module or name) is None:
            raise Missing(f"{name} is not installed (extra `bench`: pip install {name})")


class Side:
    """One of the processes: told by lines, answers by lines, ended by its id if it does not end by itself."""

    def __init__(self, module: str, side: str, arguments: dict[str, Any]) -> None:
        self._errors = TemporaryFile()  # noqa: SIM115  # open as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.rivals.orders", module, side, json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=Path(__file__).parents[2],
        )
        self._waiting = selectors.DefaultSelector()
        self._waiting.register(self._process.stdout, selectors.EVENT_READ)  # type: ignore[arg-type]  # it is a pipe
        self._rest = b""

    def tell(self, messages: int) -> None:
        """Give an order."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"messages": messages}).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Lost("a process of this contender has ended") from None

    def answer(self, patience_s: float = _ROUND_S) -> dict[str, Any]:
        """Its next line.

        Raises:
            Lost: it has ended, or did not answer in time; then it is ended.
        """
        assert self._process.stdout is not None
        deadline = time.monotonic() + patience_s
        while b"\n" not in self._rest:
            if not self._waiting.select(max(0.0, deadline - time.monotonic())):
                self._process.kill()
                raise Lost(f"no answer within {patience_s:.0f} s")
            part = os.read(self._process.stdout.fileno(), 1 << 16)
            if not part:
                raise Lost(f"a process of this contender ended: {self._last_words()}")
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self, patience_s: float = 10.0) -> None:
        """Let it end, or end it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._waiting.close()
        self._process.stdout.close()
        self._errors.close()

    def _last_words(self) -> str:
        self._process.kill()
        self._process.wait()
        self._errors.seek(0)
        words = self._errors.read().decode(errors="replace").strip().splitlines()
        return words[-1] if words else "in silence"


class Pair:
    """A publisher and a subscriber of one contender, and the server between them if it has one."""

    def __init__(self, module: str, server: Server | None = None, *, form: str = "messages", **arguments: Any) -> None:
        self._server = server
        self._sides: list[Side] = []
        arguments = {"form": form, **arguments}
        try:
            # The publisher binds before the subscriber connects.
            for side in ("publish", "receive"):
                self._sides.append(Side(module, side, arguments))
                self._sides[-1].answer(_START_S)
        except Lost as lost:
            self.close()
            raise Missing(str(lost)) from None
        except BaseException:
            self.close()
            raise

    def round(self, messages: int) -> Figure:
        """M messages/s from the publisher's first call to the return of the last callback.

        The publisher's CPU time includes the server's.
        """
        publisher, subscriber = self._sides
        server = self._server.pid if self._server else None
        subscriber.tell(messages)
        subscriber.answer(_START_S)
        served_s = cpu_seconds(server) if server else 0.0
        before = wire_bytes()
        publisher.tell(messages)
        received = subscriber.answer()
        sent = publisher.answer()
        served_s = cpu_seconds(server) - served_s if server else 0.0
        spent = Spent(sent["cpu_s"] + served_s, received["cpu_s"], wire_bytes() - before, messages)
        if received["lost"]:
            raise Lost(received["lost"])
        return Figure(messages / (received["at"] - sent["at"]) / 1e6, spent)

    def close(self) -> None:
        """End both processes."""
        for side in reversed(self._sides):
            side.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Single:
    """One process of a contender, which does all the work with its server, if it has one."""

    def __init__(self, module: str, side: str, server: Server | None = None, **arguments: Any) -> None:
        self._server = server
        self._side = Side(module, side, arguments)
        try:
            self._side.answer(_START_S)
        except Lost as lost:
            self.close()
            raise Missing(str(lost)) from None
        except BaseException:
            self.close()
            raise

    def round(self, messages: int) -> Figure:
        """M messages/s between what it calls its start and its end. The server's CPU time is the publisher's."""
        served_s = cpu_seconds(self._server.pid) if self._server else 0.0
        before = wire_bytes()
        self._side.tell(messages)
        done = self._side.answer()
        served_s = cpu_seconds(self._server.pid) - served_s if self._server else 0.0
        if done["lost"]:
            raise Lost(done["lost"])
        spent = Spent(served_s if self._server else None, done["cpu_s"], wire_bytes() - before, messages)
        return Figure(messages / (done["at"] - done["started"]) / 1e6, spent)

    def close(self) -> None:
        """End the process."""
        self._side.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
