"""The demo's handle to its publishing process: start it, send it tasks, wait for replies, end it."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Final, Self, TypeVar

from blackbox.cli.demo.publisher import (
    Failed,
    Progress,
    Published,
    PublisherSetup,
    PublishTask,
    Ready,
    ReplayTask,
    run_publisher,
)
from blackbox.cli.demo.session import SessionSummary
from blackbox.errors import PublisherError
from blackbox.native.system.interrupts import interrupts_held
from blackbox.native.system.waits import STEP_S

_GOODBYE_S: Final = 10.0

Reply = TypeVar("Reply", SessionSummary, Ready, Published)


class PublishingProcess:
    """Owns the process and the pipe to it. `with` starts and ends it.

    A task takes three calls: `begin`, which returns when a publisher is open; `go`; `wait_published`.
    """

    def __init__(self, setup: PublisherSetup) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, self._far_end = context.Pipe()
        self._process = context.Process(target=run_publisher, args=(setup, self._far_end), daemon=True)

    def __enter__(self) -> Self:
        with _interrupts_kept():
            self._process.start()
        self._far_end.close()  # so that the end of the process closes the pipe
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._process.terminate()
        self._pipe.close()
        self._process.join(_GOODBYE_S)

    def wait_prepared(self, report: Callable[[int], object]) -> SessionSummary:
        """Wait for the session; `report` gets the number of messages so far. Raises PublisherError if it failed."""
        return self._await(SessionSummary, report)

    def begin(self, task: PublishTask | ReplayTask) -> None:
        """Send a task, and wait until its publisher is open. Raises PublisherError if it failed."""
        self._send(task)
        self._await(Ready)

    def go(self) -> None:
        """Start to publish."""
        self._send("go")

    def wait_published(self) -> Published:
        """Wait until the task is done. Raises PublisherError if it failed."""
        return self._await(Published)

    def check(self) -> None:
        """Raise PublisherError if the process has ended without a reply."""
        if not self._process.is_alive() and not self._pipe.poll():
            raise PublisherError(f"the publishing process ended with status {self._process.exitcode}")

    def _send(self, request: object) -> None:
        with suppress(BrokenPipeError):  # the next read reports why it ended
            self._pipe.send(request)

    def _await(self, kind: type[Reply], report: Callable[[int], object] = lambda _messages: None) -> Reply:
        while True:
            try:
                while not self._pipe.poll(STEP_S):
                    pass
                reply = self._pipe.recv()
            except (EOFError, ConnectionResetError):
                self._process.join(_GOODBYE_S)
                raise PublisherError(f"the publishing process ended with status {self._process.exitcode}") from None
            if isinstance(reply, kind):
                return reply
            if isinstance(reply, Failed):
                raise PublisherError(reply.text)
            if isinstance(reply, Progress):
                report(reply.messages)


@contextmanager
def _interrupts_kept() -> Iterator[None]:
    """Delay Ctrl-C. A process started meanwhile ignores it, so that only this process decides when to end."""
    with interrupts_held():
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
