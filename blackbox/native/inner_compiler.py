"""A numba compiler that leaves a function as LLVM's code, for its callers to inline: it makes no machine code of it.

numba compiles each function to the end, though what only compiled code calls is linked into its callers and optimised
there once more. Without that a first start takes about two thirds of the time. Such a function cannot hold Python
objects: it may raise an error whose arguments are constants, no other, and cannot print.
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
    """Code to link into others: optimised function by function, as its callers optimise the whole."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _LowerToLink(NativeLowering):  # type: ignore[misc]
    """Lower a function as numba does, and tell it to others without an address."""

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
    """What `inner` compiles with."""

    def define_pipelines(self) -> list[Any]:
        """Return numba's own pipeline, with another lowering."""
        (pipeline,) = super().define_pipelines()
        pipeline.passes = [
            (_LowerToLink, why) if step is NativeLowering else (step, why) for step, why in pipeline.passes
        ]
        assert any(step is _LowerToLink for step, _ in pipeline.passes)
        pipeline.finalize()
        return [pipeline]
