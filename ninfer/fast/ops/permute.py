"""Activations in the order in which the formats below 8 bits keep their lanes."""

from __future__ import annotations

from typing import Any

from ninfer.fast.ops.vector import Emitter, kernel

_EVENS = [*range(0, 32, 2)]
_ODDS = [*range(1, 32, 2)]


@kernel("iii")
def evens_first(e: Emitter, source: Any, target: Any, n: Any) -> None:
    """Copy ``n`` floats (a multiple of 32) with the even lanes of every 32 before the odd ones."""
    with e.loop(e.integer(0), n, 32) as index:
        start = e.at(source, index, 4)
        low, high = e.load(start, "f32"), e.load(e.add(start, 64), "f32")
        end = e.at(target, index, 4)
        e.store(end, e.builder.shuffle_vector(low, high, e.ints(_EVENS)))
        e.store(e.add(end, 64), e.builder.shuffle_vector(low, high, e.ints(_ODDS)))
