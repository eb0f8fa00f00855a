"""The reference along a given sequence: logits of every position in one pass, with a KV format's round trip.

Owns the loop over the layers, because the oracle must tell which experts a token went to and must be able to
send it elsewhere; every operation is the reference's own (``test_oracle.py`` holds the loop to its model).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from conformance.engine.kv import Stored, state_of
from conformance.engine.models import Model
from ninfer.model.config import MoeConfig, TextConfig
from ninfer.reference.layers import attention, dense, gated_delta_net
from ninfer.reference.model import ReferenceModel, section, text_positions
from ninfer.reference.ops.linear import linear
from ninfer.reference.ops.moe_experts import moe_experts
from ninfer.reference.ops.rms_norm import rms_norm
from ninfer.reference.state import KvCache

Routes = Mapping[int, npt.NDArray[np.int64]]
Scores = dict[int, npt.NDArray[np.float64]]


@dataclass(frozen=True, slots=True, eq=False)
class Forced:
    """One pass: ``logits`` [positions, V] in the model's precision; router scores [tokens, E] per layer."""

    logits: npt.NDArray[np.floating]
    scores: Scores


class Oracle:
    """The reference of one model in one precision and KV format."""

    def __init__(self, model: Model, dtype: torch.dtype, kv_format: str) -> None:
        self._model = ReferenceModel(model.config, model.weights[dtype])
        self._weights = model.weights[dtype]
        self._layers = [
            section(self._weights, f"text/layers/{layer}") for layer in range(model.config.layers)
        ]
        self._dtype, self._format = dtype, kv_format

    @property
    def config(self) -> TextConfig:
        return self._model.config

    @torch.inference_mode()
    def forced(
        self,
        tokens: Sequence[int],
        first: int,
        routes: Routes | None = None,
        stored: Mapping[int, Stored] | None = None,
    ) -> Forced:
        """Take in ``tokens``; logits after each token from index ``first`` on.

        ``routes``: experts [tokens, k] of some MoE layers; ``stored``: KV rows of every attention layer; both
        instead of the model's own choice.
        """
        config, scores = self.config, Scores()
        state = state_of(config, self._dtype, self._format, stored)
        positions = text_positions(0, len(tokens))
        x = self._model.embed(torch.tensor(tokens))
        for layer, (weights, memory) in enumerate(zip(self._layers, state.layers, strict=True)):
            normed = rms_norm(x, weights["input_norm"], config.rms_eps)
            if isinstance(memory, KvCache):
                assert config.attention is not None
                x = x + attention(normed, weights, config.attention, config.rms_eps, positions, memory)
            else:
                assert config.gdn is not None
                x = x + gated_delta_net(normed, weights, config.gdn, config.rms_eps, memory, 0)
            normed = rms_norm(x, weights["post_attention_norm"], config.rms_eps)
            if config.moe is None:
                x = x + dense(normed, weights)
                continue
            router = linear(normed, weights["moe/router"])
            scores[layer] = router.to(torch.float64).numpy()
            experts = torch.from_numpy(routes[layer]) if routes and layer in routes else None
            x = x + _mixture(normed, router, weights, config.moe, experts)
        hidden = rms_norm(x[first:], self._weights["text/final_norm"], config.rms_eps)
        return Forced(self._model.logits(hidden).numpy(), scores)


def _mixture(
    x: Tensor, router: Tensor, weights: Mapping[str, Tensor], config: MoeConfig, experts: Tensor | None
) -> Tensor:
    """``ninfer.reference.layers.mixture`` over ``experts`` [T, k] where they are given."""

    def each(name: str) -> list[Tensor]:
        return [weights[f"moe/experts/{expert}/{name}"] for expert in range(config.experts)]

    probabilities = router.softmax(-1)
    if experts is None:
        experts = probabilities.sort(dim=-1, descending=True, stable=True)[1][:, : config.experts_per_token]
    chosen = probabilities.gather(1, experts)
    strengths = chosen / chosen.sum(-1, keepdim=True)
    routed = moe_experts(x, experts, strengths, each("gate"), each("up"), each("down"))
    shared = dense(x, weights, "moe/shared")
    return routed + torch.sigmoid(linear(x, weights["moe/shared_score"])) * shared
