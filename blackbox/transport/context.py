"""ZeroMQ contexts: one per slice, with the slice's own I/O thread."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache

import zmq

from blackbox.errors import ConfigError
from blackbox.feed.feed import Slice
from blackbox.native.limits import Needs, check_limits

MAX_SUBSCRIPTIONS = 1_000_000
"""Upstream filters that one subscriber can have in flight; libzmq loses those above the high-water mark."""

CONTEXT_NEEDS = Needs(descriptors=5, threads=2)
"""A context: a mailbox each for itself, its reaper and its I/O thread, an epoll each for the last two; both threads."""

_PR_SET_TIMERSLACK = 29
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_MMAP_THRESHOLD_BYTES = 1 << 20  # above usual bodies, below tables, whose untouched pages cost nothing when mapped
_TRIM_THRESHOLD_BYTES = 16 << 20


@cache
def _keep_freed_memory() -> None:
    """Tell glibc to keep up to 16 MiB of freed memory per arena: libzmq allocates and frees every body.

    By default the pages of nearly every body go back to the kernel, and are faulted in again for the next.
    Settings in the environment (`MALLOC_...`) win.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and not any(name.startswith("MALLOC_") for name in os.environ):
        mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD_BYTES)


def new_context(what: str, *needs: Needs) -> zmq.Context[zmq.Socket[bytes]]:
    """Make a context. Raises LimitError unless it and what its sockets need fit: without room libzmq ends the process.

    Args:
        what: who needs it, for the error.
        needs: what its sockets will open: one descriptor each, one for each endpoint and for each connection.
    """
    check_limits(what, CONTEXT_NEEDS, *needs)
    return zmq.Context(io_threads=1)


def open_context(part: Slice, what: str, *needs: Needs) -> zmq.Context[zmq.Socket[bytes]]:
    """Return a slice's context. Slices on inproc share one per process: else publisher and subscriber could not meet.

    Raises as `new_context`.
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
    """End a context from `open_context`, after at most its sockets' LINGER. The shared one stays."""
    if context is not zmq.Context.instance():
        context.term()


def wake_on_time() -> None:
    """Have Linux end sleeps of this thread, and of those that it starts, on time; by default it adds up to 50 µs."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


def allow_ipv6(socket: zmq.Socket[bytes], endpoint: str) -> None:
    """Let a socket use the IPv6 address that stands in an endpoint; libzmq refuses it otherwise."""
    if "[" in endpoint:
        socket.ipv6 = True


def pin_thread(cpus: tuple[int, ...]) -> None:
    """Bind the calling thread to CPUs, where the system can; none: leave it free. Raises ConfigError naming them."""
    if cpus and hasattr(os, "sched_setaffinity"):
        try:
            os.sched_setaffinity(0, cpus)
        except OSError as error:
            there = sorted(os.sched_getaffinity(0))
            raise ConfigError(
                f"cpus were {list(cpus)}, expected some of {there}, which this process may use"
            ) from error
