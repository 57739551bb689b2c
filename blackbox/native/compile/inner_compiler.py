"""A numba compiler that stops at LLVM IR, for callers to inline, and emits no machine code.

numba compiles every function to machine code, although a function called only from compiled code is linked into its
callers and optimised there again. Skipping this shortens a first start by a third. Such a function cannot hold Python
objects, print, or raise an error with arguments that are not constants.
"""

from __future__ import annotations

from typing import Any

from numba import _dynfunc
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, _LowerResult
from numba.core.compiler_machinery import register_pass
from numba.core.typed_passes import NativeLowering

__all__ = ["InnerCompiler"]


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
        place = _dynfunc.make_function(lowered.fndesc.lookup_module(), name, "", 0, lowered.env, (state.library,))
        state.targetctx.insert_user_function(place, lowered.fndesc, [state.library])
        state.cr = _LowerResult(lowered.fndesc, lowered.call_helper, cfunc=place, env=lowered.env)
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
