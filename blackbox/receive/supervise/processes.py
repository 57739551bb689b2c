"""A slice in a separate process, so that Python callbacks of several slices run in parallel."""

from __future__ import annotations

import logging
import math
import multiprocessing
import os
import signal
import time
from collections.abc import Callable

from blackbox.errors import BlackBoxError, LimitError, SubscriberError
from blackbox.native.system.limits import Needs
from blackbox.receive.slices.slice_thread import SliceThread
from blackbox.receive.slow_subscriber import EXIT_SLOW
from blackbox.receive.state import Stopping

log = logging.getLogger("blackbox")

_TICK_S = 0.05
_RELEASE_S = 1.0

PROCESS_NEEDS = Needs(descriptors=2, threads=1)
"""For a process, in addition to its slice: two pipes that report the end of either side."""


class SliceProcess:
    """Runs a `SliceThread` in a forked process, and represents it in the parent.

    The thread object is created before the fork: its state, counters, topic names and states of compiled callbacks are
    in shared memory. The child ends with its parent.
    """

    def __init__(self, thread: SliceThread, prepare: Callable[[], None]) -> None:
        """`prepare` is called first in the process."""
        self.thread = thread
        self._process = multiprocessing.get_context("fork").Process(
            target=_run_child,
            args=(thread, os.getpid(), prepare),
            name=f"blackbox-slice-{thread.slice_id}",
            daemon=True,
        )

    def start(self) -> None:
        """Fork. Raises LimitError if the system refuses."""
        try:
            self._process.start()
        except OSError as error:
            text = f"slice {self.thread.slice_id}: no process could be started: {error.strerror}"
            raise LimitError(f"{text} (RLIMIT_NPROC, ulimit -u; RLIMIT_NOFILE, ulimit -n)") from error

    @property
    def is_done(self) -> bool:
        """True once the process has ended in any way."""
        return not self._process.is_alive()

    def failure(self) -> BlackBoxError | None:
        """Return the error of the process, or an error if it ended too early."""
        failure = self.thread.failure()
        if failure is None and self.is_done and not self.thread.is_done:
            code = self._process.exitcode or 0
            killed = f"was killed by signal {-code} ({signal.strsignal(-code)})"  # a real-time signal has no name
            how = killed if code < 0 else f"ended with status {code}"
            return SubscriberError(f"slice {self.thread.slice_id}: process {self._process.pid} {how}")
        return failure

    def release(self, timeout: float) -> bool:
        """Wait for the process to end; kill it after `timeout` seconds. Return False if it was killed."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
            return False
        return True


def _run_child(thread: SliceThread, parent: int, prepare: Callable[[], None]) -> None:
    prepare()
    # Ctrl-C, or the end of a terminal, reaches the whole process group: the parent decides how to handle it.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: thread.ask_to_terminate())
    thread.start()
    deadline = math.inf
    while not thread.is_done:
        if os.getppid() != parent and thread.status.state.stopping != Stopping.TERMINATE:
            log.error("slice %d: the parent process has ended", thread.slice_id)
            thread.ask_to_terminate()
        if thread.status.state.stopping == Stopping.TERMINATE:
            deadline = min(deadline, time.monotonic() + thread.settings.options.slow._grace_ns / 1e9)
            if thread.release(_TICK_S):
                break
            if time.monotonic() >= deadline:
                log.error("slice %d: a callback did not return, its process exits", thread.slice_id)
                os._exit(EXIT_SLOW)
        time.sleep(_TICK_S)
    thread.release(_RELEASE_S)
