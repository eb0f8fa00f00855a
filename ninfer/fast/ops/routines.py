"""Functions that become machine code alone, when they are first called: one format's, one operation's.

Compiling everything that a round may call takes longer than a start should, and one model needs a part of it.
A caller holds a word for each routine that it calls; while that is 0 it asks for the address, and then the
routine is read from the cache or compiled (``prepare`` does so before the first round). What exists is never
compiled again for it. A routine takes integers (``i``) and float32 (``f``) and returns nothing.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import cfunc, types
from numba import config as numba_config
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target

from ninfer.fast.ops.vector import F32, I64, Emitter, kernel

# Makes a function in machine code: its library and its name there.
Build = Callable[[str], tuple[Any, str]]

_ASK = ctypes.CFUNCTYPE(ctypes.c_int64)
_TYPES = {"i": (I64, types.int64), "f": (F32, types.float32)}


class Routine:
    """One such function; kernels and parts call ``caller``. ``name`` is unique."""

    def __init__(self, name: str, arguments: str, build: Build) -> None:
        self.name, self._build = name, build
        self._address, self._library = 0, None
        self._lock = threading.Lock()
        # Compiled callers find this by name, so it lives as long as the process.
        self._answer_callback = _ASK(self._answer)
        self._question = f"ninfer.ask.{name}"
        llvm.add_symbol(self._question, ctypes.cast(self._answer_callback, ctypes.c_void_p).value)
        self._type = ir.FunctionType(ir.VoidType(), [_TYPES[letter][0] for letter in arguments])
        self.caller = kernel(arguments)(self._emit_call)
        ROUTINES[name] = self

    @property
    def is_ready(self) -> bool:
        """Whether it is loaded or compiled in this process."""
        return self._address != 0

    def load(self) -> bool:
        """Read it from the cache; whether it was there."""
        with self._lock:
            if self._address == 0 and self._path.exists():
                state, symbol = pickle.loads(self._path.read_bytes())
                with global_compiler_lock:
                    self._keep(_codegen().unserialize_library(state), symbol)
            return self._address != 0

    def prepare(self) -> int:
        """Its address; read or compiled where that has not happened yet."""
        if not self.load():
            with self._lock, global_compiler_lock:
                if self._address == 0:
                    library, symbol = self._build(self.name)
                    self._keep(library, symbol)
                    self._store((library.serialize_using_object_code(), symbol))
        return self._address

    @property
    def _path(self) -> Path:
        return Path(numba_config.CACHE_DIR) / f"{self.name}.routine"

    def _keep(self, library: Any, symbol: str) -> None:
        # The machine code is given back with its library.
        self._library, self._address = library, library.get_pointer_to_function(symbol)

    def _store(self, state: tuple[Any, str]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_suffix(f".{os.getpid()}")
        partial.write_bytes(pickle.dumps(state))
        os.replace(partial, self._path)

    def _answer(self) -> int:
        try:
            return self.prepare()
        except BaseException:  # the caller is compiled code: it can neither go on nor be told
            traceback.print_exc()
            os.abort()

    def _emit_call(self, e: Emitter, *values: Any) -> None:
        builder, name = e.builder, f"ninfer.word.{self.name}"
        word = builder.module.globals.get(name)
        if word is None:
            word = ir.GlobalVariable(builder.module, I64, name)
            word.linkage, word.initializer, word.align = "internal", e.integer(0), 8
        known = builder.load_atomic(word, "acquire", 8, typ=I64)
        with builder.if_then(builder.icmp_signed("==", known, e.integer(0)), likely=False):
            builder.store_atomic(e.call(self._question, I64), word, "release", 8)
        address = builder.load_atomic(word, "acquire", 8, typ=I64)
        builder.call(builder.inttoptr(address, ir.PointerType(self._type)), list(values))


# Every routine by name, as the modules that declare them are imported.
ROUTINES: dict[str, Routine] = {}


def _codegen() -> Any:
    context = cpu_target.target_context
    context.refresh()  # in a process where Numba has compiled nothing yet, its own functions are unknown
    return context.codegen()


def emitted(name: str, arguments: str) -> Callable[[Callable[..., None]], Any]:
    """As ``kernel``, but a routine of this name."""

    def wrap(body: Callable[..., None]) -> Any:
        def build(name: str) -> tuple[Any, str]:
            library = _codegen().create_library(name)
            library.enable_object_caching()
            module, symbol = library.create_ir_module(name), f"ninfer.routine.{name}"
            signature = ir.FunctionType(ir.VoidType(), [_TYPES[letter][0] for letter in arguments])
            function = ir.Function(module, signature, symbol)
            builder = ir.IRBuilder(function.append_basic_block("entry"))
            body(Emitter(builder), *function.args)
            builder.ret_void()
            library.add_ir_module(module)
            library.finalize()
            return library, symbol

        return Routine(name, arguments, build).caller

    return wrap


def routine(name: str, arguments: str) -> Callable[[Callable[..., None]], Any]:
    """Make a routine of this name from a function that calls parts."""

    def wrap(function: Callable[..., None]) -> Any:
        def build(_: str) -> tuple[Any, str]:
            signature = types.void(*(_TYPES[letter][1] for letter in arguments))
            callback = cfunc(signature, error_model="numpy", no_rewrites=True)(function)
            return callback._library, callback.native_name

        return Routine(name, arguments, build).caller

    return wrap
