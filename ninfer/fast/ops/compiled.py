"""How kernels become machine code: ``entry`` for what Python calls, ``part`` for what kernels call.

Numba optimises and encodes every function by itself and again inside each of its callers. A part has no use
of its own, so it only passes type inference and waits, unoptimised, to be linked into an entry, which LLVM
then sees whole and once (measured 2026-11-30: 19 s of compiling became 9). Only entries are kept in the
cache.
"""

from __future__ import annotations

from typing import Any

from numba import njit
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler


class _NoEnvironments:
    """Stands for a part's code generator where Numba stores a Python environment: parts need none."""

    def set_env(self, name: str, environment: object) -> None:
        """Nothing: no kernel touches Python objects."""


class _PartLibrary(JITCodeLibrary):  # type: ignore[misc]
    """A module that is linked into others and never becomes machine code by itself."""

    @property
    def codegen(self) -> Any:
        return _NoEnvironments()

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """No address: calling a part from Python is an error."""
        return 0


class _PartCompiler(Compiler):  # type: ignore[misc]
    """Numba's compiler with a ``_PartLibrary`` to write into."""

    def __init__(self, typing_context: Any, target_context: Any, library: Any, *rest: Any) -> None:
        library = _PartLibrary(target_context.codegen(), "part")
        super().__init__(typing_context, target_context, library, *rest)


part = njit(
    nogil=True,
    error_model="numpy",
    no_rewrites=True,
    no_cpython_wrapper=True,
    no_cfunc_wrapper=True,
    pipeline_class=_PartCompiler,
)
entry = njit(nogil=True, cache=True, error_model="numpy")
