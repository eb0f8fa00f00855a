"""Philox4x32-10 and the uniform numbers a draw takes from it.

Owns the generator and its key layout (``spec/sampling.yaml`` ``randomness``). A number depends only on where
it is used, so one request draws the same tokens in any batch, after any pause and with any drafter.
Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Literal

from ninfer import spec

Purpose = Literal["token", "draft", "acceptance", "residual"]
_WORD = 0xFFFFFFFF


def philox4x32(
    counter: Sequence[int], key: Sequence[int], rounds: int | None = None
) -> tuple[int, int, int, int]:
    """Four 32-bit words for a counter of four and a key of two 32-bit words.

    ``rounds`` is the specification's (ten) unless a test asks for another published count.
    """
    specified, (m0, m1), (w0, w1) = _constants()
    x0, x1, x2, x3 = counter
    k0, k1 = key
    for _ in range(specified if rounds is None else rounds):
        low, high = m0 * x0, m1 * x2
        x0, x1, x2, x3 = (high >> 32) ^ x1 ^ k0, high & _WORD, (low >> 32) ^ x3 ^ k1, low & _WORD
        k0, k1 = (k0 + w0) & _WORD, (k1 + w1) & _WORD
    return x0, x1, x2, x3


def uniform(seed: int, position: int, purpose: Purpose, index: int = 0) -> float:
    """A number in [0, 1), a multiple of 2**-53.

    ``seed`` is unsigned 64-bit; ``position`` is the drawn token's place in prompt plus output and ``index``
    tells apart several draws of one purpose there; both are unsigned 32-bit.
    """
    counter = (position, index, _purpose(purpose), 0)
    x0, x1, _, _ = philox4x32(counter, (seed & _WORD, seed >> 32))
    return float((x0 >> 5) * 2**26 + (x1 >> 6)) / 2**53


@functools.cache
def _constants() -> tuple[int, tuple[int, int], tuple[int, int]]:
    table = spec.document("sampling")["randomness"]
    multipliers, increments = table["multipliers"], table["key_increments"]
    return table["rounds"], (multipliers[0], multipliers[1]), (increments[0], increments[1])


@functools.cache
def _purpose(purpose: Purpose) -> int:
    return int(spec.document("sampling")["randomness"]["purposes"][purpose])
