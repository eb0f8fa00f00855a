"""Cases of attention: append, rounds and verify blocks with their merge, and a prefill chunk.

One lane's keys are appended; rows at any of its places then meet the keys up to their own. Each step's oracle
takes what the step before stored, so that every step answers for its own error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ninfer.fast.ops.attention import encodings as e
from ninfer.fast.ops.attention import gpu as attention
from ninfer.fast.ops.attention.gpu_chunk import attend_chunk
from ninfer.fast.ops.gpu_control import BLOCK_WORDS, ROW_WORDS
from ninfer.model.config import AttentionConfig, rotary_axis
from ninfer.reference.ops.attention import gated_attention
from ninfer.reference.ops.rms_norm import rms_norm
from ninfer.reference.ops.rope import rope
from tools.gpu_check.op_cases.setting import Row, Setting, different, distance, poison
from tools.gpu_check.oracle import hadamard, stored_rows

# How far a stored row may lie from the row, relative to its largest value: half a step of the codes.
_STEPS = {e.BF16: 2**-8, e.FP16: 2**-8, e.INT8: 0.0045, e.FP8: 0.066, e.NVFP4: 0.25}
_LANE = 1  # the table that is the lane's


@dataclass(frozen=True, slots=True, eq=False)
class Lane:
    """Keys and values of one lane as appended, in float64 too; ``query`` rows as stored and as they mean."""

    config: AttentionConfig
    heads: attention.Heads
    pool: attention.Pool
    tables: Tensor
    control: Tensor
    query: Tensor
    keys: Tensor
    values: Tensor

    @property
    def meant(self) -> Tensor:
        """The stored queries without their scale and rotation, float64."""
        query = self.query.double() * self.config.head_dim**0.5
        if not self.pool.key.rotated:
            return query
        return query @ hadamard(self.config.head_dim, query.device)

    def wanted(self, places: slice, gate: Tensor) -> Tensor:
        """The rows at ``places`` [rows, heads · D]."""
        stop = places.stop
        query = self.meant[places]
        return gated_attention(query, gate, self.keys[:stop], self.values[:stop]).flatten(1)

    def gates(self, projected: Tensor) -> Tensor:
        """Gates of ``projected`` rows [rows, heads, D] float64."""
        at, width = self.heads.gate_at, self.config.query_heads * self.config.head_dim
        return projected[:, at : at + width].double().view(len(projected), -1, self.config.head_dim)


def _heads(config: AttentionConfig, tokens: int) -> attention.Heads:
    query, kv = config.query_heads * config.head_dim, config.kv_heads * config.head_dim
    exponents = torch.arange(0, config.rotary_dim, 2).float() / config.rotary_dim
    axes = [rotary_axis(pair, config.rope.mrope_section) for pair in range(config.rotary_dim // 2)]
    return attention.Heads(
        torch.randn(tokens, 2 * query + 2 * kv), 0, query, 2 * query, 2 * query + kv,
        torch.rand(config.head_dim) + 0.5, torch.rand(config.head_dim) + 0.5,
        1 / torch.tensor(config.rope.theta) ** exponents, torch.tensor(axes, dtype=torch.int32),
        config.query_heads, config.kv_heads, config.head_dim, 1e-6,
    )  # fmt: skip


def _pool(config: AttentionConfig, kv_format: str, pages: int) -> attention.Pool:
    key, value = (e.encoding(kv_format, role, config.head_dim) for role in ("key", "value"))

    def plane(words: int, kind: torch.dtype) -> Tensor:
        return torch.full((pages, config.kv_heads, 64, words), 77, dtype=torch.int8).to(kind)

    return attention.Pool(
        plane(key.words, key.word_type), plane(key.scales, key.scale_type),
        plane(value.words, value.word_type), plane(value.scales, value.scale_type), key, value,
    )  # fmt: skip


def _appended(s: Setting, config: AttentionConfig, kv_format: str, tokens: int) -> Lane:
    heads, pages = _heads(config, tokens), -(-tokens // 64)
    pool = _pool(config, kv_format, pages + 3)
    # Pages in no order, none of them the scratch page.
    tables = torch.zeros(2, pages + 1, dtype=torch.int32)
    tables[_LANE, :pages] = (1 + torch.randperm(pages + 2)[:pages]).int()
    control = torch.zeros(tokens, ROW_WORDS, dtype=torch.int32)
    control[:, 1] = torch.arange(tokens)
    control[:, 2:5] = torch.arange(tokens)[:, None] + torch.tensor([0, 3, 5])
    control[:, 5] = _LANE
    coarse = pool.key.number != e.BF16 and s.activations == torch.bfloat16
    kind = torch.float16 if coarse else s.activations
    query = poison(tokens, config.query_heads, config.head_dim, dtype=kind)
    attention.append(heads, pool, control, tables, query, tokens)
    lane: Any = SimpleNamespace(frontier=tokens, pages=tables[_LANE, :pages].tolist())
    keys, values = stored_rows(pool, lane, config.head_dim)
    return Lane(config, heads, pool, tables, control, query, keys, values)


def cache(
    s: Setting, config: AttentionConfig, kv_format: str, tokens: int, widths: Sequence[int],
    columns: Sequence[int], chunks: Sequence[tuple[int, int]],
) -> Iterator[Row]:  # fmt: skip
    """One KV format: append; rounds of ``widths`` rows; blocks of ``columns``; chunks (start, count)."""
    lane = _appended(s, config, kv_format, tokens)
    yield from _append_rows(lane, kv_format, tokens)
    for width in widths:
        places = torch.linspace(0, tokens - 1, width).long() if width > 1 else torch.tensor([tokens - 1])
        yield Row(f"attend round @{tokens}", kv_format, width, *_round(s, lane, places, 1))
    for width in columns:
        places = torch.arange(tokens - width, tokens)
        yield Row(f"attend block @{tokens}", kv_format, width, *_round(s, lane, places, width))
    for start, count in chunks:
        yield Row(f"attend chunk @{start}", kv_format, count, *_chunk(s, lane, start, count))


def _append_rows(lane: Lane, kv_format: str, tokens: int) -> Iterator[Row]:
    config, heads, pool = lane.config, lane.heads, lane.pool
    x = heads.projected.double().view(tokens, -1, config.head_dim)
    kv, query_heads = config.kv_heads, config.query_heads
    axes = lane.control[:, 2:5].T
    # Angles are worked out in float32.
    angles = 1e-5 + 2.5e-7 * tokens
    normed = rms_norm(x[:, :query_heads], heads.query_norm.double() - 1, 1e-6)
    wanted = rope(normed, axes, config.rope).flatten(1)
    rounding = torch.finfo(lane.query.dtype).eps / 2
    # A rotation spreads what rounding did to each element.
    bound = angles + (3 if pool.key.rotated else 1) * rounding
    yield Row("append query", kv_format, tokens, distance(lane.meant.flatten(1), wanted), bound)
    keys = x[:, 2 * query_heads : 2 * query_heads + kv]
    keys = rope(rms_norm(keys, heads.key_norm.double() - 1, 1e-6), axes, config.rope)
    values = x[:, 2 * query_heads + kv :]
    for role, plane, found, rows in (
        ("keys", pool.key, lane.keys, keys), ("values", pool.value, lane.values, values)
    ):  # fmt: skip
        if plane.rotated:
            turn = hadamard(config.head_dim, found.device)
            found, rows = found @ turn, rows @ turn
        error = distance(found.flatten(0, 1), rows.flatten(0, 1))
        bound = _STEPS[plane.number] + 2**-8 + (angles if role == "keys" else 0)
        yield Row(f"append {role}", kv_format, tokens, error, bound)
    if pool.value.number in (e.BF16, e.FP16):
        kind = torch.bfloat16 if pool.value.number == e.BF16 else torch.float16
        exact = values.bfloat16().to(kind).double()
        yield Row("append value words", kv_format, tokens, different(lane.values, exact), 0)


def _round(s: Setting, lane: Lane, places: Tensor, columns: int) -> tuple[float, float]:
    """Error and bound of rows at ``places``, a block for each ``columns`` of them."""
    config, count = lane.config, len(places)
    sums = poison(count, config.query_heads, attention.SPLITS, config.head_dim)
    states = poison(count, config.query_heads, attention.SPLITS, 2)
    blocks = torch.zeros(count // columns, BLOCK_WORDS, dtype=torch.int32)
    blocks[:, 0] = torch.arange(0, count, columns)
    blocks[:, 1], blocks[:, 4], blocks[:, 5] = columns, places[::columns], _LANE
    heads = replace(lane.heads, projected=lane.heads.projected[places])
    query, control = lane.query[places], lane.control[places]
    attention.attend(query, lane.pool, blocks, lane.tables, sums, states, len(blocks), columns, s.activations)
    y = poison(count + 1, config.query_heads * config.head_dim + 8, dtype=s.activations)
    attention.merge(sums, states, control, heads, lane.pool.value.rotated, y, count)
    gates = lane.gates(heads.projected)
    if columns > 1:
        wanted = lane.wanted(slice(int(places[0]), int(places[-1]) + 1), gates)
    else:
        ends = places.tolist()
        wanted = torch.cat([lane.wanted(slice(p, p + 1), gates[i : i + 1]) for i, p in enumerate(ends)])
    return distance(y, wanted), s.stored() + s.halves + 2 * s.sums


def _chunk(s: Setting, lane: Lane, start: int, count: int) -> tuple[float, float]:
    config, pages = lane.config, -(-(start + count) // 64)
    places = slice(start, start + count)
    projected = lane.heads.projected[places].to(s.activations)
    y = poison(count + 1, config.query_heads * config.head_dim + 8, dtype=s.activations)
    expanded = None
    if lane.pool.key.number != e.BF16:
        shape = (pages, config.kv_heads, attention.PAGE, config.head_dim)
        expanded = (torch.zeros(shape, dtype=torch.int16), torch.zeros(shape, dtype=torch.int16))
    attend_chunk(
        replace(lane.heads, projected=projected), lane.query[places], lane.pool, lane.tables[_LANE], start,
        count, y, expanded, torch.arange(pages, dtype=torch.int32),
        torch.zeros(count, config.query_heads, config.head_dim, dtype=s.activations),
        s.tiles.chunk_attention(), s.activations,
    )  # fmt: skip
    wanted = lane.wanted(places, lane.gates(projected))
    wide = 2e-3 if expanded is not None else 0  # keys and values become fp16
    roundings = 2 if lane.pool.value.rotated else 1
    return distance(y, wanted), s.stored(roundings) + s.halves + wide + 2 * s.sums
