"""Cases of Gated DeltaNet: rounds, verified blocks and their fold, and a prefill chunk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from unittest.mock import patch

import torch
from torch import Tensor

from ninfer.fast.ops.gdn import gpu as gdn
from ninfer.fast.ops.gdn.gpu_chunks import CHUNK, ChunkBuffers, delta_chunk
from ninfer.fast.ops.gpu_control import BLOCK_WORDS
from ninfer.reference.ops.causal_conv import causal_conv
from ninfer.reference.ops.gated_norm import gated_norm
from ninfer.reference.ops.gdn_chunked import gdn_chunked
from ninfer.reference.ops.gdn_gates import gdn_gates
from ninfer.reference.ops.gdn_recurrent import gdn_recurrent
from ninfer.reference.ops.l2_norm import l2_norm
from tools.gpu_check.op_cases.setting import Row, Setting, apart, different, distance, poison


@dataclass(frozen=True, slots=True)
class Sizes:
    """Heads of a layer and their dimensions."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int

    @property
    def keys(self) -> int:
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        return 2 * self.keys + self.values

    @property
    def state(self) -> int:
        return self.values * self.key_dim


class Layers:
    """Layers of random weights over one set of state images; what is laid down is poisoned."""

    def __init__(
        self, z: Sizes, rows: int, slots: int, layers: int, parts: int, kind: torch.dtype = torch.float32
    ) -> None:
        self.sizes = z
        size = 4 * z.channels + z.state
        self.images = torch.randn(slots, layers * size)
        inputs = torch.randn(layers, rows, z.channels + z.values).to(kind)
        self.records = gdn.Records(
            inputs, poison(layers, rows, z.keys), poison(layers, rows, z.value_heads),
            poison(layers, rows, z.values),
        )  # fmt: skip
        self.nets, self.rows = [], []
        for layer in range(layers):
            at, kept = layer * size, self.records
            self.nets.append(
                gdn.DeltaNet(
                    inputs[layer], z.channels, torch.randn(parts, rows, 2 * z.value_heads).to(kind), 0,
                    z.value_heads, torch.randn(4, z.channels), torch.randn(z.value_heads),
                    torch.randn(z.value_heads), torch.randn(z.value_dim), self.images, at,
                    at + 4 * z.channels, z.key_heads, z.value_heads, z.key_dim, z.value_dim, 1e-6,
                )
            )  # fmt: skip
            self.rows.append(
                gdn.DeltaRows(
                    poison(rows, z.keys), kept.keys[layer], kept.decays[layer], poison(rows, z.value_heads),
                    poison(rows, z.value_heads), kept.deltas[layer], poison(rows, z.values),
                    torch.zeros(rows, z.value_heads, dtype=torch.int32),
                )
            )  # fmt: skip


def block(first: int, columns: int, slot: int, commit: bool, position: int) -> list[int]:
    """A control record."""
    return [first, columns, slot, int(commit), position] + [0] * (BLOCK_WORDS - 5)


