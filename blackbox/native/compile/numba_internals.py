"""All changes of numba's private parts, which have no public form.

- `InnerCompiler` stops at LLVM IR, for callers to inline, and emits no machine code. numba compiles every function to
  machine code, although a function called only from compiled code is linked into its callers and optimised there again.
  Skipping this shortens a first start by a third. Such a function cannot hold Python objects, print, or raise an error
  with arguments that are not constants.
- `KernelCache` loads cached kernels without the compiler, so that a process with a warm cache starts sooner. numba
  loads its whole compiler before it looks into a cache, and parses the IR that other functions may inline. Here both
  wait until something is compiled.
- `typeof_arrays_without_masks` finds the type of an array without an import that takes 12 ms.
- `skip_extensions`, `use_cache`, `wrap_compile` and `make_cfunc` give this cache, locks and a signal mask to numba's
  own objects.

`NEWEST` is the newest numba that was tested, and pyproject.toml allows no later one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Final

import llvmlite.binding as llvm
import numpy
from numba import _dynfunc
from numba.core import entrypoints
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.ccallback import CFunc
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, _LowerResult
from numba.core.compiler_lock import global_compiler_lock
from numba.core.compiler_machinery import register_pass
from numba.core.registry import cpu_target
from numba.core.runtime import rtsys
from numba.core.sigutils import normalize_signature
from numba.core.typed_passes import NativeLowering
from numba.core.types import Array
from numba.core.typing.typeof import typeof_impl
from numba.np.numpy_support import from_dtype, map_layout

from blackbox.native.compile.kernel_cache import cache_root

__all__ = [
    "NEWEST",
    "InnerCompiler",
    "KernelCache",
    "c_address",
    "global_compiler_lock",
    "load_llvm",
    "make_cfunc",
    "skip_extensions",
    "stands_for",
    "typeof_arrays_without_masks",
    "use_cache",
    "wrap_compile",
]

NEWEST: Final = (0, 68)
"""Newest major and minor version of numba with which this file was tested."""

log = logging.getLogger("blackbox")

_warned = threading.Event()


class _LinkedLibrary(JITCodeLibrary):  # type: ignore[misc]  # numba has no types
    """Code to link into callers: optimised per function only, since callers optimise the whole."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _LowerToLink(NativeLowering):  # type: ignore[misc]
    """Lower a function as numba does, and register it without an address."""

    _name = "lower_to_link"

    def run_pass(self, state: Any) -> bool:
        state.library = _LinkedLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        state.flags.no_compile = True
        super().run_pass(state)
        lowered = state.cr
        name = lowered.fndesc.qualname
        made = _dynfunc.make_function(lowered.fndesc.lookup_module(), name, "", 0, lowered.env, (state.library,))
        state.targetctx.insert_user_function(made, lowered.fndesc, [state.library])
        state.cr = _LowerResult(lowered.fndesc, lowered.call_helper, cfunc=made, env=lowered.env)
        return True


class InnerCompiler(Compiler):  # type: ignore[misc]
    """Compiler pipeline of `inner`."""

    def define_pipelines(self) -> list[Any]:
        """Return numba's pipeline with the lowering replaced."""
        (pipeline,) = super().define_pipelines()
        pipeline.passes = [
            (_LowerToLink, why) if step is NativeLowering else (step, why) for step, why in pipeline.passes
        ]
        assert any(step is _LowerToLink for step, _ in pipeline.passes)
        pipeline.finalize()
        return [pipeline]


class _LateLibrary(JITCodeLibrary):  # type: ignore[misc]
    """The machine code of a kernel, and its IR as bytes."""

    _shared_module: Any

    def load(self, machine_code: bytes, code_to_link: bytes) -> None:
        """Make cached code callable."""
        self._code_to_link = code_to_link
        self.enable_object_caching()
        self._set_compiled_object(machine_code)
        self._finalize_final_module()

    def _get_module_for_linking(self) -> Any:
        if self._shared_module is None:
            self._shared_module = llvm.parse_bitcode(self._code_to_link)
        return self._shared_module


