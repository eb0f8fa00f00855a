"""The draw a second time, slowly: 60-digit decimals, plain lists, nothing of ninfer imported.

Owns an independent reading of the order of the draw that the tests hold against ``ninfer.sampling``.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from decimal import Context, Decimal, localcontext

# What exp() still tells from 0 in float64.
SMALLEST = Decimal("2.5e-324")
Candidates = list[tuple[int, Decimal]]


def distribution(
    logits: Sequence[float],
    *,
    temperature: float,
    top_p: float,
    top_k: int,
    min_p: float,
    presence_penalty: float,
    frequency_penalty: float,
    counts: Mapping[int, int],
    allowed: Sequence[bool],
) -> Candidates:
    """Candidates with their probabilities, in the order of the walk; temperature above 0."""
    scores = penalised(logits, presence_penalty, frequency_penalty, counts, allowed)
    ranked = sorted(scores, key=lambda token: (-scores[token], token))[: min(top_k or 20, 20)]
    with localcontext(Context(prec=60)):
        largest = Decimal(scores[ranked[0]])
        weights = [(i, ((Decimal(scores[i]) - largest) / Decimal(temperature)).exp()) for i in ranked]
        candidates = _normalise(weights)
        kept: Candidates = []
        for candidate in candidates:
            if kept and sum(p for _, p in kept) >= Decimal(top_p) and top_p < 1:
                break
            kept.append(candidate)
        edge = max(Decimal(min_p), SMALLEST) * kept[0][1]
        return _normalise([(i, p) for i, p in kept if p >= edge])


def penalised(
    logits: Sequence[float],
    presence: float,
    frequency: float,
    counts: Mapping[int, int],
    allowed: Sequence[bool],
) -> dict[int, float]:
    """Allowed id → penalised logit, every step rounded to float32."""
    scores = {}
    for token, logit in enumerate(logits):
        if allowed[token]:
            count = counts.get(token, 0)
            penalty = f32(f32(presence) * (count > 0)) + f32(f32(frequency) * f32(count))
            scores[token] = f32(f32(logit) - f32(penalty))
    return scores


def walk(candidates: Candidates, u: float) -> tuple[int, Decimal]:
    """The drawn id, and how near ``u`` came to a border between candidates."""
    reached, margin, drawn = Decimal(0), Decimal(1), None
    for token, probability in candidates:
        reached += probability
        margin = min(margin, abs(reached - Decimal(u)))
        if drawn is None and Decimal(u) < reached:
            drawn = token
    return candidates[-1][0] if drawn is None else drawn, margin


def f32(value: float) -> float:
    """The nearest float32."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def _normalise(candidates: Candidates) -> Candidates:
    total = sum(weight for _, weight in candidates)
    return [(token, weight / total) for token, weight in candidates]
