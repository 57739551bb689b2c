"""Compile what a thread will run before it says that it is ready, and tell the user when that takes long."""

from __future__ import annotations

import logging
import threading
from typing import Any

from numba import typeof
from numba.core.config import CACHE_DIR

log = logging.getLogger("blackbox")

_PATIENCE_S = 1.0
_told = threading.Event()


def _tell() -> None:
    if not _told.is_set():
        _told.set()
        where = f" in {CACHE_DIR}" if CACHE_DIR else " beside the package"
        log.warning("compiling for this machine: once, up to 20 s, then cached%s", where)


def warm_up(function: Any, *arguments: Any) -> None:
    """Compile `function` for arguments like these, or load it from the cache, without calling it."""
    timer = threading.Timer(_PATIENCE_S, _tell)
    timer.daemon = True
    timer.start()
    try:
        function.compile(tuple(typeof(argument) for argument in arguments))
    finally:
        timer.cancel()
