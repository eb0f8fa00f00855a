"""Single operations of the fast engine on memory that a test owns, and the rule that judges their errors.

Everything runs through ``RoundRunner``: one compiled entry point serves every test. Outputs begin as NaN
with a margin of NaN around them, so that what is not written and what is written too far both show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ninfer.artifact.codecs import decode_rows, encode_divisor, encode_rows, weight_divisor
from ninfer.artifact.codecs.block_scaled import unswizzle
from ninfer.artifact.contract import formats as tensor_formats
from ninfer.artifact.layouts import default_layout, geometry
from ninfer.fast.ops.linear import contract as linear
from ninfer.fast.ops.linear import formats
from ninfer.fast.program.round import RoundRunner
from ninfer.fast.program.table import LINEAR, TableBuilder

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
Operation = tuple[int, Sequence[int]]

WIDTHS = (1, 2, 3, 4, 5, 7, 8, 16, 33, 63, 64)
STORED_FORMATS = tuple(formats.NAMES)
PAIRS = "bf16 pairs"
STEP = formats.STEP
MARGIN = 64
# A bf16 NaN that rounding never makes.
_NAN_WORD = 0xFFFF
# Half a unit in the last place of 1: nothing rounded to float32 does better.
ROUNDING = 2.0**-24
# The equality table: a fast operation may err 1.5 times as much as plain PyTorch, and 1e-5 in float32.
RATIO, LIMIT = 1.5, 1e-5


class Poisoned:
    """Rows of NaN that an operation is to fill: ``values`` [rows, columns] inside a margin of NaN."""

    def __init__(self, rows: int, columns: int) -> None:
        self._whole = np.full((rows + 2, columns + 2 * MARGIN), np.nan, np.float32)
        self.values = self._whole[1:-1, MARGIN : MARGIN + columns]

    @property
    def address(self) -> int:
        return int(self.values.ctypes.data)

    @property
    def stride(self) -> int:
        return int(self._whole.strides[0])

    def check_margin(self) -> None:
        """Nothing outside ``values`` was written."""
        written = ~np.isnan(self._whole)
        written[1:-1, MARGIN : MARGIN + self.values.shape[1]] = False
        assert not written.any(), f"written outside at {np.argwhere(written)[:4].tolist()}"


class Copies:
    """Where an operation copies its output of ``rows`` rows: all NaN at first."""

    def __init__(self, rows: int, columns: int) -> None:
        self._evens = Poisoned(rows, columns)
        self._words = np.full((rows + 2, columns + 2 * MARGIN), _NAN_WORD, np.uint16)
        self._rounded = self._words[1:-1, MARGIN : MARGIN + columns]

    @property
    def fields(self) -> dict[str, int]:
        """What a descriptor says of them."""
        return {
            "PERMUTED": self._evens.address, "PERMUTED_STRIDE": self._evens.stride,
            "ROUNDED": address(self._rounded), "ROUNDED_STRIDE": self._words.strides[0],
        }  # fmt: skip

    def check(self, values: Floats, rows: Sequence[int] | slice = slice(None)) -> None:
        """They are ``values``, the output's ``rows``; nothing outside was written."""
        assert_same_bits(self._evens.values[rows], evens_first(values), "even lanes first")
        rounded = bf16_values(self._rounded[rows])
        np.testing.assert_array_equal(rounded, bf16_values(bf16_words(values)), "rounded to bf16")
        self.check_untouched(rows)

    def check_untouched(self, rows: Sequence[int] | slice = ()) -> None:
        """But for ``rows`` nothing was written."""
        self._evens.check_margin()
        words, idle = self._words.copy(), np.ones(len(self._rounded), np.bool_)
        idle[list(rows) if not isinstance(rows, slice) else rows] = False
        words[1:-1, MARGIN : MARGIN + self._rounded.shape[1]][~idle] = _NAN_WORD
        assert (words == _NAN_WORD).all()
        assert np.isnan(self._evens.values[idle]).all()


def bf16_words(values: Floats) -> npt.NDArray[np.uint16]:
    """The nearest bf16 of every value, ties to even, as PyTorch rounds."""
    rounded = torch.from_numpy(np.ascontiguousarray(values)).to(torch.bfloat16)
    return rounded.view(torch.int16).numpy().view(np.uint16)


def bf16_values(words: npt.NDArray[np.uint16]) -> Floats:
    """What bf16 words stand for."""
    return (words.astype(np.uint32) << 16).view(np.float32)