class _KernelCacheImpl(CompileResultCacheImpl):  # type: ignore[misc]
    """Stores with a kernel the names that it defines, which numba reads from its IR."""

    def reduce(self, compiled: Any) -> Any:
        """Return what to pickle of a compiled kernel."""
        module = compiled.library._get_module_for_linking()
        defined = (*module.functions, *module.global_variables)
        *kept, environments = super().reduce(compiled)
        used = tuple(each for each in environments if each.consts)  # code reads nothing else of an environment
        return {each.name for each in defined if not each.is_declaration}, (*kept, used)

    def rebuild(self, target_context: Any, kept: Any) -> Any:
        """Return the compiled kernel from unpickled data. The caller holds the compiler's lock."""
        names, (state, *rest) = kept
        name, _, (machine_code, code_to_link) = state
        codegen = target_context.codegen()
        library = _LateLibrary(codegen, name)
        library.load(machine_code, code_to_link)
        codegen._engine._defined_symbols |= names
        codegen.unserialize_library = lambda _: library
        try:
            return super().rebuild(target_context, (state, *rest))
        finally:
            del codegen.unserialize_library


class KernelCache(FunctionCache):  # type: ignore[misc]
    """The cache of one kernel."""

    _impl_class = _KernelCacheImpl

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self.on_miss: Callable[[], None] = lambda: None
        """Called before the kernel is compiled."""

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """Return the compiled kernel, or None if it is not cached or not readable."""
        rtsys.initialize(target_context)  # the only initialisation that a compiled kernel needs
        with suppress(OSError, EOFError, UnpicklingError):
            if (found := self._load_overload(signature, target_context)) is not None:
                return found
        self.on_miss()
        entrypoints.init_all()  # reads the metadata of all packages, which takes 20 ms
        return None

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Store a compiled kernel if the directory is writable; else warn once."""
        try:
            self._save_overload(signature, compiled)
        except OSError as error:
            if not _warned.is_set():
                _warned.set()
                log.warning(
                    "compiled kernels are not cached, each start compiles them again: %s cannot be written (%s); "
                    "set XDG_CACHE_HOME to a writable directory",
                    cache_root(),
                    error.strerror or error,
                )


def load_llvm() -> None:
    """Initialise LLVM now; it prints an error if that is interrupted."""
    cpu_target.target_context  # noqa: B018


def typeof_arrays_without_masks() -> None:
    """Find the type of plain arrays without numba's check for masks, which imports `numpy.ma`."""
    numbas: Any = typeof_impl.dispatch(numpy.ndarray)

    @typeof_impl.register(numpy.ndarray)
    def typeof_array(array: Any, context: Any) -> Any:
        if type(array) is not numpy.ndarray or array.dtype.kind not in "biuf":
            return numbas(array, context)
        return Array(from_dtype(array.dtype), array.ndim, map_layout(array), readonly=not array.flags.writeable)


def stands_for(kind: type, dispatcher_of: Callable[[Any], Any]) -> None:
    """Let objects of a kind stand for dispatchers in compiled code."""
    typeof_impl.register(kind)(lambda value, context: typeof_impl(dispatcher_of(value), context))


def skip_extensions(dispatcher: Any) -> None:
    """Load extensions of numba only if a cached function must be compiled, see `KernelCache`."""
    dispatcher._compilation_chain_init_hook = lambda: None


def use_cache(made: Any, function: Any, on_miss: Callable[[], None] = lambda: None) -> Path:
    """Cache the kernels that numba makes of a function; return the lock file of loading and compiling them.

    `on_miss` is called before one is compiled.
    """
    if not isinstance(made._cache, KernelCache):
        made._cache = KernelCache(function)
    made._cache.on_miss = on_miss
    return Path(made._cache.cache_path) / f"{made._cache._impl.filename_base}.lock"


def wrap_compile(dispatcher: Any, around: Callable[[], AbstractContextManager[object]]) -> None:
    """Make a dispatcher compile and load within a context."""
    compile_: Callable[[Any], Any] = dispatcher.compile

    def compile_within(signature: Any) -> Any:
        with around():
            return compile_(signature)

    dispatcher.compile = compile_within


def make_cfunc(function: Any, signature: Any, options: dict[str, Any]) -> Any:
    """Return numba's C callback of a function, not yet compiled."""
    return CFunc(function, normalize_signature(signature), locals={}, options=options)


def c_address(dispatcher: Any, signature: tuple[Any, ...]) -> int:
    """Return the address of a compiled function as a C function."""
    compiled = dispatcher.overloads[signature]
    return int(compiled.library.get_pointer_to_function(compiled.fndesc.llvm_cfunc_wrapper_name))
