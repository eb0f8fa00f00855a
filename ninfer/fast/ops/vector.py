"""Explicit vector code for the CPU kernels: a small emitter over LLVM IR and the decorator that turns it
into functions Numba can call.

LLVM does not vectorise widening conversions inside a reduction, so every hot loop is written in 16-lane
vectors, which LLVM lowers to AVX-512, AVX2 or NEON by itself. Addresses are plain integers: kernels work on
memory that the engine allocated once. Knows no operation and no layout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

LANES = 16
F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))


class _BFloatType(ir.types._BaseFloatType):  # type: ignore[misc]
    """LLVM's bfloat, of which llvmlite knows nothing; constants of it are not needed."""

    intrinsic_name = "bf16"

    def __str__(self) -> str:
        return "bfloat"


_BFloatType._create_instance()
VF32 = ir.VectorType(F32, LANES)
VI32 = ir.VectorType(I32, LANES)

_ELEMENT_BYTES = {"f32": 4, "bf16": 2, "f16": 2, "i8": 1}
_ARGUMENTS = {"i": types.int64, "f": types.float32}
# A half's exponent and fraction, moved into a float's fields, come out 2^112 too small.
HALF_BIAS = 2.0**112
# One table lookup decodes sixteen nibbles where the processor can permute a whole vector.
HAS_VECTOR_PERMUTE = llvm.get_host_cpu_features().get("avx512f", False)
# One instruction adds sixteen times two products of bf16.
HAS_PAIR_PRODUCTS = llvm.get_host_cpu_features().get("avx512bf16", False)
_PAIRS = ir.VectorType(_BFloatType(), 2 * LANES)

Value = Any  # an ir.Value; llvmlite ships no types


def element_bytes(kind: str) -> int:
    """Bytes of one stored element of ``kind`` (f32, bf16, f16, i8)."""
    return _ELEMENT_BYTES[kind]


def kernel(arguments: str, result: str = "") -> Callable[[Callable[..., Value]], Any]:
    """Make a Numba-callable function from ``body(emitter, *values)``.

    ``arguments`` is one letter each (``i`` int64, ``f`` float32); ``result`` is ``""`` or ``"f"``.
    """

    def wrap(body: Callable[..., Value]) -> Any:
        returns = _ARGUMENTS[result] if result else types.void
        signature = returns(*(_ARGUMENTS[letter] for letter in arguments))

        def codegen(context: Any, builder: Any, signature: Any, values: Sequence[Value]) -> Value:
            returned = body(Emitter(builder), *values)
            return returned if result else context.get_dummy_value()

        return _typed_intrinsic(len(arguments), signature, codegen)

    return wrap


def _typed_intrinsic(count: int, signature: Any, codegen: Any) -> Any:
    # Numba reads the arity from the function's own signature, so it has to be spelled out.
    names = ", ".join(f"argument{index}" for index in range(count))
    scope: dict[str, Any] = {"signature": signature, "codegen": codegen}
    exec(f"def typed(typing_context, {names}):\n    return signature, codegen\n", scope)
    return intrinsic(scope["typed"])


