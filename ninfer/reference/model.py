"""The text model: tokens to final hidden rows and logits.

Owns the residual stream from embedding to output head. Knows nothing of requests, sampling or files.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ninfer.model.config import TextConfig
from ninfer.reference.layers import Weights, decoder_layer
from ninfer.reference.ops.embedding import embedding
from ninfer.reference.ops.lm_head import lm_head
from ninfer.reference.ops.rms_norm import rms_norm
from ninfer.reference.state import State, empty_state


class ReferenceModel:
    """A dense or mixture-of-experts text model over parameters by logical name.

    The dtype of the weights is the dtype of the arithmetic: float32, or float64 to judge rounding.
    """

    def __init__(self, config: TextConfig, weights: Mapping[str, Tensor]) -> None:
        self.config = config
        self.dtype = weights["text/token_embedding"].dtype
        self._weights = weights
        self._layers = [section(weights, f"text/layers/{layer}") for layer in range(config.layers)]

    def new_state(self) -> State:
        """The state before the first token."""
        return empty_state(self.config, self.dtype)

    def embed(self, tokens: Tensor) -> Tensor:
        """Embedding rows: tokens [T] int64 → [T, H]."""
        return embedding(tokens, self._weights["text/token_embedding"])

    def forward(self, tokens: Tensor, positions: Tensor, state: State) -> Tensor:
        """The hidden rows after the final norm; ``state`` advances by T tokens in place.

        Shapes: tokens [T] int64 (T ≥ 1), positions [3, T] int64 → [T, H].
        """
        x = self.embed(tokens)
        for weights, layer in zip(self._layers, state.layers, strict=True):
            x = decoder_layer(x, weights, self.config, positions, layer, state.length)
        state.length += len(tokens)
        return rms_norm(x, self._weights["text/final_norm"], self.config.rms_eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """Shapes: hidden [T, H] after the final norm → [T, V]."""
        return lm_head(hidden, self._weights["text/output_head"])


def section(weights: Mapping[str, Tensor], prefix: str) -> Weights:
    """The parameters below ``prefix/``, by the rest of their names."""
    start = f"{prefix}/"
    return {name.removeprefix(start): weight for name, weight in weights.items() if name.startswith(start)}


def text_positions(start: int, count: int) -> Tensor:
    """Positions [3, count] of text rows: every axis counts on from ``start``."""
    return torch.arange(start, start + count).expand(3, count)
