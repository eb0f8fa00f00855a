"""From logits to the at most twenty candidates a token is drawn from, in the specified order.

Owns the steps ``vocabulary_mask`` to ``renormalise`` of ``spec/sampling.yaml`` ``order``. Penalised logits
are float32 with every operation rounded, so that all engines see the same ties; probabilities are float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ninfer.errors import EngineError, RequestError
from ninfer.sampling.parameters import SamplingParameters, candidate_cap

Logits = npt.NDArray[np.float32]
Counts = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Distribution:
    """Candidates in descending order of probability (equal ones by id); probabilities sum to 1."""

    ids: tuple[int, ...]
    probabilities: tuple[float, ...]


def processed_distribution(
    logits: Logits,
    parameters: SamplingParameters,
    counts: Counts | None = None,
    mask: Mask | None = None,
    vocabulary: int | None = None,
) -> Distribution:
    """The distribution of the next token.

    Shapes: ``logits`` [V] float32; ``counts`` [V] int32, how often each id was committed as output; ``mask``
    [V] bool, True where allowed; ``vocabulary`` the number of ids a tokenizer knows (None: V).
    Errors: as ``penalised_logits``. Source: ``spec/sampling.yaml`` ``order``.
    """
    scores = penalised_logits(logits, parameters, counts, mask, vocabulary)
    if parameters.temperature == 0:
        return Distribution((int(np.argmax(scores)),), (1.0,))
    ids = top_candidates(scores, parameters.top_k or candidate_cap())
    top = float(scores[ids[0]])
    # The difference first: it is at most 0, so that no temperature, however small, can overflow.
    weights = [math.exp((float(scores[i]) - top) / parameters.temperature) for i in ids]
    kept = _top_p(weights, parameters.top_p)
    kept = [weight for weight in kept if weight > 0 and weight >= parameters.min_p]
    return Distribution(tuple(ids[: len(kept)]), tuple(_normalised(kept)))


def penalised_logits(
    logits: Logits,
    parameters: SamplingParameters,
    counts: Counts | None = None,
    mask: Mask | None = None,
    vocabulary: int | None = None,
) -> Logits:
    """The logits [V] after masks (forbidden ids are -inf) and penalties, float32.

    Errors: ``EngineError`` when an allowed logit is NaN or +inf; ``RequestError`` ``constraint_dead_end``
    when no id is allowed.
    """
    scores = logits.astype(np.float32, copy=True)
    if vocabulary is not None:
        scores[vocabulary:] = -np.inf
    if mask is not None:
        scores[~mask] = -np.inf
    if counts is not None and (parameters.presence_penalty or parameters.frequency_penalty):
        presence = np.float32(parameters.presence_penalty) * (counts > 0).astype(np.float32)
        frequency = np.float32(parameters.frequency_penalty) * counts.astype(np.float32)
        scores -= presence + frequency
    largest = scores.max()
    if largest == -np.inf:
        raise RequestError("constraint_dead_end", "no token may follow: every id is masked")
    if not np.isfinite(largest):  # max() carries NaN through
        raise EngineError("internal_error", "the model returned a logit that is not a number")
    return scores


def top_candidates(scores: Logits, k: int) -> list[int]:
    """The ids of the ``k`` largest finite scores (capped), descending, ties to the lower id."""
    k = min(k, candidate_cap(), int(np.count_nonzero(scores > -np.inf)))
    edge = np.partition(scores, -k)[-k]
    above = np.flatnonzero(scores > edge)
    ids = np.concatenate([above, np.flatnonzero(scores == edge)[: k - above.size]])
    return [int(i) for i in ids[np.lexsort((ids, -scores[ids]))]]


def _top_p(weights: list[float], top_p: float) -> list[float]:
    """The smallest prefix whose probability reaches ``top_p``; at least one, all of them for 1."""
    if top_p >= 1:
        return weights
    reached = 0.0
    for index, probability in enumerate(_normalised(weights)):
        reached += probability
        if reached >= top_p:
            return weights[: index + 1]
    return weights


def _normalised(weights: list[float]) -> list[float]:
    # A plain loop, largest first: library sums pair terms up and would round differently.
    total = 0.0
    for weight in weights:
        total += weight
    return [weight / total for weight in weights]