class Emitter:
    """Writes 16-lane float32 vector code at the builder's position."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    # --- scalars -----------------------------------------------------------------------------------

    def integer(self, value: int) -> Value:
        return ir.Constant(I64, value)

    def number(self, value: float) -> Value:
        return ir.Constant(F32, value)

    def add(self, left: Value, right: Value | int) -> Value:
        return self.builder.add(left, self.integer(right) if isinstance(right, int) else right)

    def mul(self, left: Value, right: Value | int) -> Value:
        return self.builder.mul(left, self.integer(right) if isinstance(right, int) else right)

    def at(self, address: Value, index: Value, size: int) -> Value:
        """Address of element ``index`` of ``size`` bytes each."""
        return self.builder.add(address, self.mul(index, size))

    # --- memory ------------------------------------------------------------------------------------

    def read(self, address: Value, kind: Any, align: int) -> Value:
        loaded = self.builder.load(self.builder.inttoptr(address, ir.PointerType(kind)))
        loaded.align = align
        return loaded

    def write(self, address: Value, value: Value, align: int) -> None:
        stored = self.builder.store(value, self.builder.inttoptr(address, ir.PointerType(value.type)))
        stored.align = align

    def scalar(self, address: Value, kind: str) -> Value:
        """One stored element as a float32; a half must not be negative (scales are not)."""
        if kind == "f32":
            return self.read(address, F32, 4)
        # By integer shifts: a half load is inserted into whichever vector register is free, usually an
        # accumulator, and that false dependency makes a narrow dot product three times slower.
        builder = self.builder
        word = builder.shl(builder.zext(self.read(address, I16, 2), I32), ir.Constant(I32, 13))
        return builder.fmul(builder.bitcast(word, F32), self.number(HALF_BIAS))

    def load(self, address: Value, kind: str) -> Value:
        """Sixteen consecutive elements of ``kind`` as float32 (exact)."""
        builder = self.builder
        if kind == "f32":
            return self.read(address, VF32, 4)
        if kind == "bf16":
            halves = self.read(address, ir.VectorType(I16, LANES), 2)
            return builder.bitcast(builder.shl(builder.zext(halves, VI32), self.ints([16] * LANES)), VF32)
        if kind == "f16":
            return builder.fpext(self.read(address, ir.VectorType(F16, LANES), 2), VF32)
        codes = self.read(address, ir.VectorType(I8, LANES), 1)
        return builder.sitofp(builder.sext(codes, VI32), VF32)

    def load_pairs(self, address: Value) -> Value:
        """32 consecutive bf16 words, two to each int32 lane."""
        return self.read(address, VI32, 2)

    def dot_pairs(self, left: Value, right: Value, addend: Value) -> Value:
        """``addend`` plus, lane by lane, the products of both pairs.

        How it rounds in between, and whether subnormal numbers count as zero, is the processor's.
        """
        if HAS_PAIR_PRODUCTS:
            words = (self.builder.bitcast(side, _PAIRS) for side in (left, right))
            return self.call("llvm.x86.avx512bf16.dpbf16ps.512", VF32, addend, *words)
        for half in (self._high_words, self._low_words):
            addend = self.fma(half(left), half(right), addend)
        return addend

    def _high_words(self, words: Value) -> Value:
        return self.builder.bitcast(self.builder.and_(words, self.ints([-1 << 16] * LANES)), VF32)

    def _low_words(self, words: Value) -> Value:
        return self.builder.bitcast(self.builder.shl(words, self.ints([16] * LANES)), VF32)

    def store(self, address: Value, vector: Value) -> None:
        self.write(address, vector, 4)

    def prefetch(self, address: Value) -> None:
        """Ask for the cache line at ``address``, which may be no memory at all."""
        pointer = self.builder.inttoptr(address, ir.PointerType(I8))
        read, keep, data = (ir.Constant(I32, value) for value in (0, 3, 1))
        self.call("llvm.prefetch.p0", ir.VoidType(), pointer, read, keep, data)

    def stack(self, vectors: int) -> Value:
        """Address of room for ``vectors`` vectors that lives as long as the function runs."""
        room = cgutils.alloca_once(self.builder, ir.ArrayType(VF32, vectors))
        return self.builder.ptrtoint(room, I64)

    def bytes(self, address: Value) -> Value:
        """Sixteen unsigned bytes as int32 lanes."""
        return self.builder.zext(self.read(address, ir.VectorType(I8, LANES), 1), VI32)

    # --- vectors -----------------------------------------------------------------------------------

    def ints(self, values: Sequence[int]) -> Value:
        return ir.Constant(VI32, list(values))

    def floats(self, values: Sequence[float]) -> Value:
        return ir.Constant(VF32, list(values))

    def zero(self) -> Value:
        return self.floats([0.0] * LANES)

    def splat(self, scalar: Value) -> Value:
        vector = ir.VectorType(scalar.type, LANES)
        first = self.builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.Constant(I32, 0))
        return self.builder.shuffle_vector(first, first, self.ints([0] * LANES))

    def fma(self, left: Value, right: Value, addend: Value) -> Value:
        return self.call("llvm.fma.v16f32", VF32, left, right, addend)

    def fmul(self, left: Value, right: Value) -> Value:
        return self.builder.fmul(left, right)

    def fadd(self, left: Value, right: Value) -> Value:
        return self.builder.fadd(left, right)

    def maximum(self, left: Value, right: Value) -> Value:
        greater = self.builder.fcmp_ordered(">", left, right)
        return self.builder.select(greater, left, right)

    def call(self, name: str, result: Any, *values: Value) -> Value:
        signature = ir.FunctionType(result, [value.type for value in values])
        function = cgutils.get_or_insert_function(self.builder.module, signature, name)
        return self.builder.call(function, list(values))

    def sum(self, vector: Value) -> Value:
        """The sum of all lanes by a fixed tree of halves."""
        return self._tree(vector, self.fadd)

    def sums(self, vectors: Sequence[Value]) -> Value:
        """The sums of sixteen vectors as one vector, each by the tree of ``sum``, at a third of its cost."""
        pieces, width = list(vectors), LANES
        while len(pieces) > 1:
            half = width // 2
            low = [
                side * LANES + key * width + lane
                for side in range(2)
                for key in range(LANES // width)
                for lane in range(half)
            ]
            masks = [self.ints(low), self.ints([lane + half for lane in low])]
            pieces = [
                self.fadd(*(self.builder.shuffle_vector(left, right, mask) for mask in masks))
                for left, right in zip(pieces[::2], pieces[1::2], strict=True)
            ]
            width = half
        return pieces[0]

    def piece(self, vector: Value, begin: int, count: int) -> Value:
        """``count`` consecutive lanes as a shorter vector."""
        lanes = ir.Constant(ir.VectorType(I32, count), list(range(begin, begin + count)))
        return self.builder.shuffle_vector(vector, vector, lanes)

    def largest(self, vector: Value) -> Value:
        """The largest lane."""
        return self._tree(vector, self.maximum)

    def _tree(self, vector: Value, join: Callable[[Value, Value], Value]) -> Value:
        lanes = LANES
        while lanes > 1:
            half = lanes // 2
            low, high = (
                self.builder.shuffle_vector(
                    vector, vector, ir.Constant(ir.VectorType(I32, half), list(range(begin, begin + half)))
                )
                for begin in (0, half)
            )
            vector, lanes = join(low, high), half
        return self.builder.extract_element(vector, ir.Constant(I32, 0))

    def exp(self, x: Value) -> Value:
        """Exp of every lane within 2 units in the last place; exactly 0 below −87 and 1 at 0.

        Source: Cephes expf (Cody-Waite reduction, degree-6 polynomial).
        """
        builder = self.builder
        vanishes = builder.fcmp_ordered("<", x, self.floats([-87.0] * LANES))
        number = builder.fcmp_ordered("ord", x, x)
        given = x
        x = self.maximum(x, self.floats([-87.0] * LANES))
        below = builder.fcmp_ordered("<", x, self.floats([88.0] * LANES))
        x = builder.select(below, x, self.floats([88.0] * LANES))
        scaled = self.fmul(x, self.floats([math.log2(math.e)] * LANES))
        n = self.call("llvm.rint.v16f32", VF32, scaled)
        r = self.fma(n, self.floats([-0.693359375] * LANES), x)
        r = self.fma(n, self.floats([2.12194440e-4] * LANES), r)
        p = self.floats([1.9875691500e-4] * LANES)
        for coefficient in (
            1.3981999507e-3,
            8.3334519073e-3,
            4.1665795894e-2,
            1.6666665459e-1,
            5.0000001201e-1,
        ):
            p = self.fma(p, r, self.floats([coefficient] * LANES))
        p = self.fma(self.fmul(p, r), r, self.fadd(r, self.floats([1.0] * LANES)))
        exponent = builder.shl(
            builder.add(builder.fptosi(n, VI32), self.ints([127] * LANES)), self.ints([23] * LANES)
        )
        result = builder.select(vanishes, self.zero(), self.fmul(p, builder.bitcast(exponent, VF32)))
        return builder.select(number, result, given)

    def sigmoid(self, x: Value) -> Value:
        """1 / (1 + exp(−x)) of every lane."""
        one = self.floats([1.0] * LANES)
        negated = self.builder.fneg(x)
        return self.builder.fdiv(one, self.fadd(one, self.exp(negated)))

    # --- control -----------------------------------------------------------------------------------

    def least(self, left: Value, right: Value) -> Value:
        """The smaller of two integers."""
        return self.builder.select(self.builder.icmp_signed("<", left, right), left, right)

    @contextmanager
    def loop(self, begin: Value, end: Value, step: int) -> Iterator[Value]:
        """``for index in range(begin, end, step)``."""
        with cgutils.for_range_slice(self.builder, begin, end, self.integer(step), intp=I64) as (index, _):
            yield index

    def variable(self, initial: Value) -> Variable:
        """A mutable value that LLVM keeps in a register."""
        return Variable(self.builder, initial)


class Variable:
    """One mutable vector or scalar of a kernel."""

    def __init__(self, builder: Any, initial: Value) -> None:
        self._builder = builder
        self._slot = cgutils.alloca_once_value(builder, initial)

    def get(self) -> Value:
        return self._builder.load(self._slot)

    def set(self, value: Value) -> None:
        self._builder.store(value, self._slot)
