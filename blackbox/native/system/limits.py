"""Limits of the system, checked before they are reached.

libzmq ends the process if it lacks a file descriptor or a thread midway, and LLVM if it lacks memory. Loading code
without them fails with an error that names something else. So code that is about to open much calls `check_limits`
first.
"""

from __future__ import annotations

import mmap
import os
import resource
import sys
import threading
from contextlib import suppress
from typing import NamedTuple

from blackbox.errors import ConfigError, LimitError

SPARE_DESCRIPTORS = 8
"""Free descriptors beyond those that stay open, for files opened briefly: kernels, modules, feed files."""

SPARE_THREADS = 2
"""Threads that have ended but that the system still counts."""


MEMORY = "RLIMIT_AS, ulimit -v"
_THREADS = f"RLIMIT_NPROC, ulimit -u; pids of its cgroup; memory: {MEMORY}"


class Needs(NamedTuple):
    """Resources that a component uses at once, at most."""

    descriptors: int = 0
    threads: int = 0
    memory: int = 0
    """Address space in bytes."""


LOAD_NEEDS = Needs(memory=384 << 20)
"""Memory for loading numba and compiled code."""


def require_linux(what: str) -> None:
    """Raise ConfigError, naming `what`, on another system than Linux."""
    if sys.platform != "linux":
        raise ConfigError(f"{what} need Linux, and this system is {sys.platform}")


def check_limits(what: str, *needs: Needs) -> None:
    """Raise LimitError, naming `what` and the limit, unless all `needs` can be met now."""
    threads = sum(each.threads for each in needs)
    threads += SPARE_THREADS * (threads > 0)
    _check_memory(what, sum(each.memory for each in needs))
    needed = sum(each.descriptors for each in needs) + SPARE_DESCRIPTORS
    free = _free_descriptors(needed)
    if free < needed:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        raise LimitError(
            f"{what}: free file descriptors were {free}, expected {needed}: "
            f"the process may open {limit}, raise that (RLIMIT_NOFILE, ulimit -n)"
        )
    started = _free_threads(threads)
    if started < threads:
        raise LimitError(
            f"{what}: {started} threads could be started, expected {threads}: raise the limit ({_THREADS})"
        )


def _check_memory(what: str, needed: int) -> None:
    if needed:
        try:
            mmap.mmap(-1, needed, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ).close()
        except (OSError, MemoryError) as error:
            raise LimitError(
                f"{what}: {needed >> 20} MiB of memory could not be allocated: raise the limit ({MEMORY})"
            ) from error


def open_pipe() -> tuple[int, int]:
    """Return the read and the write end of a pipe. Raises LimitError."""
    try:
        return os.pipe()
    except OSError as error:
        raise LimitError(f"no pipe could be opened: {error.strerror} (RLIMIT_NOFILE, ulimit -n)") from error


def start_thread(thread: threading.Thread) -> None:
    """Start a thread. Raises LimitError."""
    try:
        thread.start()
    except RuntimeError as error:
        raise LimitError(f"thread {thread.name}: {error} ({_THREADS})") from error


def _free_descriptors(most: int) -> int:
    """Return how many descriptors can be opened now, counted up to `most`."""
    opened: list[int] = []
    with suppress(OSError):
        while len(opened) < most:
            opened.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    for fd in opened:
        os.close(fd)
    return len(opened)


def _free_threads(most: int) -> int:
    """Return how many threads can be started now, counted up to `most`."""
    over = threading.Event()
    started: list[threading.Thread] = []
    try:
        while len(started) < most:
            thread = threading.Thread(target=over.wait, name="blackbox-probe", daemon=True)
            thread.start()
            started.append(thread)
    except (RuntimeError, MemoryError):
        pass
    finally:
        over.set()
        for thread in started:
            thread.join()
    return len(started)