def padded(columns: int) -> int:
    """``columns`` rounded up to a K step."""
    return -(-columns // STEP) * STEP


def padded_rows(values: Array) -> Floats:
    """Rows [n, columns] as float32 with zeros up to a K step."""
    result = np.zeros((len(values), padded(values.shape[1])), np.float32)
    result[:, : values.shape[1]] = values
    return result


def evens_first(values: Array) -> Array:
    """Every 32 columns with their even lanes before their odd ones."""
    groups = values.reshape(*values.shape[:-1], -1, 16, 2)
    return np.ascontiguousarray(groups.swapaxes(-1, -2)).reshape(values.shape)


def address(array: Array) -> int:
    """Where an array begins."""
    return int(array.ctypes.data)


def float_bits(value: float) -> int:
    """A float32's bits, as descriptors carry epsilons."""
    return int(np.float32(value).view(np.int32))


def fields(contract: ModuleType, last: str = "FIELDS", **named: int) -> list[int]:
    """A descriptor of ``contract`` with these fields; the others are 0. ``last`` counts them."""
    result = [0] * getattr(contract, last)
    for name, value in named.items():
        result[getattr(contract, name)] = int(value)
    return result


def linear_operation(*segments: Sequence[int]) -> Operation:
    """One ``linear`` over these segments, for ``run``."""
    return LINEAR, [value for segment in segments for value in segment]


def table_of(operations: Sequence[Operation]) -> Any:
    """The table of ``operations``."""
    builder = TableBuilder()
    for opcode, descriptor in operations:
        if opcode == LINEAR:
            builder.linear(np.reshape(descriptor, (-1, linear.SEGMENT_FIELDS)).tolist())
        else:
            builder.add(opcode, descriptor)
    return builder.build()


def run(
    operations: Sequence[Operation],
    row_count: int = 0,
    rows: Sequence[Sequence[int]] = (),
    blocks: Sequence[Sequence[int]] = (),
    samplers: Array | None = None,
    threads: int = 1,
) -> None:
    """Run ``operations`` in order over ``rows`` (or ``row_count`` empty ones) and ``blocks``."""
    runner = RoundRunner(table_of(operations), threads)
    try:
        if rows:
            runner.rows[: len(rows)] = rows
        if blocks:
            runner.blocks[: len(blocks)] = blocks
        if samplers is not None:
            runner.samplers[: len(samplers)] = samplers
        runner.run(0, len(operations), row_count or len(rows), len(blocks))
    finally:
        runner.close()


# --- stored weights ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """A matrix in an artifact format: ``decoded`` [N, K] exactly, ``planes`` [N, bytes] of each row."""

    format: str
    decoded: Floats
    planes: Mapping[str, Array]
    rounds: bool = False  # whether its bf16 words meet activations rounded to bf16

    @property
    def number(self) -> int:
        return formats.PAIRS if self.rounds else formats.NAMES[self.format]

    @property
    def width(self) -> int:
        return padded(self.decoded.shape[1])

    @property
    def is_permuted(self) -> bool:
        return self.number in formats.EVENS_FIRST

    def arrange(self, x: Floats) -> Array:
        """Padded activations in the order and type that the arithmetic reads."""
        if self.rounds:
            return bf16_words(x)
        return evens_first(x) if self.is_permuted else x

    def read(self, x: Floats) -> Floats:
        """The values that the arithmetic multiplies by."""
        return bf16_values(bf16_words(x)) if self.rounds else x

    def segment(
        self,
        x: Array | None = None,
        y: Poisoned | None = None,
        rows: tuple[int, int] | None = None,
        mode: int = linear.STORE,
    ) -> list[int]:
        """The linear segment of the rows ``rows`` (all), reading ``x`` as ``arrange`` gives it."""
        begin, end = rows or (0, len(self.decoded))
        plane = self.plane_fields(begin)
        io = {} if x is None or y is None else {
            "X": address(x), "X_STRIDE": x.strides[0], "Y": y.address, "Y_STRIDE": y.stride
        }  # fmt: skip
        named = {"FORMAT": self.number, "ROWS": end - begin, "K": self.width, "MODE": mode}
        return fields(linear, "SEGMENT_FIELDS", **named, **plane, **io)

    def plane_fields(self, begin: int = 0) -> dict[str, int]:
        """Address and stride of every plane, from row ``begin``."""
        found = {}
        for field, plane in (("BASE", self._base), ("HIGH", "high"), ("SCALE", "scales")):
            if plane in self.planes:
                stride = self.planes[plane].strides[0]
                found |= {field: address(self.planes[plane]) + begin * stride, f"{field}_STRIDE": stride}
        return found

    @property
    def _base(self) -> str:
        return "base" if "base" in self.planes else "words"


def store(format_name: str, weights: Floats) -> Stored:
    """``weights`` [N, K] through the artifact's codec; ``PAIRS``: bf16 that meets rounded activations."""
    if format_name == PAIRS:
        return replace(store("bf16", weights), rounds=True)
    if format_name == "nvfp4":
        return _store_nvfp4(weights)
    planes = encode_rows(format_name, weights)
    place = geometry(format_name, default_layout(format_name), weights.shape)
    decoded = decode_rows(place, planes, len(weights))
    by_row = {name: plane.reshape(len(weights), -1) for name, plane in planes.items()}
    if "codes" in by_row:
        codes = np.zeros((len(weights), padded(weights.shape[1])), np.uint8)
        codes[:, : weights.shape[1]] = by_row["codes"]
        by_row = {"base": codes, "scales": by_row["scales"]}
    if "words" in by_row:
        word = by_row["words"].shape[1] // weights.shape[1]
        wide = np.zeros((len(weights), padded(weights.shape[1]) * word), np.uint8)
        wide[:, : by_row["words"].shape[1]] = by_row["words"]
        by_row = {"words": wide}
    return Stored(format_name, decoded, by_row)


def _store_nvfp4(weights: Floats) -> Stored:
    """Whole tiles of 128 rows and 64 columns are stored; what lies beyond the matrix is zero."""
    rows, columns = weights.shape
    whole = np.zeros((-(-rows // 128) * 128, padded(columns)), np.float32)
    whole[:rows, :columns] = weights
    divisor = weight_divisor(float(np.abs(whole).max()))
    planes = {**encode_rows("nvfp4", whole, divisor), **encode_divisor(divisor)}
    place = geometry("nvfp4", default_layout("nvfp4"), whole.shape)
    decoded = decode_rows(place, planes, len(whole))
    scales = unswizzle(tensor_formats()["nvfp4"], planes["scales"], *whole.shape)
    by_row = {
        "base": planes["codes"].reshape(len(whole), -1),
        "scales": np.ascontiguousarray(scales),
        "high": np.broadcast_to(planes["divisor"], (len(whole), 4)),
    }
    return Stored("nvfp4", np.ascontiguousarray(decoded[:rows, :columns]), by_row)


def random_weights(random: np.random.Generator, rows: int, columns: int) -> Floats:
    """Weights whose groups span fp16 scales down to subnormal ones, with groups and a row of zeros."""
    weights = random.standard_normal((rows, columns)).astype(np.float32) / np.float32(columns**0.5)
    weights *= np.float32(2) ** random.integers(-4, 2, (rows, 1)).astype(np.float32)
    for begin in range(0, columns, 32):
        kind = random.integers(0, 12)
        if kind == 0:
            weights[:, begin : begin + 64] = 0
        elif kind == 1:
            weights[:, begin : begin + 32] *= np.float32(2.0**-14)
    if rows > 2:
        weights[rows // 2] = 0
    return weights


# --- errors --------------------------------------------------------------------------------------------


def relative_errors(found: Array, exact: Array) -> Array:
    """|found − exact| of every value over the root mean square of its exact row."""
    size = np.sqrt(np.square(exact).mean(-1, keepdims=True))
    return np.abs(found - exact) / np.maximum(size, np.finfo(np.float64).tiny)


def assert_accurate(
    name: str, found: Array, plain: Array, exact: Array, limit: float = LIMIT, ratio: float = RATIO
) -> None:
    """The op row of the equality table: median and 99th percentile of the relative error against float64.

    ``plain`` is the same in PyTorch float32. Prints both, so that ``-s`` shows where an operation stands.
    """
    assert found.shape == plain.shape == exact.shape
    assert np.isfinite(found).all(), f"{name}: {np.count_nonzero(~np.isfinite(found))} values not finite"
    ours, torchs = relative_errors(found, exact), relative_errors(plain, exact)
    for percentile in (50, 99):
        mine, its = np.percentile(ours, percentile), np.percentile(torchs, percentile)
        print(
            f"op={name} percentile={percentile} fast_error={mine:.2e} torch_error={its:.2e} limit={limit:.0e}"
        )
        assert mine <= limit
        assert mine <= max(ratio * its, ROUNDING)


def in_both(function: Callable[..., torch.Tensor], *arrays: Array, **options: Any) -> tuple[Array, Array]:
    """``function`` of the arrays in PyTorch float32 and in float64."""
    with torch.inference_mode():
        results = [
            function(*(torch.from_numpy(np.asarray(array)).to(dtype) for array in arrays), **options)
            for dtype in (torch.float32, torch.float64)
        ]
    plain, exact = results
    return plain.numpy().astype(np.float64), exact.numpy()


def assert_same_bits(found: Array, wanted: Array, what: str = "") -> None:
    """Bit for bit, signs of zero included."""
    different = found.view(np.uint32) != wanted.view(np.uint32)
    assert not different.any(), f"{what} differs at {np.argwhere(different)[:4].tolist()}"
