"""Products of a chunk: any formats side by side, tiles of any size, in float32 and in bfloat16."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from ninfer.fast.program import products
from ninfer.fast.program.products import Products
from ninfer.fast.program.round import RoundRunner
from ninfer.fast.program.script import Operations, Script
from ninfer.fast.program.table import TableBuilder
from ninfer.fast.program.weights import Matrix, Segment
from ninfer.fast.program.wiring import Activations
from ninfer.fast.program.workspace import Buffer, aligned_zeros
from tests.support.fast import Array, Floats, Stored, bf16_words, padded, padded_rows, random_weights, store

ROWS, COLUMNS = 9, 200
PARTS = (("bf16", 70), ("q4_g64_fp16", 130), ("fp32", 3), ("q8_g32_fp16", 64), ("bf16", 1))
WORDS = (("bf16", 70), ("bf16", 31), ("bf16", 3))


def segment(stored: Stored) -> Segment:
    planes = stored.plane_fields()
    base, high, scale = (
        (planes.get(name, 0), planes.get(f"{name}_STRIDE", 0)) for name in ("BASE", "HIGH", "SCALE")
    )
    return Segment(stored.number, len(stored.decoded), *base, *high, *scale, tuple(stored.planes.values()))


def buffer(columns: int) -> Buffer:
    return Buffer(aligned_zeros(ROWS * padded(columns), np.float32).reshape(ROWS, padded(columns)))


class Problem:
    """Matrices of ``parts``, the first of two segments, their products side by side behind a gap."""

    gap = 5

    def __init__(self, parts: Sequence[tuple[str, int]], is_bf16: bool) -> None:
        random = np.random.default_rng(5)
        self.stored = [store(name, random_weights(random, rows, COLUMNS)) for name, rows in parts]
        first, second, *others = (segment(stored) for stored in self.stored)
        groups = [(first, second), *((part,) for part in others)]
        self.members, column = list[tuple[Matrix, int]](), self.gap
        for segments in groups:
            rows = sum(part.rows for part in segments)
            self.members.append((Matrix(rows, COLUMNS, segments), column))
            column += rows
        self.x, self.y = buffer(COLUMNS), buffer(column)
        self.x.array[:, :COLUMNS] = random.standard_normal((ROWS, COLUMNS))
        rounded = None
        if is_bf16:
            rounded = buffer(padded(COLUMNS) // 2)
            rounded.array.view(np.uint16)[:, : padded(COLUMNS)] = bf16_words(self.x.array)
        self.activations = Activations(self.x, rounded=rounded)
        self.y.array[:] = self.start = random.standard_normal(self.y.array.shape).astype(np.float32)
        self.weights: Floats = np.concatenate([padded_rows(stored.decoded) for stored in self.stored])

    def run(self, count: int, is_bf16: bool, adds: bool) -> Array:
        """The first ``count`` rows of y, and nothing else, change."""
        builder = TableBuilder()
        script = Script(builder)
        owner = Products(script, padded(COLUMNS), 2, is_bf16)
        owner.multiply(self.members, self.activations, self.y, adds)
        steps = script.build()
        runner = RoundRunner(builder.build(), 2)
        with torch.inference_mode():
            for step in steps:
                if isinstance(step, Operations):
                    runner.run(step.begin, step.end, count, 0)
                else:
                    step.run(count)
        runner.close()
        end = self.gap + len(self.weights)
        assert (self.y.array[count:] == self.start[count:]).all()
        assert (self.y.array[:, : self.gap] == self.start[:, : self.gap]).all()
        assert (self.y.array[:, end:] == self.start[:, end:]).all()
        return self.y.array[:count, self.gap : end]


@pytest.mark.parametrize("tile_bytes", [1, 100 * 4 * 256, 1 << 22])
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize(("is_bf16", "limit"), [(False, 1e-5), (True, 1e-2)])
@pytest.mark.parametrize("parts", [PARTS, WORDS], ids=["mixed", "bf16"])
def test_products_are_those_of_the_decoded_weights(
    parts: Sequence[tuple[str, int]], tile_bytes: int, adds: bool, is_bf16: bool, limit: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(products, "TILE_BYTES", tile_bytes)
    problem = Problem(parts, is_bf16)
    for count in (ROWS, 1, 4):
        problem.y.array[:] = problem.start
        found = problem.run(count, is_bf16, adds)
        wanted = problem.x.array[:count].astype(np.float64) @ problem.weights.T.astype(np.float64)
        if adds:
            wanted += problem.start[:count, problem.gap : problem.gap + len(problem.weights)]
        assert np.abs(found - wanted).max() <= limit * np.abs(wanted).max()
