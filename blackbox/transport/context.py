"""ZeroMQ contexts: one per slice, with the slice's own I/O thread."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache

import zmq

from blackbox.errors import ConfigError
from blackbox.feed.slice import Slice
from blackbox.native.system.limits import Needs, check_limits

MAX_SUBSCRIPTIONS = 1_000_000
"""Upstream subscriptions of one subscriber in flight; libzmq drops those above the high-water mark."""

CONTEXT_NEEDS = Needs(descriptors=5, threads=2)
"""For a context: mailboxes of itself, its reaper and its I/O thread, an epoll for each of the latter; both threads."""

_PR_SET_TIMERSLACK = 29
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_MMAP_THRESHOLD_BYTES = 1 << 20  # above usual bodies; below tables, whose mapped pages cost nothing until touched
_TRIM_THRESHOLD_BYTES = 16 << 20


@cache
def _keep_freed_memory() -> None:
    """Make glibc keep up to 16 MiB of freed memory per arena, since libzmq allocates and frees every body.

    By default the pages of nearly every body are returned to the kernel and faulted in again for the next one. Settings
    in the environment (`MALLOC_...`) take precedence.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and not any(name.startswith("MALLOC_") for name in os.environ):
        mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD_BYTES)


def new_context(what: str, *needs: Needs) -> zmq.Context[zmq.Socket[bytes]]:
    """Return a new context. Raises LimitError unless it and its sockets fit; libzmq would end the process.

    Args:
        what: the component that needs it, named in the error.
        needs: what its sockets will open: one descriptor per socket, per endpoint and per connection.
    """
    check_limits(what, CONTEXT_NEEDS, *needs)
    return zmq.Context(io_threads=1)


def open_context(part: Slice, what: str, *needs: Needs) -> zmq.Context[zmq.Socket[bytes]]:
    """Return a slice's context. Slices on inproc share one per process, since inproc works only within a context.

    Raises the same errors as `new_context`.
    """
    _keep_freed_memory()
    if part.lines[0].startswith("inproc://"):
        check_limits(what, CONTEXT_NEEDS, *needs)
        return zmq.Context.instance()
    context = new_context(what, *needs)
    for cpu in part.io_cpus:
        context.set(zmq.THREAD_AFFINITY_CPU_ADD, cpu)
    return context


def close_context(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    """Terminate a context from `open_context`, after at most its sockets' LINGER. The shared one is kept."""
    if context is not zmq.Context.instance():
        context.term()


def wake_on_time() -> None:
    """Make sleeps of this thread, and of those that it starts, end on time; Linux adds up to 50 µs by default."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


def allow_ipv6(socket: zmq.Socket[bytes], endpoint: str) -> None:
    """Allow a socket to use the IPv6 address in an endpoint; libzmq rejects it otherwise."""
    if "[" in endpoint:
        socket.ipv6 = True


def pin_thread(cpus: tuple[int, ...]) -> None:
    """Bind the calling thread to CPUs, if the system can; empty: no binding. Raises ConfigError naming the CPUs."""
    if cpus and sys.platform == "linux":
        try:
            os.sched_setaffinity(0, cpus)
        except OSError as error:
            there = sorted(os.sched_getaffinity(0))
            raise ConfigError(
                f"cpus were {list(cpus)}, expected some of {there}, which this process may use"
            ) from error
