"""A thread with an event loop of uvloop, for connections of a client or a server."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import ClassVar

from blackbox.errors import BlackBoxError
from blackbox.native.system.limits import start_thread


class LoopThread(ABC):
    """Runs `_main` in a thread until it ends, fails or is stopped. `start` and `stop` are called by one other thread.

    Attribute: `error`, why it failed.
    """

    Failure: ClassVar[type[BlackBoxError]] = BlackBoxError
    """Kind of errors that are not expected."""

    def __init__(self, name: str, what: str) -> None:
        """`name`: of the thread. `what`: it does, in errors."""
        self.error: BlackBoxError | None = None
        self._name, self._what = name, what
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._lock = threading.Lock()
        self._is_stopping = False

    def start(self) -> None:
        """Start the thread. Raises LimitError."""
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        start_thread(self._thread)

    def stop(self) -> None:
        """Cancel `_main`, and wait for the thread. Does nothing if it never ran."""
        with self._lock:
            self._is_stopping = True
            if self._loop is not None and self._task is not None:
                self._loop.call_soon_threadsafe(self._task.cancel)
        if self._thread is not None and self._thread.ident is not None:
            self._thread.join()

    @abstractmethod
    async def _main(self) -> None:
        """Do the work."""

    @abstractmethod
    def _ended(self) -> None:
        """Wake the other thread. Called at the end by this one, once `error` is set."""

    def _soon(self, action: Callable[[], object]) -> None:
        """Call a function in the loop, unless that has ended. If it fails, so does the thread."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._try, action)

    def _try(self, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - reported by the other thread
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """End the thread with an error; the first one is kept."""
        if self.error is None:
            was = f"{self._what} failed: {error!r}"
            self.error = error if isinstance(error, BlackBoxError) else self.Failure(was)
        if self._task is not None:
            self._task.cancel()

    def _run(self) -> None:
        try:
            import uvloop

            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                with self._lock:
                    self._loop = runner.get_loop()
                try:
                    runner.run(self._begin())
                finally:
                    with self._lock:
                        self._loop = self._task = None
        except asyncio.CancelledError:
            pass
        except Exception as error:  # noqa: BLE001 - reported by the other thread
            self._fail(error)
        self._ended()

    async def _begin(self) -> None:
        with self._lock:
            if self._is_stopping:
                return
            self._task = asyncio.current_task()
        await self._main()
