"""`njit`, cached as `kernel_cache` says, and compiling ahead: a thread is ready once it has said so."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import wraps
from typing import Any

import numba
from numba import typeof
from numba.core.ccallback import CFunc
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.core.sigutils import normalize_signature

from blackbox.errors import LimitError
from blackbox.native.interrupts import interrupts_held
from blackbox.native.kernel_cache import cache_root, held_by_one_process, lock_of, use_kernel_cache
from blackbox.native.late_code import KernelCache
from blackbox.native.limits import Needs, check_limits, start_thread

__all__ = ["WARM_UP_NEEDS", "cfunc", "check_memory", "njit", "warm_up"]

log = logging.getLogger("blackbox")

WARM_UP_NEEDS = Needs(threads=1)
_COMPILE_NEEDS = Needs(memory=128 << 20)
_PATIENCE_S = 1.0
_was_logged = threading.Event()

use_kernel_cache()
with interrupts_held():
    cpu_target.target_context  # noqa: B018  # sets LLVM up, which prints an error of its own at an interrupt


@wraps(numba.njit)
def njit(function: Any = None, *, cache: bool = False, **options: Any) -> Any:
    """Do as numba's `njit`; of several processes that need a cached function at a time, one compiles it for all."""
    if function is None or isinstance(function, str):  # a decorator with options, and perhaps the only signature
        return lambda decorated: _made(decorated, function, cache, options)
    return _made(function, None, cache, options)


def _made(function: Any, signature: str | None, is_cached: bool, options: dict[str, Any]) -> Any:
    made = _in_turn(numba.njit(function, **options), is_cached)
    if signature is not None:  # not given to numba, which would compile before it knows the cache
        made.compile(signature)
        made.disable_compile()
    return made


def cfunc(signature: Any, *, cache: bool = False, **options: Any) -> Callable[[Any], Any]:
    """Do as numba's `cfunc`, and let Ctrl-C wait."""

    def compiled(function: Any) -> Any:
        made: Any = CFunc(function, normalize_signature(signature), locals={}, options=options)
        if cache:
            made._cache = KernelCache(function)
        with interrupts_held():
            made.compile()
        return made

    return compiled


def _in_turn(function: Any, is_cached: bool) -> Any:
    compile_: Callable[[Any], Any] = function.compile
    if is_cached:
        function._cache = KernelCache(function.py_func)

    def compile_in_turn(signature: Any) -> Any:
        # First numba's own lock: a thread that has it may need the file that another thread waits with.
        others = held_by_one_process(lock_of(function._cache)) if is_cached else nullcontext()
        # Last: while it compiles Ctrl-C waits, as LLVM's calls back would swallow it.
        with _logged() if is_cached else nullcontext(), global_compiler_lock, others, interrupts_held():
            return compile_(signature)

    function.compile = compile_in_turn
    return function


@contextmanager
def _logged() -> Iterator[None]:
    """Log once per process that it compiles, if that takes longer than a second."""
    timer = threading.Timer(_PATIENCE_S, _log_once)
    timer.daemon = True
    if not _was_logged.is_set():
        with suppress(LimitError):
            start_thread(timer)
    try:
        yield
    finally:
        timer.cancel()


def _log_once() -> None:
    if not _was_logged.is_set():
        _was_logged.set()
        text = "compiling what runs for the first time: up to a minute, longer on a busy machine; then cached in %s"
        log.warning(text, cache_root())


def check_memory() -> None:
    """Raise LimitError unless there is memory to compile something, or to load it: LLVM ends a process without it."""
    check_limits("compiling", _COMPILE_NEEDS)


def warm_up(function: Any, *arguments: Any) -> None:
    """Compile `function` for arguments like these, or load it from the cache, without calling it. Raises LimitError."""
    signature = tuple(typeof(argument) for argument in arguments)
    if signature in function.overloads:
        return
    check_memory()
    function.compile(signature)
