"""How close a draw is to another token: the smallest change of logits that could turn it.

A margin is in logits. Changing every logit by at most ``b`` moves the difference of two logits by at most
``2 b``, and the log odds of any prefix of a softmax at temperature T by at most ``2 b / T``; so a draw with
margin ``m`` can only turn when ``2 b ≥ m``. Written from ``spec/sampling.yaml`` in float64, apart from the
sampler that it judges.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing as npt

from ninfer.sampling.parameters import SamplingParameters, candidate_cap
from ninfer.sampling.philox import uniform


def margin(
    logits: npt.NDArray[np.float64],
    parameters: SamplingParameters,
    counts: npt.NDArray[np.int32],
    position: int,
) -> float:
    """The smallest distance to an edge: rank (the top-k edge included), top-p, min-p, running sum.

    Shapes: logits, counts [V], V the ids that may be drawn.
    """
    seen = counts > 0
    scores = logits - (parameters.presence_penalty * seen + parameters.frequency_penalty * counts)
    ranked = np.sort(scores)[::-1]
    if parameters.temperature == 0:
        return float(ranked[0] - ranked[1])
    keep = min(parameters.top_k or candidate_cap(), candidate_cap())
    edges = [float(ranked[j] - ranked[j + 1]) for j in range(min(keep, len(ranked) - 1))]
    edges += _probability_edges(ranked[:keep], parameters, position)
    return min(edges)


def _probability_edges(
    ranked: npt.NDArray[np.float64], parameters: SamplingParameters, position: int
) -> list[float]:
    temperature = parameters.temperature
    weights = [math.exp((score - ranked[0]) / temperature) for score in ranked]
    edges, kept = [], len(weights)
    if parameters.top_p < 1:
        sums = _running(weights)
        edges += [temperature * _odds_distance(total, parameters.top_p) for total in sums[:-1]]
        kept = next(j + 1 for j, total in enumerate(sums) if total >= parameters.top_p or j == kept - 1)
    if parameters.min_p > 0:
        edge = temperature * math.log(parameters.min_p)
        edges += [abs(float(score - ranked[0]) - edge) for score in ranked[1:kept]]
    left = [weight for weight in weights[:kept] if weight > 0 and weight >= parameters.min_p]
    u = uniform(parameters.seed, position, "token")
    return edges + [temperature * _odds_distance(total, u) for total in _running(left)[:-1]]


def _running(weights: list[float]) -> list[float]:
    whole = math.fsum(weights)
    return [total / whole for total in itertools.accumulate(weights)]


def _odds_distance(first: float, second: float) -> float:
    """Distance of two probabilities in log odds; infinite where one is 0 or 1 and the other is not."""
    if min(first, second) <= 0 or max(first, second) >= 1:
        return 0.0 if first == second else math.inf
    return abs(math.log(first / (1 - first)) - math.log(second / (1 - second)))
