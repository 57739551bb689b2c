"""Load cached kernels without loading the compiler, so that a process with a warm cache starts sooner.

numba loads its whole compiler before it looks into a cache, and parses the IR that other functions may inline. Here
both wait until something is compiled.
"""

from __future__ import annotations

import logging
import threading
from pickle import UnpicklingError
from typing import Any

import llvmlite.binding as llvm
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.codegen import JITCodeLibrary
from numba.core.runtime import rtsys

from blackbox.native.compile.kernel_cache import cache_root

__all__ = ["KernelCache"]

log = logging.getLogger("blackbox")

_warned = threading.Event()


class _LateLibrary(JITCodeLibrary):  # type: ignore[misc]  # numba has no types
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
        return {each.name for each in defined if not each.is_declaration}, super().reduce(compiled)

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

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """Return the compiled kernel, or None if it is not cached or not readable."""
        rtsys.initialize(target_context)  # the only initialisation that a compiled kernel needs
        try:
            return self._load_overload(signature, target_context)
        except (OSError, EOFError, UnpicklingError):
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
