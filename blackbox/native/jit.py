"""`njit`, cached as `kernel_cache` says, and compiling ahead: a thread is ready once it has said so."""

from __future__ import annotations

import logging
import threading
from typing import Any

from numba import njit, typeof

from blackbox.native.interrupts import interrupts_held
from blackbox.native.kernel_cache import cache_root, use_kernel_cache
from blackbox.native.limits import Needs, check_limits

__all__ = ["WARM_UP_NEEDS", "check_memory", "njit", "warm_up"]

log = logging.getLogger("blackbox")

WARM_UP_NEEDS = Needs(threads=1)
_COMPILE_NEEDS = Needs(memory=128 << 20)
_PATIENCE_S = 1.0
_told = threading.Event()

use_kernel_cache()


def _tell() -> None:
    if not _told.is_set():
        _told.set()
        text = "compiling what runs for the first time: up to 20 s, longer on a busy machine; then cached in %s"
        log.warning(text, cache_root())


def check_memory() -> None:
    """Raise LimitError unless there is memory to compile something, or to load it: LLVM ends a process without it."""
    check_limits("compiling", _COMPILE_NEEDS)


def warm_up(function: Any, *arguments: Any) -> None:
    """Compile `function` for arguments like these, or load it from the cache, without calling it. Raises LimitError."""
    check_memory()
    timer = threading.Timer(_PATIENCE_S, _tell)
    timer.daemon = True
    timer.start()
    try:
        with interrupts_held():  # LLVM's calls back would swallow it
            function.compile(tuple(typeof(argument) for argument in arguments))
    finally:
        timer.cancel()
