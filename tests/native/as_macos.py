"""Make this process look like macOS to blackbox: import this module before blackbox.

Names that macOS lacks are removed from Python's modules, and C functions that it lacks are not found. `sys.platform` is
"darwin" for modules that are imported later, so that other libraries still work on this system. This cannot show that
blackbox works on macOS, only that it does not need what is known to be missing there.
"""

from __future__ import annotations

import asyncio  # noqa: F401  # with the other libraries, before the names are gone
import ctypes
import fcntl
import mmap
import multiprocessing  # noqa: F401
import os
import select
import signal
import socket
import subprocess  # noqa: F401
import sys
import sysconfig
import tempfile  # noqa: F401
import time
import urllib.request  # noqa: F401
from types import ModuleType
from typing import Any, Final

from numba import types

MISSING: Final = {
    os: "eventfd EFD_ memfd_create MFD_ pidfd_open sched_ SCHED_ posix_fadvise POSIX_FADV posix_fallocate fdatasync "
    "splice copy_file_range getrandom preadv pwritev setns unshare O_TMPFILE O_DIRECT O_PATH O_NOATIME O_LARGEFILE",
    socket: "SOCK_CLOEXEC SOCK_NONBLOCK MSG_CMSG_CLOEXEC SO_PEERCRED SO_DOMAIN SO_PROTOCOL SO_MARK AF_NETLINK "
    "AF_PACKET TCP_INFO TCP_USER_TIMEOUT TCP_QUICKACK TCP_DEFER_ACCEPT",
    select: "epoll EPOLL",
    mmap: "MADV_HUGEPAGE MADV_NOHUGEPAGE MADV_DONTFORK MADV_POPULATE MAP_POPULATE MAP_DENYWRITE",
    fcntl: "F_ADD_SEALS F_GET_SEALS F_SEAL_ F_SETPIPE_SZ F_GETPIPE_SZ F_OFD_",
    signal: "sigtimedwait sigwaitinfo SIGRT",
    time: "CLOCK_BOOTTIME",
}
"""Beginnings of names of Python's modules that exist on Linux only, as Python's type stubs have them."""
MISSING_IN_C: Final = {
    *("adjtimex", "epoll_create1", "eventfd", "fallocate", "mallopt", "memfd_create", "prctl", "recvmmsg"),
    *("renameat2", "sched_setaffinity", "sendmmsg", "splice", "sync_file_range", "syscall"),
}
"""C functions that macOS lacks; the numbers of its `syscall` are others."""


class _Library(ctypes.CDLL):
    """A C library without the functions that macOS lacks."""

    def __getattr__(self, name: str) -> Any:
        if name in MISSING_IN_C:
            raise AttributeError(f"macOS has no function {name}")
        return super().__getattr__(name)


def _make_function(function: Any, symbol: str, sig: Any, make: Any = types.ExternalFunction.__init__) -> None:
    """Make a C function for compiled code, if macOS has it."""
    if symbol in MISSING_IN_C:
        raise AttributeError(f"macOS has no function {symbol}")
    make(function, symbol, sig)


class _Sys(ModuleType):
    """Python's `sys` with the platform macOS."""

    platform = "darwin"

    def __getattr__(self, name: str) -> Any:
        return getattr(_own_sys, name)


for _module, _names in MISSING.items():
    for _name in dir(_module):
        if _name.startswith(tuple(_names.split())):
            delattr(_module, _name)
sysconfig.get_config_vars()  # read from files of this system, and kept
_own_sys = sys
ctypes.CDLL = _Library  # type: ignore[misc]
types.ExternalFunction.__init__ = _make_function
sys.modules["sys"] = _Sys("sys")
