"""What a prefix is: the state of every layer after its tokens, as one value that can be cloned.

Owns the KV caches, convolution windows and recurrent states. A Gated DeltaNet layer cannot step back, so a
prefix that must be kept is cloned before the model goes on (a KV cache alone can be cropped).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ninfer.model.config import AttentionConfig, GdnConfig, TextConfig


class KvCache:
    """Normed and rotated keys, and values, of one attention layer, in the order of the sequence."""

    def __init__(self, config: AttentionConfig, dtype: torch.dtype) -> None:
        self._rows = torch.empty(2, 0, config.kv_heads, config.head_dim, dtype=dtype)
        self._length = 0

    @property
    def length(self) -> int:
        return self._length

    @property
    def keys(self) -> Tensor:
        """[S, Hkv, D]; a view that the next ``append`` may leave behind."""
        return self._rows[0, : self._length]

    @property
    def values(self) -> Tensor:
        """[S, Hkv, D]; as ``keys``."""
        return self._rows[1, : self._length]

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Add the rows of T further tokens; keys, values [T, Hkv, D]."""
        start, end = self._length, self._length + len(keys)
        if end > self._rows.shape[1]:
            # Room doubles, so that a long sequence is not copied for every token.
            grown = self._rows.new_empty(2, max(end, 2 * start), *self._rows.shape[2:])
            grown[:, :start] = self._rows[:, :start]
            self._rows = grown
        self._rows[0, start:end], self._rows[1, start:end] = keys, values
        self._length = end

    def crop(self, length: int) -> None:
        """Forget all but the first ``length`` rows."""
        self._length = min(self._length, length)

    def clone(self) -> KvCache:
        """An independent copy without spare room."""
        copy = object.__new__(KvCache)
        copy._rows, copy._length = self._rows[:, : self._length].clone(), self._length
        return copy


class GdnState:
    """The last K - 1 convolution inputs [K - 1, C] and the recurrent state [Hv, dk, dv] of one layer."""

    def __init__(self, config: GdnConfig, dtype: torch.dtype) -> None:
        self.window = torch.zeros(config.taps - 1, config.channels, dtype=dtype)
        self.recurrent = torch.zeros(config.value_heads, config.key_dim, config.value_dim, dtype=dtype)

    def clone(self) -> GdnState:
        """An independent copy."""
        copy = object.__new__(GdnState)
        copy.window, copy.recurrent = self.window.clone(), self.recurrent.clone()
        return copy


@dataclass(slots=True)
class State:
    """The whole text model after ``length`` tokens; the forward pass advances it in place."""

    length: int
    layers: list[KvCache | GdnState]

    def clone(self) -> State:
        """An independent copy: the prefix to come back to."""
        return State(self.length, [layer.clone() for layer in self.layers])


def empty_state(config: TextConfig, dtype: torch.dtype) -> State:
    """The state before the first token."""
    layers: list[KvCache | GdnState] = []
    for kind in config.layer_types:
        if kind == "full_attention":
            assert config.attention is not None
            layers.append(KvCache(config.attention, dtype))
        else:
            assert config.gdn is not None
            layers.append(GdnState(config.gdn, dtype))
    return State(0, layers)
