"""The router of a mixture of experts."""

from __future__ import annotations

from torch import Tensor


def moe_route(scores: Tensor, experts_per_token: int) -> tuple[Tensor, Tensor]:
    """The k experts of each row with the largest ``p = softmax(scores)``, weighted ``p / Σ_k p``.

    The softmax runs over all experts. Descending, ties to the lower expert.

    Shapes: scores [T, E] → experts [T, k] int64, weights [T, k].
    """
    probabilities, experts = scores.softmax(-1).sort(dim=-1, descending=True, stable=True)
    chosen = probabilities[:, :experts_per_token]
    return experts[:, :experts_per_token], chosen / chosen.sum(-1, keepdim=True)
