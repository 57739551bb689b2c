"""`njit` with the cache of `kernel_cache`, and compilation ahead of the first call."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property, partial, wraps
from typing import Any

import numba
from numba import typeof

from blackbox.errors import LimitError
from blackbox.native.compile.kernel_cache import cache_root, held_by_one_process, use_kernel_cache
from blackbox.native.compile.numba_internals import (
    InnerCompiler,
    global_compiler_lock,
    load_llvm,
    make_cfunc,
    skip_extensions,
    stands_for,
    typeof_arrays_without_masks,
    use_cache,
    wrap_compile,
)
from blackbox.native.system.interrupts import interrupts_held
from blackbox.native.system.limits import Needs, check_limits, start_thread

__all__ = ["WARM_UP_NEEDS", "InnerFunction", "cfunc", "check_memory", "njit", "warm_up"]

log = logging.getLogger("blackbox")

WARM_UP_NEEDS = Needs(threads=1)
_COMPILE_NEEDS = Needs(memory=128 << 20)
_PATIENCE_S = 1.0
_was_logged = threading.Event()

use_kernel_cache()
with interrupts_held():
    load_llvm()
typeof_arrays_without_masks()


@wraps(numba.njit)
def njit(function: Any = None, *, cache: bool = False, **options: Any) -> Any:
    """Wrap numba's `njit`; if several processes need a cached function at once, one compiles it for all."""
    if function is None or isinstance(function, str):  # a decorator with options, perhaps with the only signature
        return lambda decorated: _made(decorated, function, cache, options)
    return _made(function, None, cache, options)


def _made(function: Any, signature: str | None, is_cached: bool, options: dict[str, Any]) -> Any:
    made = numba.njit(function, **options)
    if is_cached:
        skip_extensions(made)
    wrap_compile(made, partial(_in_turn, made, is_cached))
    if signature is not None:  # numba must know the cache before it compiles
        made.compile(signature)
        made.disable_compile()
    return made


def cfunc(signature: Any, *, cache: bool = False, **options: Any) -> Callable[[Any], Any]:
    """Wrap numba's `cfunc`, and delay Ctrl-C while it compiles."""

    def compiled(function: Any) -> Any:
        made = make_cfunc(function, signature, options)
        if cache:
            use_cache(made, function)
        with interrupts_held():
            made.compile()
        return made

    return compiled


@contextmanager
def _in_turn(made: Any, is_cached: bool) -> Iterator[None]:
    """Compile or load in one thread at a time; a cached function also in one process at a time."""
    # numba's lock comes first: its holder may need the file lock that another thread waits for.
    with global_compiler_lock, ExitStack() as stack:
        if is_cached:
            begin = _logged(stack)
            stack.enter_context(held_by_one_process(use_cache(made, made.py_func, begin), begin))
        # Delay Ctrl-C last: LLVM's callbacks would swallow it during compilation.
        stack.enter_context(interrupts_held())
        yield


def _logged(stack: ExitStack) -> Callable[[], None]:
    """Return a function to call before a compilation. Log, once per process, one that takes longer than a second.

    It has ended when `stack` is closed.
    """

    def begin() -> None:
        timer = threading.Timer(_PATIENCE_S, _log_once)
        timer.daemon = True
        if not _was_logged.is_set():
            with suppress(LimitError):
                start_thread(timer)
                stack.callback(timer.cancel)

    return begin


def _log_once() -> None:
    if not _was_logged.is_set():
        _was_logged.set()
        text = "compiling functions at their first use: up to a minute, longer on a busy machine; then cached in %s"
        log.warning(text, cache_root())


def check_memory() -> None:
    """Raise LimitError unless there is memory to compile or load code; without it LLVM ends the process."""
    check_limits("compiling", _COMPILE_NEEDS)


def warm_up(function: Any, *arguments: Any) -> None:
    """Compile `function` for arguments like these, or load it, without calling it. Raises LimitError."""
    signature = tuple(typeof(argument) for argument in arguments)
    if signature in function.overloads:
        return
    check_memory()
    function.compile(signature)


class InnerFunction:
    """A function called only from compiled code. numba gets it when a caller is compiled: seldom, if all are cached."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.py_func = function
        self.__name__, self.__doc__, self.__module__ = function.__name__, function.__doc__, function.__module__

    @cached_property
    def dispatcher(self) -> Any:
        """The function, as numba takes it."""
        options = {"nogil": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
        return njit(self.py_func, pipeline_class=InnerCompiler, **options)


stands_for(InnerFunction, lambda function: function.dispatcher)
