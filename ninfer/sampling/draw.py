"""Selects one token: the last step of the draw.

Owns the walk along the cumulative sum; the candidates come from ``distribution.py``, the number from
``philox.py``.
"""

from __future__ import annotations

from ninfer.sampling.distribution import Counts, Distribution, Logits, Mask, processed_distribution
from ninfer.sampling.parameters import SamplingParameters
from ninfer.sampling.philox import uniform


def select_token(
    logits: Logits,
    parameters: SamplingParameters,
    counts: Counts | None,
    position: int,
    mask: Mask | None = None,
    vocabulary: int | None = None,
) -> int:
    """The id of the token at ``position``, its 0-based place in prompt plus output.

    Shapes and errors: as ``processed_distribution``. Source: ``spec/sampling.yaml`` ``order``.
    """
    distribution = processed_distribution(logits, parameters, counts, mask, vocabulary)
    if len(distribution.ids) == 1:
        return distribution.ids[0]
    return pick(distribution, uniform(parameters.seed, position, "token"))


def pick(distribution: Distribution, u: float) -> int:
    """The first candidate whose running sum exceeds ``u`` in [0, 1); the last one if rounding leaves none."""
    reached = 0.0
    for token, probability in zip(distribution.ids, distribution.probabilities, strict=True):
        reached += probability
        if u < reached:
            return token
    return distribution.ids[-1]
