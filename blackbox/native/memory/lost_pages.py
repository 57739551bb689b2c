"""Mapped files that lose bytes: lost pages read as zeros, where a read would end the process.

Truncating a file removes its pages from every mapping, and reading them raises SIGBUS; so does a disk error. Compiled
code cannot check before each read. So the signal handler maps a page of zeros there and counts it. Zeros fail every
checksum; readers compare `LostPages.count`.

Faults at other addresses go to the previous handler. On other systems than Linux nothing is installed: there a lost
page ends the process.
"""

from __future__ import annotations

import ctypes
import mmap
import signal
import sys
import threading
from typing import Any, Final

import llvmlite.binding
import numpy
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from blackbox.native.compile.jit import cfunc
from blackbox.native.memory.intrinsics import fetch_add, inner, int64s_at, load_acquire
from blackbox.native.system.posix import external

_SYMBOL: Final = "blackbox_lost_pages"
_SA_SIGINFO: Final = 4
_SA_ONSTACK: Final = 0x08000000
_FAULT_ADDRESS: Final = 16
"""Offset of the address in `siginfo_t`. Unit: bytes."""
_PAGE: Final = mmap.PAGESIZE
_READ: Final = mmap.PROT_READ
_ZEROS: Final = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10  # MAP_FIXED
_REGION_WORDS: Final = 3
_FIRST_ROOM: Final = 1_024

_BEFORE: Final = 1
_PASSED_ON: Final = 3
_LOST: Final = 4
_KNOWN_WORDS: Final = 5

_map_zeros = external("mmap", types.int64, types.int64, types.int64, *[types.int32] * 3, types.int64)
_set_action = external("sigaction", types.int32, types.int32, types.int64, types.int64)
_raise = external("raise", types.int32, types.int32)


class _Action(ctypes.Structure):
    """A `struct sigaction`."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_uint64 * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


@intrinsic
def _known(typingctx: Any) -> Any:
    """Return the address of `_Table`'s int64[5]."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(64)
        place = builder.module.globals.get(_SYMBOL) or ir.GlobalVariable(builder.module, word, _SYMBOL)
        return builder.ptrtoint(place, word)

    return types.int64(), codegen


@inner
def _region_of(address: int) -> int:
    """Return the address of the table entry of the region that contains `address`; 0: none."""
    table = int64s_at(_known(), 1)[0]
    room = int64s_at(table, 1)[0]
    for number in range(room):
        at = table + 8 + 8 * _REGION_WORDS * number
        region = int64s_at(at, _REGION_WORDS)
        if region[0] <= address < region[1]:
            return int(at)
    return 0


@inner
def lost_pages() -> Any:
    """Return how many pages this process has lost so far; an unchanged count means that what was read is true."""
    return load_acquire(_known() + 8 * _LOST)


def _handle(number: int, info: int, context: int) -> None:
    address = int64s_at(info + _FAULT_ADDRESS, 1)[0]
    region = _region_of(address)
    if region != 0:
        page = address - address % _PAGE
        if _map_zeros(page, _PAGE, _READ, _ZEROS, -1, 0) == page:
            fetch_add(region + 8 * 2, 1)  # other threads may lose pages at the same time
            fetch_add(_known() + 8 * _LOST, 1)
            return
    known = int64s_at(_known(), _KNOWN_WORDS)
    _set_action(number, known[_BEFORE + known[_PASSED_ON]], 0)
    known[_PASSED_ON] = 1
    _raise(number)


class LostPages:
    """A region of mapped memory whose lost pages read as zeros until `forget`."""

    def __init__(self, address: int, size: int) -> None:
        """Protect the region from now on."""
        self._number = _table.add(address, address + size)

    @property
    def count(self) -> int:
        """Pages lost so far."""
        return _table.lost(self._number)

    def forget(self) -> None:
        """Stop protecting the region; call this before unmapping it."""
        _table.remove(self._number)


class _Table:
    """The regions of this process: int64 `room`, then start, stop and lost pages of each; 0, 0: free.

    The handler reads int64[5]: the addresses of the table, of the previous action and of the default action; 1 once a
    fault was passed on, so that a repeated fault ends the process; and the lost pages in all.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._handler: Any = None
        self._actions = [_Action()]  # kept like the former tables: a handler may be reading one
        self._tables: list[Any] = []
        self._free: list[int] = []
        self._gone: list[int] = []
        """Regions forgotten while the lock was held."""
        self._at = numpy.array([0, 0, ctypes.addressof(self._actions[0]), 0, 0], numpy.int64)

    @property
    def address(self) -> int:
        """Address of the five integers that the handler reads."""
        return self._at.ctypes.data

    def add(self, start: int, stop: int) -> int:
        """Add a region, install the handler, and return the region's number."""
        with self._guard:
            if not self._free:
                self._grow()
            number = self._free.pop()
            self._region(number)[:] = start, stop, 0
            self._install()
        self._clear_gone()
        return number

    def lost(self, number: int) -> int:
        return int(self._region(number)[2])

    def remove(self, number: int) -> None:
        self._gone.append(number)
        self._clear_gone()

    def _clear_gone(self) -> None:
        # Must not wait: the garbage collector may call this in the thread that holds the lock, which clears them
        # itself.
        while self._gone and self._guard.acquire(blocking=False):
            try:
                while self._gone:
                    number = self._gone.pop()
                    self._region(number)[:2] = 0
                    self._free.append(number)
            finally:
                self._guard.release()

    def _region(self, number: int) -> Any:
        start = 1 + _REGION_WORDS * number
        return self._tables[-1][start : start + _REGION_WORDS]

    def _grow(self) -> None:
        known = self._tables[-1] if self._tables else numpy.zeros(1, numpy.int64)
        room = max(_FIRST_ROOM, 2 * int(known[0]))
        table = numpy.zeros(1 + _REGION_WORDS * room, numpy.int64)
        table[: len(known)] = known
        table[0] = room
        self._tables.append(table)
        self._at[0] = table.ctypes.data
        self._free += range(room - 1, int(known[0]) - 1, -1)

    def _install(self) -> None:
        """Install the handler unless it is installed.

        A handler installed by others gets the faults outside our regions.
        """
        if sys.platform != "linux":  # other systems have other structures
            return
        if self._handler is None:
            self._handler = cfunc(types.void(types.int32, types.int64, types.int64), nogil=True, cache=True)(_handle)
        now, ours = _Action(), _Action(self._handler.address, flags=_SA_SIGINFO | _SA_ONSTACK)
        _sigaction(signal.SIGBUS, None, ctypes.byref(now))
        if now.handler != ours.handler:
            self._actions.append(now)
            self._at[_BEFORE], self._at[_PASSED_ON] = ctypes.addressof(now), 0
            _sigaction(signal.SIGBUS, ctypes.byref(ours), None)


_sigaction = ctypes.CDLL(None, use_errno=True).sigaction
_table: Final = _Table()
llvmlite.binding.add_symbol(_SYMBOL, _table.address)  # once: compiled code resolves the name when it is loaded
