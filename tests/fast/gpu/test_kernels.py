"""GPU kernels in Triton's interpreter against the reference's operations (bf16 is proved on devices only)."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor

from ninfer.fast.ops.attention import encodings as e
from ninfer.fast.ops.attention import gpu as attention
from ninfer.fast.ops.attention.gpu_chunk import attend_chunk
from ninfer.fast.ops.linear import gpu as linear
from ninfer.fast.ops.moe import gpu as moe
from ninfer.fast.ops.rms_norm.gpu import Sums, combine
from ninfer.fast.ops.select import gpu as select
from ninfer.model.config import RopeConfig, rotary_axis
from ninfer.reference.ops.attention import gated_attention
from ninfer.reference.ops.moe_route import moe_route
from ninfer.reference.ops.rms_norm import rms_norm
from ninfer.reference.ops.rope import rope
from ninfer.sampling.draw import select_token
from ninfer.sampling.parameters import SamplingParameters
from tests.fast.gpu.weights import FORMATS, matrix

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def poison(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """What was not written shows."""
    return torch.full(shape, float("nan"), dtype=dtype)


def close(found: Tensor, wanted: Tensor, bound: float = 1e-5) -> None:
    """Within ``bound`` of the largest value."""
    assert not found.isnan().any()
    assert float((found - wanted).abs().max() / wanted.abs().max()) <= bound


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("kind", "bound"), [(torch.float32, 1e-5), (torch.float16, 2e-3)])
def test_linear_in_parts(name: str, kind: torch.dtype, bound: float) -> None:
    if (name, kind) == ("nvfp4", torch.float16):
        pytest.skip("codes times scales pass the range of fp16")
    packed, values = matrix(FORMATS[name], 200, 320)
    x = torch.zeros(5, packed.width, dtype=kind)
    x[:, :320] = torch.randn(5, 320)
    y = poison(2, 5, 256)
    linear.linear(x, packed, y, linear.Tile(64, 2, 128), 5)
    close(y[:, :, :200].sum(0), x[:, :320].float() @ values.T, bound)


@pytest.mark.parametrize("name", FORMATS)
def test_a_row_of_linear_does_not_know_its_neighbours(name: str) -> None:
    packed, _ = matrix(FORMATS[name], 64, 320)
    x = torch.randn(16, packed.width)
    alone, together = poison(1, 1, 64), poison(1, 16, 64)
    linear.linear(x[3:4], packed, alone, linear.Tile(64, 1, 64), 1)
    linear.linear(x, packed, together, linear.Tile(64, 1, 64), 16)
    close(together[0, 3], alone[0, 0], 1e-6)


@pytest.mark.parametrize("name", FORMATS)
def test_dequantise_embed_and_the_gated_product(name: str) -> None:
    packed, values = matrix(FORMATS[name], 128, 320)
    close(linear.dequantise(packed, poison(128 * packed.width))[:, :320].float(), values, 1e-6)
    rows = poison(3, 320)
    linear.embed(torch.tensor([5, 0, 127], dtype=torch.int32), packed, rows, 3)
    close(rows, values[[5, 0, 127]], 1e-6)
    x = torch.zeros(3, packed.width)
    x[:, :320] = 0.1 * torch.randn(3, 320)
    product = poison(3, 64)
    linear.linear(x, packed, product, linear.Tile(64, 1, 64), 3, linear.SWIGLU)
    both = x[:, :320] @ values.T
    close(product, torch.nn.functional.silu(both[:, 0::2]) * both[:, 1::2], 1e-4)


def test_partial_sums_join_the_stream_before_the_norm() -> None:
    hidden, parts, weight = torch.randn(3, 96), torch.randn(4, 3, 96), torch.randn(96)
    strengths, shared, score = torch.rand(3, 4), torch.randn(2, 3, 96), torch.randn(2, 3)
    gate = torch.sigmoid(score.sum(0))[:, None]
    wanted = hidden + (parts * strengths.T[:, :, None]).sum(0) + gate * shared.sum(0)
    y = poison(3, 128)
    combine(hidden, Sums(parts, strengths), shared, score, 1 + weight, y, 1e-6, 3)
    close(hidden, wanted)
    close(y[:, :96], rms_norm(wanted, weight, 1e-6))


def test_router_ties_go_to_the_lower_expert() -> None:
    logits = torch.randn(2, 6, 33)
    logits[:, 0] = 0
    choice, strengths = torch.zeros(6, 4, dtype=torch.int32), poison(6, 4)
    moe.route(logits, choice, strengths, 32, 6)
    experts, weights = moe_route(logits.sum(0)[:, :32], 4)
    assert torch.equal(choice.long(), experts)
    close(strengths, weights)


QUERY_HEADS, KV_HEADS, D, TOKENS = 4, 2, 64, 100
ROPE = RopeConfig(1e4, 0.25, (3, 3, 2))


@pytest.mark.parametrize(
    ("kv_format", "columns"),
    [("bf16", 3), ("bf16", 12), ("int8", 12), ("fp8", 3), ("nvfp4", 12), ("k8v4", 3)],
)
def test_attention_of_rounds_and_chunks(kv_format: str, columns: int) -> None:
    key, value = e.encoding(kv_format, "key", D), e.encoding(kv_format, "value", D)

    def plane(words: int, kind: torch.dtype) -> Tensor:
        return torch.full((6, KV_HEADS, 64, words), 77, dtype=torch.int8).to(kind)

    pool = attention.Pool(
        plane(key.words, key.word_type), plane(key.scales, key.scale_type),
        plane(value.words, value.word_type), plane(value.scales, value.scale_type), key, value,
    )  # fmt: skip
    projected = torch.randn(TOKENS, 2 * QUERY_HEADS * D + 2 * KV_HEADS * D)
    query_norm, key_norm = torch.rand(D) + 0.5, torch.rand(D) + 0.5
    frequencies = 1 / torch.tensor(1e4) ** (torch.arange(0, 16, 2).float() / 16)
    axes = torch.tensor([rotary_axis(pair, (3, 3, 2)) for pair in range(8)], dtype=torch.int32)
    heads = attention.Heads(
        projected, 0, QUERY_HEADS * D, 2 * QUERY_HEADS * D, 2 * QUERY_HEADS * D + KV_HEADS * D,
        query_norm, key_norm, frequencies, axes, QUERY_HEADS, KV_HEADS, D, 1e-6,
    )  # fmt: skip
    rows = torch.zeros(TOKENS, 8, dtype=torch.int32)
    rows[:, 1] = torch.arange(TOKENS)
    rows[:, 2:5] = torch.arange(TOKENS)[:, None] + torch.tensor([0, 3, 5])
    rows[:, 5] = 1
    tables = torch.tensor([[0, 0], [5, 2]], dtype=torch.int32)
    query = poison(TOKENS, QUERY_HEADS, D)
    attention.append(heads, pool, rows, tables, query, TOKENS)
    keys, values = stored(pool, tables[1])
    x = projected.view(TOKENS, -1, D)
    wanted_query = rope(rms_norm(x[:, :QUERY_HEADS], query_norm - 1, 1e-6), rows[:, 2:5].T, ROPE)
    gate = x[:, QUERY_HEADS : 2 * QUERY_HEADS]
    wanted = gated_attention(wanted_query.double(), gate.double(), keys, values).flatten(1)
    # A block of some columns at the end, then a chunk from the middle on.
    sums, states = poison(columns, QUERY_HEADS, 64, D), poison(columns, QUERY_HEADS, 64, 2)
    blocks = torch.tensor([[0, columns, 0, 0, TOKENS - columns, 1, 0, 0]], dtype=torch.int32)
    y = poison(TOKENS, QUERY_HEADS * D)
    last = dataclasses.replace(heads, projected=projected[-columns:])
    attention.attend(query[-columns:], pool, blocks, tables, sums, states, 1, columns, torch.float32)
    attention.merge(sums, states, rows[-columns:], last, value.rotated, y[-columns:], columns)
    close(y[-columns:].double(), wanted[-columns:], 1e-5)
    begin = 40
    late = dataclasses.replace(heads, projected=projected[begin:])
    wide = tuple(torch.zeros(2, KV_HEADS, 64, D, dtype=torch.int16) for _ in range(2))
    attend_chunk(
        late, query[begin:], pool, tables[1], begin, TOKENS - begin, y[begin:],
        None if kv_format == "bf16" else (wide[0], wide[1]), torch.arange(2, dtype=torch.int32),
        torch.zeros(TOKENS, QUERY_HEADS, D), (32, 32, 4, 1), torch.float32,
    )  # fmt: skip
    close(y[begin:].double(), wanted[begin:], 1e-3)


def stored(pool: attention.Pool, table: Tensor) -> tuple[Tensor, Tensor]:
    """A lane's keys and values as the pool holds them, float64 in their own basis."""
    from tools.gpu_check.oracle import stored_rows

    class Lane:
        frontier = TOKENS
        pages = tuple(int(page) for page in table)

    return stored_rows(pool, Lane(), D)  # type: ignore[arg-type]


