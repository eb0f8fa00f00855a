"""The multi-token prediction head: one attention layer that drafts ahead of the text model.

Owns its forward pass and the alignment of its own KV cache. Row i joins the *next* token x_{i+1} with the
text model's final hidden row h_i at position p_i and predicts x_{i+2}: tokens shift, hiddens and positions
do not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ninfer.model.config import TextConfig
from ninfer.reference.layers import decoder_layer
from ninfer.reference.model import ReferenceModel, section
from ninfer.reference.ops.linear import linear
from ninfer.reference.ops.rms_norm import rms_norm
from ninfer.reference.state import KvCache


class MtpHead:
    """Drafts for ``text``, whose embedding and output head it shares."""

    def __init__(self, config: TextConfig, weights: Mapping[str, Tensor], text: ReferenceModel) -> None:
        self._config = config
        self._text = text
        self._weights = weights
        self._layer = section(weights, "mtp/layers/0")

    def new_cache(self) -> KvCache:
        """The head's own KV cache before the first pair."""
        assert self._config.attention is not None
        return KvCache(self._config.attention, self._text.dtype)

    def forward(self, next_tokens: Tensor, hidden: Tensor, positions: Tensor, cache: KvCache) -> Tensor:
        """``u = fc([norm(embed(x_{i+1})) ; norm(h_i)])``, a decoder layer, a norm; the cache grows by T.

        Shapes: next_tokens [T] int64, hidden [T, H], positions [3, T] → [T, H], which ``logits`` turns into
        predictions and which stands in for ``hidden`` when the head drafts from its own draft.
        """
        eps = self._config.rms_eps
        embedded = rms_norm(self._text.embed(next_tokens), self._weights["mtp/embedding_norm"], eps)
        joined = torch.cat([embedded, rms_norm(hidden, self._weights["mtp/hidden_norm"], eps)], dim=-1)
        u = linear(joined, self._weights["mtp/input_projection"])
        u = decoder_layer(u, self._layer, self._config, positions, cache, cache.length)
        return rms_norm(u, self._weights["mtp/final_norm"], eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """Shapes: hidden [T, H] as ``forward`` returns it → [T, V]."""
        return self._text.logits(hidden)

    def draft(
        self,
        hidden: Tensor,
        position: Tensor,
        count: int,
        cache: KvCache,
        choose: Callable[[Tensor, int], int] = lambda logits, index: int(logits.argmax()),
    ) -> list[int]:
        """``count`` drafts after the newest pair that ``forward`` has taken.

        ``hidden`` [H] is that pair's output row and ``position`` [3] its position. Each draft is fed back
        with the head's own output in place of a true hidden row. The rows this adds to the cache are dropped
        again: they come back, from true hiddens, with the next call of ``forward``. ``choose`` makes a draft
        of its logits [V] and its number from 0; greedy without it.
        """
        committed, drafts = cache.length, list[int]()
        while True:
            drafts.append(choose(self.logits(hidden[None])[0], len(drafts)))
            if len(drafts) == count:
                break
            position = position + 1
            hidden = self.forward(torch.tensor(drafts[-1:]), hidden[None], position[:, None], cache)[0]
        cache.crop(committed)
        return drafts
