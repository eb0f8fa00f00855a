"""Compiles kernels ahead of time, without a GPU: whatever code launches inside ``recording`` is compiled.

Inside the context a launch runs nothing; its arguments decide types and specialisation as they would on a
device, and the kernel is compiled to machine code for each architecture.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

ARCHITECTURES = (80, 86, 89, 90, 100, 120)
_TYPES = {
    "torch.bfloat16": "bf16",
    "torch.float16": "fp16",
    "torch.float32": "fp32",
    "torch.float64": "fp64",
    "torch.int8": "i8",
    "torch.uint8": "u8",
    "torch.int16": "i16",
    "torch.int32": "i32",
    "torch.int64": "i64",
}


@dataclass(slots=True)
class Compiled:
    """One kernel for one architecture: bytes of shared memory, and how often it was launched."""

    name: str
    architecture: int
    shared: int
    key: tuple[Any, ...] = field(repr=False)


@contextmanager
def recording(architectures: Sequence[int] = ARCHITECTURES, once: bool = False) -> Iterator[list[Compiled]]:
    """Compile every distinct launch for ``architectures``; the list grows with the kernels compiled.

    ``once``: one variant of each kernel is enough, of products one for few columns and one for more.
    """
    results: list[Compiled] = []
    seen: set[tuple[Any, ...]] = set()
    real = JITFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        for architecture in architectures:
            source, settings, key = _source(self, args, options)
            known = (architecture, (key[0], *_columns(key)) if once else key)
            if known in seen:
                continue
            seen.add(known)
            target = GPUTarget("cuda", architecture, 32)
            try:
                kernel = triton.compile(source, target=target, options=settings)
            except Exception as error:
                raise AssertionError(
                    f"{self.__name__} does not compile for sm_{architecture}: {key}"
                ) from error
            check_lanes(kernel.asm["ttgir"])
            if self.__name__ == "_linear" and bound_to(key, "FORMAT") != "0":
                check_instruction(kernel.asm["ttgir"])
            results.append(Compiled(self.__name__, architecture, kernel.metadata.shared, key))

    JITFunction.run = run
    try:
        yield results
    finally:
        JITFunction.run = real


def check_lanes(intermediate: str) -> None:
    """Code that goes by its lane's number must stand where the lanes lie as it believes.

    That is the left operand of the 16 x 8 x 16 matrix instruction. Errors: ``AssertionError``.
    """
    for line in intermediate.splitlines():
        if "%laneid" in line:
            assert "dot_op<{opIdx = 0" in line, "nvfp4 codes are decoded outside their operand's layout"
            assert "versionMajor = 2" in intermediate, "another matrix instruction was chosen for nvfp4"


def check_instruction(intermediate: str) -> None:
    """Packed codes meet any number of columns in one kind of instruction. Errors: ``AssertionError``."""
    assert "versionMajor = 3" not in intermediate, "warps of four multiply packed codes"
    assert "tc_gen5_mma" not in intermediate, "tensor memory multiplies packed codes"


def bound_to(key: tuple[Any, ...], name: str) -> str | None:
    """The compile-time value of a parameter in a kernel's key."""
    return dict(key[2]).get(name)


def _columns(key: tuple[Any, ...]) -> tuple[bool, ...]:
    columns = bound_to(key, "M")
    return () if columns is None else (int(columns) > 8,)


def _source(
    kernel: Any, args: tuple[Any, ...], options: dict[str, Any]
) -> tuple[ASTSource, dict[str, Any], tuple[Any, ...]]:
    names = [parameter.name for parameter in kernel.params]
    bound = dict(zip(names, args, strict=False))
    settings = {}
    for name, value in options.items():
        (bound if name in names else settings)[name] = value
    signature, constants, attributes = {}, {}, {}
    for index, parameter in enumerate(kernel.params):
        value = bound[parameter.name]
        if parameter.is_constexpr or value is None:
            signature[parameter.name], constants[parameter.name] = "constexpr", value
            continue
        signature[parameter.name] = _type(value)
        if isinstance(value, Tensor):
            if value.data_ptr() % 16 == 0:
                attributes[(index,)] = [["tt.divisibility", 16]]
        elif isinstance(value, int) and not isinstance(value, bool):
            if parameter.do_not_specialize:
                continue
            if value == 1:
                signature[parameter.name], constants[parameter.name] = "constexpr", 1
            elif value % 16 == 0:
                attributes[(index,)] = [["tt.divisibility", 16]]
    key = (
        kernel.__name__,
        tuple(signature.items()),
        tuple((name, str(value)) for name, value in constants.items()),
        tuple(sorted(attributes)),
        tuple(sorted(settings.items())),
    )
    return ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes), settings, key


def _type(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"*{_TYPES[str(value.dtype)]}"
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    return "fp32"