def reference(
    net: gdn.DeltaNet, images: Tensor, record: list[int], chunked: bool = False,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The reference's mixed rows of a block, and the state after it [value heads, d_k, d_v]."""
    first, columns, slot, _, position = record[:5]
    image, rows = images[slot].to(dtype), slice(first, first + columns)
    z = Sizes(net.key_heads, net.value_heads, net.key_dim, net.value_dim)
    ring = image[net.window_at : net.window_at + 4 * z.channels].view(4, z.channels)
    window = torch.stack([ring[(position - back) % 4] for back in (3, 2, 1)])
    mixed, _ = causal_conv(net.projected[rows, : z.channels].to(dtype), window, net.convolution.to(dtype))
    query, key = (
        part.reshape(columns, z.key_heads, z.key_dim).repeat_interleave(z.value_heads // z.key_heads, 1)
        for part in (mixed[:, : z.keys], mixed[:, z.keys : 2 * z.keys])
    )
    gates = net.gates.double().sum(0)[rows].to(dtype)
    a, b = gates[:, net.a_at : net.a_at + z.value_heads], gates[:, net.b_at : net.b_at + z.value_heads]
    decay, beta = gdn_gates(a, b, net.a_log.to(dtype), net.dt_bias.to(dtype))
    state = image[net.state_at : net.state_at + z.state].view(z.value_heads, z.value_dim, z.key_dim)
    value = mixed[:, 2 * z.keys :].reshape(columns, z.value_heads, z.value_dim)
    read = (l2_norm(query) / z.key_dim**0.5, l2_norm(key), value, decay, beta, state.transpose(1, 2))
    output, after = gdn_chunked(*read, position) if chunked else gdn_recurrent(*read)
    gate = net.projected[rows, z.channels :].to(dtype).reshape(columns, z.value_heads, z.value_dim)
    return gated_norm(output, gate, net.norm.to(dtype), 1e-6).flatten(1), after


def state_of(net: gdn.DeltaNet, slot: int) -> Tensor:
    """A slot's state [value heads, d_k, d_v]."""
    size = net.value_heads * net.value_dim * net.key_dim
    flat = net.images[slot, net.state_at : net.state_at + size]
    return flat.view(net.value_heads, net.value_dim, net.key_dim).transpose(1, 2)


def ring_of(net: gdn.DeltaNet, slot: int) -> Tensor:
    """A slot's last inputs [4, channels]."""
    return net.images[slot, net.window_at : net.window_at + 4 * net.channels].view(4, net.channels)


def rounds(s: Setting, z: Sizes, widths: Sequence[int]) -> Iterator[Row]:
    """One column of every lane, which commits."""
    for width in widths:
        layers = Layers(z, width, width + 1, 1, 2)
        net, before = layers.nets[0], layers.images.clone()
        records = [block(i, 1, width - i, True, 5 + i) for i in range(width)]
        y = poison(width + 1, z.values + 8, dtype=s.activations)
        blocks = torch.tensor(records, dtype=torch.int32)
        gdn.delta(net, layers.rows[0], blocks, y, width, s.tiles.delta())
        answers = [reference(net, before, record) for record in records]
        wanted = torch.cat([rows for rows, _ in answers])
        yield Row("delta round", "", width, distance(y, wanted), s.stored() + 5e-5)
        states = [
            distance(state_of(net, record[2]).flatten(1), after.flatten(1))
            for record, (_, after) in zip(records, answers, strict=True)
        ]
        yield Row("delta state", "", width, max(states), 2e-5)
        wrong = sum(
            different(ring_of(net, record[2])[record[4] % 4], net.projected[record[0], : z.channels])
            for record in records
        )
        wrong += different(layers.images[0], before[0])
        yield Row("delta ring", "", width, wrong, 0)


def verified(s: Setting, z: Sizes, columns: Sequence[int]) -> Iterator[Row]:
    """Two lanes' blocks that do not commit, then the fold of some of their columns in every layer."""
    for width in columns:
        layers = Layers(z, 2 * width, 3, 2, 2)
        before = layers.images.clone()
        records = [block(0, width, 2, False, 5), block(width, width, 1, False, 8)]
        kept = [[r[0], max(1, width // (2 + i)), *r[2:]] for i, r in enumerate(records)]
        blocks = torch.tensor(records, dtype=torch.int32)
        for net, rows in zip(layers.nets, layers.rows, strict=True):
            y = poison(2 * width + 1, z.values + 8, dtype=s.activations)
            gdn.delta(net, rows, blocks, y, 2, s.tiles.delta())
            wanted = torch.cat([reference(net, before, record)[0] for record in records])
            yield Row("delta block", "", width, distance(y, wanted), s.stored() + 5e-5)
        yield Row("delta kept still", "", width, different(layers.images, before), 0)
        gdn.fold(layers.nets[0], layers.records, torch.tensor(kept, dtype=torch.int32), 2)
        errors, wrong = [], different(layers.images[0], before[0])
        for net in layers.nets:
            for record in kept:
                after = reference(net, before, record)[1]
                errors.append(distance(state_of(net, record[2]).flatten(1), after.flatten(1)))
                wrong += _ring_differs(net, record)
        yield Row("delta fold", "", width, max(errors), 5e-5)
        yield Row("delta fold ring", "", width, wrong, 0)


def _ring_differs(net: gdn.DeltaNet, record: list[int]) -> float:
    """How many of the last inputs of a block are not in its lane's ring."""
    first, columns, slot, _, position = record[:5]
    wrong = 0.0
    for column in range(max(0, columns - 4), columns):
        row = net.projected[first + column, : net.channels].float()
        wrong += different(ring_of(net, slot)[(position + column) % 4], row)
    return wrong


def chunk(s: Setting, z: Sizes, start: int, count: int) -> Iterator[Row]:
    """A prefill chunk: no further from float64 than 1.5 times plain PyTorch in the activation type is."""
    layers = Layers(z, count, 2, 1, 1, s.activations)
    net, before, kind = layers.nets[0], layers.images.clone(), s.activations
    values, pieces = (count, z.value_heads, z.value_dim), count // CHUNK + 2
    keys = (count, z.key_heads, z.key_dim)
    buffers = ChunkBuffers(
        poison(*keys, dtype=kind), poison(*keys, dtype=kind), poison(*values, dtype=kind),
        poison(*values, dtype=kind), poison(count, z.value_heads, z.key_dim, dtype=kind),
        poison(count, z.value_heads, CHUNK, dtype=kind), poison(count, z.value_heads),
        poison(pieces, z.value_heads, CHUNK, CHUNK), poison(*values, dtype=kind),
    )  # fmt: skip
    y = poison(count, z.values, dtype=kind)
    record = block(0, count, 1, True, start)
    delta_chunk(net, buffers, 1, start, count, y)
    gdn.shift(net, torch.tensor([record], dtype=torch.int32), 1)
    wanted, after = reference(net, before, record)
    plain, plain_after = _plain(net, before, record, kind)
    least = 10 * s.sums
    name = f"delta chunk @{start}"
    yield Row(name, "", count, apart(y, wanted), max(1.5 * apart(plain, wanted), least))
    error, bound = apart(state_of(net, 1), after), max(1.5 * apart(plain_after, after), least)
    yield Row(f"{name} state", "", count, error, bound)
    wrong = _ring_differs(net, record) + different(layers.images[0], before[0])
    yield Row(f"{name} ring", "", count, wrong, 0)


def _plain(net: gdn.DeltaNet, images: Tensor, record: list[int], kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """The reference in the activation type; systems, which bf16 has no solver for, in float32."""
    solve = torch.linalg.solve_triangular

    def wide(system: Tensor, right: Tensor, **options: bool) -> Tensor:
        return solve(system.float(), right.float(), **options).to(right.dtype)

    narrow = kind in (torch.bfloat16, torch.float16)
    with patch("torch.linalg.solve_triangular", wide) if narrow else nullcontext():
        return reference(net, images, record, True, kind)
