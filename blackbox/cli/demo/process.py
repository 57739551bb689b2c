"""The demo's end of its publishing process: starts it, tells it what to do, hears of it, ends it."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Final, Self, TypeVar

from blackbox.cli.demo.publisher import Failed, Order, Play, Progress, Publish, Published, Ready, run_publisher
from blackbox.cli.demo.session import Prepared
from blackbox.errors import PublisherError

_GOODBYE_S: Final = 10.0

Reply = TypeVar("Reply", Prepared, Ready, Published)


class PublishingProcess:
    """Owns the process and the pipe to it. `with` starts and ends it.

    A task is `begin`, which returns when a publisher is open; `go`; `published`.
    """

    def __init__(self, order: Order) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, self._far_end = context.Pipe()
        self._process = context.Process(target=run_publisher, args=(order, self._far_end), daemon=True)

    def __enter__(self) -> Self:
        with _interrupts_held():
            self._process.start()
        self._far_end.close()  # so that the process's end is the end of the pipe
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._process.terminate()
        self._pipe.close()
        self._process.join(_GOODBYE_S)

    def prepared(self, tell: Callable[[int], object]) -> Prepared:
        """Wait for the session; `tell` gets the number of messages so far. Raises PublisherError if it failed."""
        return self._await(Prepared, tell)

    def begin(self, task: Publish | Play) -> None:
        """Give it a task, and wait until its publisher is open. Raises PublisherError if it failed."""
        self._send(task)
        self._await(Ready)

    def go(self) -> None:
        """Let it publish."""
        self._send("go")

    def published(self) -> Published:
        """Wait until the task is done. Raises PublisherError if it failed."""
        return self._await(Published)

    def check(self) -> None:
        """Raises PublisherError when the process has ended without a word."""
        if not self._process.is_alive() and not self._pipe.poll():
            raise PublisherError(f"the publishing process ended with status {self._process.exitcode}")

    def _send(self, word: object) -> None:
        with suppress(BrokenPipeError):  # why it has ended is the next thing to be read
            self._pipe.send(word)

    def _await(self, kind: type[Reply], tell: Callable[[int], object] = lambda _messages: None) -> Reply:
        while True:
            try:
                reply = self._pipe.recv()
            except (EOFError, ConnectionResetError):
                self._process.join(_GOODBYE_S)
                raise PublisherError(f"the publishing process ended with status {self._process.exitcode}") from None
            if isinstance(reply, kind):
                return reply
            if isinstance(reply, Failed):
                raise PublisherError(reply.text)
            if isinstance(reply, Progress):
                tell(reply.messages)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back; a process that is started meanwhile never gets one: it reaches both, and this one decides."""
    came: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
    if came:
        raise KeyboardInterrupt
