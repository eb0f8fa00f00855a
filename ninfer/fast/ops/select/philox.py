"""Philox4x32-10 in compiled code; ``ninfer.sampling.philox`` is its plain twin and the same numbers come
out.
"""

from __future__ import annotations

import numpy as np

from ninfer import spec
from ninfer.fast.ops.compiled import part

_RANDOMNESS = spec.document("sampling")["randomness"]
_ROUNDS = int(_RANDOMNESS["rounds"])
_FIRST, _SECOND = (np.uint64(multiplier) for multiplier in _RANDOMNESS["multipliers"])
_KEY_LOW, _KEY_HIGH = (np.uint64(increment) for increment in _RANDOMNESS["key_increments"])
_TOKEN = np.uint64(_RANDOMNESS["purposes"]["token"])
_WORD, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)


@part
def uniform(seed, position):
    """The number in [0, 1) of the token drawn at ``position``."""
    x0, x1, x2, x3 = np.uint64(position), np.uint64(0), _TOKEN, np.uint64(0)
    k0, k1 = np.uint64(seed) & _WORD, np.uint64(seed) >> _HALF
    for _ in range(_ROUNDS):
        low, high = _FIRST * x0, _SECOND * x2
        x0, x1 = (high >> _HALF) ^ x1 ^ k0, high & _WORD
        x2, x3 = (low >> _HALF) ^ x3 ^ k1, low & _WORD
        k0, k1 = (k0 + _KEY_LOW) & _WORD, (k1 + _KEY_HIGH) & _WORD
    whole = (x0 >> np.uint64(5)) * np.uint64(1 << 26) + (x1 >> np.uint64(6))
    return np.float64(whole) / np.float64(1 << 53)
