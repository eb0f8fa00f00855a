"""Arrays of an arena: copies that begin on cache lines and touch nobody else's."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from ninfer.fast.memory import arena as module
from ninfer.fast.memory.arena import Arena


def test_copies_are_whole_apart_and_on_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every type and shape, over several mappings, one of them smaller than what is asked of it."""
    monkeypatch.setattr(module, "_BLOCK", 1 << 16)
    random, arena = np.random.default_rng(0), Arena()
    originals = [
        random.integers(0, 250, shape).astype(dtype)
        for shape in ((), (0,), (3,), (7, 65), (64, 1024), (300, 1000))
        for dtype in (np.uint8, np.uint16, np.float16, np.float32)
    ]
    originals.append(np.asfortranarray(originals[-1]))
    copies = [arena.copy(array) for array in originals]
    del arena
    gc.collect()  # a mapping lives as long as an array of it
    for original, copy in zip(originals, copies, strict=True):
        assert copy.dtype == original.dtype
        assert copy.flags.c_contiguous
        assert copy.size == 0 or copy.ctypes.data % 64 == 0
        np.testing.assert_array_equal(copy, original)
    copies[8][...] = 0
    for original, copy in zip(originals[9:], copies[9:], strict=True):
        np.testing.assert_array_equal(copy, original)
