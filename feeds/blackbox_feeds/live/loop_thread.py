"""A thread with an event loop of uvloop for a client of a venue."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress

from blackbox.errors import SourceError
from blackbox_feeds.live.inbox import Inbox


class LoopThread(ABC):
    """Runs `_main` in a thread until it ends or is stopped. `start` and `stop` are called by the publishing thread.

    Attributes: `inbox`, which is woken at the end; `error`, why the connection was given up.
    """

    def __init__(self, name: str, where: str) -> None:
        """`name`: of the thread. `where`: the connection, in errors."""
        self.inbox = Inbox()
        self.error: SourceError | None = None
        self._where = where
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._lock = threading.Lock()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.inbox.when_emptied = self._go_on

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the connection, and wait for the thread."""
        with self._lock:
            self._is_stopping = True
            if self._loop is not None and self._task is not None:
                self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()
        self.inbox.close()

    @abstractmethod
    async def _main(self) -> None:
        """Connect, and put what is received into the inbox."""

    @abstractmethod
    def _go_on(self) -> None:
        """Read on if the inbox was full. Called by the publishing thread."""

    def _soon(self, action: Callable[[], object]) -> None:
        """Call a function in the loop, unless it has ended."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(action)

    def _run(self) -> None:
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            with self._lock:
                self._loop = runner.get_loop()
            try:
                runner.run(self._begin())
            except asyncio.CancelledError:
                pass
            except SourceError as error:
                self.error = error
            except Exception as error:  # noqa: BLE001 - reported by the publishing thread
                self.error = SourceError(f"{self._where} failed: {error!r}")
            finally:
                with self._lock:
                    self._loop = None
        self.inbox.wake()

    async def _begin(self) -> None:
        with self._lock:
            if self._is_stopping:
                return
            self._task = asyncio.current_task()
        await self._main()
