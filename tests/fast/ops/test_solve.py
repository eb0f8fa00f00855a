"""Forward substitution of the chunked delta rule, run through a round's table."""

from __future__ import annotations

import numpy as np
import pytest

from ninfer.fast.program import table as t
from ninfer.fast.program.round import RoundRunner


@pytest.mark.parametrize(
    ("systems", "n", "width"), [(1, 1, 16), (3, 17, 48), (5, 64, 64), (2, 64, 272)], ids=str
)
def test_solves_unit_lower_triangular_systems(systems: int, n: int, width: int) -> None:
    rng = np.random.default_rng(n)
    # Whatever lies on and above the diagonal must not be read.
    full = rng.normal(size=(systems, n, n)).astype(np.float32) * 0.3
    poisoned = np.where(np.tri(n, k=-1, dtype=bool), full, np.float32(np.nan))
    right = rng.normal(size=(systems, n, width)).astype(np.float32)
    expected = np.linalg.solve(np.tril(full, -1).astype(np.float64) + np.eye(n), right.astype(np.float64))
    builder = t.TableBuilder()
    builder.add(t.SOLVE, (poisoned.ctypes.data, right.ctypes.data, n, width, systems))
    runner = RoundRunner(builder.build(), 2)
    runner.run(0, 1, 0, 0)
    runner.close()
    scale = np.abs(expected).max()
    assert np.abs(right - expected).max() <= 1e-5 * scale