def test_draws_are_those_of_the_sampling_rules() -> None:
    random, count, vocabulary = np.random.default_rng(0), 9, 2900
    logits = (4 * torch.randn(count, 3000)).round() / 4
    logits[:, 2990] = 100  # outside the vocabulary
    numbers = torch.zeros(count, select.NUMBERS, dtype=torch.float64)
    words = torch.full((count, select.WORDS), -1, dtype=torch.int64)
    counts = torch.from_numpy(random.integers(0, 3, (count, 3000)).astype(np.int32))
    before = counts.clone()
    masks = torch.zeros(count, 94, dtype=torch.int32)
    samplers, allowed = [], []
    for row in range(count):
        seed = int(random.integers(0, 2**64, dtype=np.uint64))
        p = SamplingParameters(
            (0.0, 1.0, 0.7)[row % 3], (1.0, 0.9)[row % 2], (0, 5)[row % 2], (0.0, 0.1)[row % 2],
            (0.0, 1.5)[row % 2], 0.3 * (row % 2), seed,
        )  # fmt: skip
        samplers.append(p)
        drawn_by = (p.temperature, p.top_p, p.min_p, p.presence_penalty, p.frequency_penalty, p.top_k)
        numbers[row, :6] = torch.tensor(drawn_by, dtype=torch.float64)
        words[row, 0], words[row, 1] = select.unsigned_to_signed(seed), 100 + row
        if row % 2:
            words[row, 2], words[row, 3] = row, int(random.integers(0, vocabulary))
        mask = None
        if row % 4 == 2:
            mask = random.random(3000) < 0.1
            words[row, 4] = row
            masks[row] = torch.from_numpy(
                np.packbits(np.pad(mask, (0, 8)), bitorder="little").view(np.int32).copy()
            )
        allowed.append(mask)
    logits[7, 77] = float("nan")
    logits[8] = -float("inf")
    slices = select.slices_of(vocabulary)
    best = torch.zeros(count, slices, 20, dtype=torch.int64)
    flags, drawn = torch.zeros(count, slices, dtype=torch.int32), torch.zeros(count, dtype=torch.int32)
    select.select(logits, numbers, words, counts, masks, vocabulary, best, flags, drawn, count)
    for row in range(7):
        seen = before[row].numpy().copy()
        if row % 2:
            seen[int(words[row, 3])] += 1
        wanted = select_token(
            logits[row].numpy(), samplers[row], seen, 100 + row, mask=allowed[row], vocabulary=vocabulary
        )
        assert int(drawn[row]) == wanted
        assert torch.equal(counts[row], torch.from_numpy(seen))
    assert drawn[7:].tolist() == [-2, -1]
