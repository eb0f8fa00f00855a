"""Attention of a prefill chunk over its lane's pages, in blocks of keys with a running softmax.

Keys and values are read back from the pages, so that a chunk sees exactly what decoding will see.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ninfer.fast.memory.pages import PagePool
from ninfer.fast.ops.attention.contract import GROUP, KV_BF16, KV_F32
from ninfer.fast.ops.control import PAGE_TOKENS

# Keys per block: blocks lie at absolute multiples, and a block's scores stay in cache.
KEY_BLOCK = 512


def attend_chunk(
    query: Tensor, pages: PagePool, layer: int, block_table: npt.NDArray[np.int32], start: int
) -> Tensor:
    """softmax(q Kᵀ) V for the chunk's rows, each over the keys up to its own place.

    Shapes: query [T, query heads, D], normed, rotated and scaled, row r at place ``start + r``
    → [T, query heads, D].
    """
    count, query_heads, size = query.shape
    kv_heads = pages.layers[layer].keys.shape[1]
    group = query_heads // kv_heads
    output = torch.empty(count, query_heads, size)
    places = torch.arange(start, start + count).repeat_interleave(group)[:, None]
    for head in range(kv_heads):
        members = slice(head * group, (head + 1) * group)
        rows = query[:, members].reshape(count * group, size)
        largest = torch.full((count * group, 1), -torch.inf)
        total, sums = torch.zeros(count * group, 1), torch.zeros(count * group, size)
        for begin in range(0, start + count, KEY_BLOCK):
            end = min(begin + KEY_BLOCK, start + count)
            keys, values = page_rows(pages, layer, head, block_table, begin, end)
            scores = rows @ keys.T
            if end > start:
                scores.masked_fill_(torch.arange(begin, end)[None] > places, -torch.inf)
            ceiling = torch.maximum(largest, scores.amax(1, keepdim=True))
            weights = torch.exp(scores - ceiling)
            kept = torch.exp(largest - ceiling)
            total = total * kept + weights.sum(1, keepdim=True)
            sums = sums * kept + weights @ values
            largest = ceiling
        output[:, members] = (sums / total).view(count, group, size)
    return output


def page_rows(
    pages: PagePool, layer: int, head: int, block_table: npt.NDArray[np.int32], begin: int, end: int
) -> tuple[Tensor, Tensor]:
    """Keys and values [end − begin, D] float32 of one KV head; ``begin`` is a multiple of 64."""
    pool = pages.layers[layer]
    ids = block_table[begin // PAGE_TOKENS : -(-end // PAGE_TOKENS)]
    keys, values = pool.keys[ids, head], pool.values[ids, head]
    count, size = end - begin, keys.shape[-1]
    if pages.format == KV_F32:
        return tuple(torch.from_numpy(part).view(-1, size)[:count] for part in (keys, values))  # type: ignore[return-value]
    if pages.format == KV_BF16:
        key = torch.from_numpy(keys.view(np.int16)).view(torch.bfloat16)
        value = torch.from_numpy(values.view(np.float16))
        return key.float().view(-1, size)[:count], value.float().view(-1, size)[:count]
    return (
        _grouped(keys, pool.key_scales[ids, head])[:count],
        _grouped(values, pool.value_scales[ids, head])[:count],
    )


def _grouped(codes: npt.NDArray[np.int8], scales: npt.NDArray[np.float16]) -> Tensor:
    """Int8 rows times the fp16 scale of each 64: [pages, 64, D] → [pages · 64, D]."""
    size = codes.shape[-1]
    whole = torch.from_numpy(codes).view(-1, size // GROUP, GROUP).float()
    return (whole * torch.from_numpy(scales).view(-1, size // GROUP, 1).float()).view(-1, size)
