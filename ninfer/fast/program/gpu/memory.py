"""KV pages and state images on a device; who owns each is the program's business.

Pools are tensors [pages, KV heads, 64, words] per attention layer; an image is one row of float32: per Gated
DeltaNet layer a ring of the last four inputs, then the recurrent state, and the last residual row. With its
pages it is a whole prefix.
"""

from __future__ import annotations

import math
from itertools import accumulate

import torch

from ninfer.fast.memory.pages import PageOwners
from ninfer.fast.ops.attention.encodings import encoding
from ninfer.fast.ops.attention.gpu import PAGE, Pool
from ninfer.fast.ops.gdn.gpu import TAPS
from ninfer.model.config import AttentionConfig, TextConfig

_ALIGNMENT = 256  # bytes, as the device's allocator aligns


def page_bytes(config: TextConfig, kv_format: str, mtp: bool = False) -> int:
    """Bytes of one page over all attention layers, the MTP head's too; 0 for a model without attention."""
    if config.attention is None:
        return 0
    row = sum(encoding(kv_format, role, config.attention.head_dim).row_bytes for role in ("key", "value"))
    layers = config.layer_types.count("full_attention") + mtp
    return layers * config.attention.kv_heads * PAGE * row


def mtp_layer(config: TextConfig) -> int:
    """The number under which pages keep the prediction head's keys and values: behind the layers'."""
    return len(config.layer_types)


class GpuPages(PageOwners):
    """``pages`` pages over all attention layers in one KV format.

    Page ``scratch`` lies behind them and takes what nobody reads.
    """

    def __init__(
        self, config: AttentionConfig, layers: list[int], pages: int, kv_format: str, device: torch.device
    ) -> None:
        super().__init__(pages)
        self.scratch = pages
        key, value = (encoding(kv_format, role, config.head_dim) for role in ("key", "value"))
        rows = (pages + 1, config.kv_heads, PAGE)
        # One allocation: the device's allocator would round each of the four planes of a layer up by itself.
        planes = (
            (key.words, key.word_type), (key.scales, key.scale_type),
            (value.words, value.word_type), (value.scales, value.scale_type),
        )  # fmt: skip
        sizes = [math.prod(rows) * words * kind.itemsize for words, kind in planes]
        begins = [0, *accumulate(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes * len(layers))]
        arena = torch.zeros(begins[-1], dtype=torch.uint8, device=device)
        self.layers: dict[int, Pool] = {}
        for index, layer in enumerate(layers):
            keys, key_scales, values, value_scales = (
                arena[begin : begin + size].view(kind).view(*rows, words)
                for begin, size, (words, kind) in zip(begins[4 * index :], sizes, planes, strict=False)
            )
            self.layers[layer] = Pool(keys, key_scales, values, value_scales, key, value)

    def copy(self, source: int, target: int) -> None:
        """Keys, values and scales of one page into another, over all layers; in the order of the stream."""
        for pool in self.layers.values():
            for tensor in (pool.keys, pool.values, pool.key_scales, pool.value_scales):
                tensor[target].copy_(tensor[source])


class GpuStates:
    """``slots`` images [slots, floats] on a device, with the members of ``StateImages``.

    A slot is handed out zeroed and comes back by ``free``.
    """

    def __init__(self, config: TextConfig, slots: int, device: torch.device) -> None:
        self.window_at: dict[int, int] = {}
        self.state_at: dict[int, int] = {}
        size = 0
        for layer, kind in enumerate(config.layer_types):
            if kind != "linear_attention":
                continue
            assert config.gdn is not None
            self.window_at[layer] = size
            size += TAPS * config.gdn.channels
            self.state_at[layer] = size
            size += config.gdn.value_heads * config.gdn.key_dim * config.gdn.value_dim
        self.hidden_at = size
        self.images = torch.zeros((slots, size + config.hidden), dtype=torch.float32, device=device)
        self.slots = slots
        self._free = list(range(slots))[::-1]

    @property
    def free_slots(self) -> int:
        return len(self._free)

    @property
    def image_bytes(self) -> int:
        return 4 * self.images.shape[1]

    def allocate(self) -> int:
        """A zeroed slot. Errors: ``IndexError`` when none is free (the scheduler reserves before)."""
        slot = self._free.pop()
        self.images[slot].zero_()
        return slot

    def free(self, slot: int) -> None:
        """Give a slot back."""
        assert slot not in self._free, f"state slot {slot} freed twice"
        self._free.append(slot)

    def copy(self, source: int, target: int) -> None:
        """One whole image into another, in the order of the stream."""
        self.images[target].copy_(self.images[source])

    def take(self) -> int:
        """A slot with whatever it holds, for a whole image to be copied into. Errors: as ``allocate``."""
        return self._free.pop()
