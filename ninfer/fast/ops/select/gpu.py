"""``select`` on GPUs: a scan of vocabulary slices, then one draw per row; see ``contract.py``.

A logit and its id are one 64-bit key whose order is the order of the draw: larger value first, then lower id.
Penalty counts live on the device, one row of int32 a lane; the token that a row took in is counted here.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from ninfer import spec
from ninfer.fast.ops.select.contract import CANDIDATES, DEAD_END, NOT_A_NUMBER

SLICE = 2048
# One row's sampler: float64 words, then int64 words.
TEMPERATURE, TOP_P, MIN_P, PRESENCE, FREQUENCY, TOP_K, SPARE, SPARE_2, NUMBERS = range(9)
SEED, PLACE, COUNTS, COUNTED, MASK, EARLIER, SPARE_3, SPARE_4, WORDS = range(9)

_R = spec.document("sampling")["randomness"]
_MULTIPLIERS = tuple(tl.constexpr(int(m)) for m in _R["multipliers"])
_FIRST, _SECOND = _MULTIPLIERS
_LOW, _HIGH = (tl.constexpr(int(m)) for m in _R["key_increments"])
_ROUNDS, _TOKEN = tl.constexpr(int(_R["rounds"])), tl.constexpr(int(_R["purposes"]["token"]))
_SLICE, _CANDIDATES, _NUMBERS, _WORDS = (tl.constexpr(n) for n in (SLICE, CANDIDATES, NUMBERS, WORDS))
_DEAD_END, _NOT_A_NUMBER = tl.constexpr(DEAD_END), tl.constexpr(NOT_A_NUMBER)
# Below every key of a finite logit.
_NONE = tl.constexpr(-(2**63))


@dataclass(frozen=True, slots=True, eq=False)
class Earlier:
    """Tokens that come before a draw: number n of row r is element r · ``stride`` + n · ``step``."""

    tokens: Tensor
    stride: int
    step: int


@triton.jit
def _key(value, ids):
    bits = tl.where(value == 0, 0.0, value).to(tl.int32, bitcast=True)
    order = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (order.to(tl.int64) << 32) | (0xFFFFFFFF - ids.to(tl.int64))


@triton.jit
def _scan(
    logits, logits_stride, numbers, words, counts, counts_stride, masks, mask_stride, vocabulary, best, flags,
    slices, earlier, earlier_stride, earlier_step, names, NAMED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, piece = tl.program_id(0), tl.program_id(1)
    sampler, whole = numbers + row * _NUMBERS, words + row * _WORDS
    ids = piece * BLOCK + tl.arange(0, BLOCK)
    allowed = ids < vocabulary
    value = tl.load(logits + row.to(tl.int64) * logits_stride + ids, mask=allowed, other=0)
    lane, counted, mask = tl.load(whole + 2), tl.load(whole + 3), tl.load(whole + 4)
    if lane >= 0:
        name = tl.load(names + ids, mask=allowed, other=0) if NAMED else ids
        at = counts + lane * counts_stride + name
        seen = tl.load(at, mask=allowed, other=0) + (name == counted).to(tl.int32)
        tl.store(at, seen, mask=allowed & (name == counted))
        for index in range(tl.load(whole + 5).to(tl.int32)):
            before = tl.load(earlier + row * earlier_stride + index * earlier_step)
            seen += (name == before).to(tl.int32)
        presence = tl.load(sampler + 3).to(tl.float32)
        frequency = tl.load(sampler + 4).to(tl.float32)
        value = value - (tl.where(seen > 0, presence, 0.0) + frequency * seen.to(tl.float32))
    if mask >= 0:
        bits = tl.load(masks + mask * mask_stride + ids // 32, mask=allowed, other=0)
        allowed = allowed & (((bits >> (ids % 32)) & 1) != 0)
    wrong = tl.max((allowed & ~(value < float("inf"))).to(tl.int32), 0)
    tl.store(flags + row * slices + piece, wrong)
    keys = tl.where(allowed & (value > -float("inf")), _key(value, ids), _NONE)
    keep = tl.where(tl.load(sampler) == 0, 1, _CANDIDATES)
    out = best + (row.to(tl.int64) * slices + piece) * _CANDIDATES
    for rank in range(keep):
        top = tl.max(keys, 0)
        tl.store(out + rank, top)
        keys = tl.where(keys == top, _NONE, keys)


@triton.jit
def _uniform(seed, position):
    x0, x1 = position.to(tl.uint64), tl.full((), 0, tl.uint64)
    x2, x3 = tl.full((), _TOKEN, tl.uint64), tl.full((), 0, tl.uint64)
    first, second = tl.full((), _FIRST, tl.uint64), tl.full((), _SECOND, tl.uint64)
    low_step, high_step = tl.full((), _LOW, tl.uint64), tl.full((), _HIGH, tl.uint64)
    word = tl.full((), 0xFFFFFFFF, tl.uint64)
    key = seed.to(tl.uint64)
    k0, k1 = key & word, key >> 32
    for _ in tl.static_range(_ROUNDS):
        low, high = first * x0, second * x2
        x0, x1 = (high >> 32) ^ x1 ^ k0, high & word
        x2, x3 = (low >> 32) ^ x3 ^ k1, low & word
        k0, k1 = (k0 + low_step) & word, (k1 + high_step) & word
    whole = (x0 >> 5) * 67108864 + (x1 >> 6)
    return whole.to(tl.float64) / 9007199254740992.0


@triton.jit
def _at(vector, i, place):
    return tl.sum(tl.where(i == place, vector, 0.0), 0)


@triton.jit
def _draw(
    numbers, words, best, flags, slices, drawn, FLAGS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0)
    sampler, whole = numbers + row * _NUMBERS, words + row * _WORDS
    f = tl.arange(0, FLAGS)
    wrong = tl.max(tl.load(flags + row * slices + f, mask=f < slices, other=0), 0)
    temperature = tl.load(sampler)
    keep = tl.where(temperature == 0, 1, _CANDIDATES)
    j = tl.arange(0, BLOCK)
    # Candidates of a slice lie side by side; a greedy scan wrote the first one alone.
    here = (j // _CANDIDATES < slices) & (j % _CANDIDATES < keep)
    keys = tl.load(best + row.to(tl.int64) * slices * _CANDIDATES + j, mask=here, other=_NONE)
    top_k = tl.load(sampler + 5).to(tl.int32)
    wanted = tl.where(temperature == 0, 1, tl.where(top_k > 0, top_k, _CANDIDATES))
    i = tl.arange(0, 32)
    chosen = tl.full((32,), _NONE, tl.int64)
    for rank in range(wanted):
        top = tl.max(keys, 0)
        chosen = tl.where(i == rank, top, chosen)
        keys = tl.where(keys == top, _NONE, keys)
    held = tl.sum((chosen != _NONE).to(tl.int32), 0)
    order = (chosen >> 32).to(tl.int32)
    values = (order ^ ((order >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True).to(tl.float64)
    ids = 0xFFFFFFFF - (chosen & 0xFFFFFFFF)
    pick = 0
    if temperature != 0:
        values = tl.where(i < held, values, 0.0)
        top_value = _at(values, i, 0)
        weights = tl.where(i < held, tl.exp((values - top_value) / temperature), 0.0)
        # Sums run one by one, largest first: the draw is specified so.
        total = 0.0 * temperature
        for place in range(held):
            total += _at(weights, i, place)
        kept, reached = held, 0.0 * temperature
        top_p = tl.load(sampler + 1)
        if top_p < 1:
            for place in range(held):
                before = reached
                reached += _at(weights, i, place) / total
                kept = tl.where((before < top_p) & (reached >= top_p), tl.minimum(kept, place + 1), kept)
            kept = tl.where(top_p <= 0, 1, kept)
        # Weights fall: what min_p keeps is a prefix.
        enough = (weights > 0) & (weights >= tl.load(sampler + 2)) & (i < kept)
        remaining = tl.sum(enough.to(tl.int32), 0)
        total = 0.0 * temperature
        for place in range(remaining):
            total += _at(weights, i, place)
        u = _uniform(tl.load(whole), tl.load(whole + 1))
        reached = 0.0 * temperature
        pick = remaining - 1
        for place in range(remaining):
            reached += _at(weights, i, place) / total
            pick = tl.where((u < reached) & (place < pick), place, pick)
    token = tl.sum(tl.where(i == pick, ids, 0), 0)
    token = tl.where(held == 0, _DEAD_END, token)
    tl.store(drawn + row, tl.where(wrong != 0, _NOT_A_NUMBER, token).to(tl.int32))


def slices_of(vocabulary: int) -> int:
    """Slices that a row's scan is cut into."""
    return -(-vocabulary // SLICE)


def select(
    logits: Tensor, numbers: Tensor, words: Tensor, counts: Tensor, masks: Tensor, vocabulary: int,
    best: Tensor, flags: Tensor, drawn: Tensor, rows: int,
    earlier: Earlier | None = None, names: Tensor | None = None,
) -> None:  # fmt: skip
    """The tokens of ``rows`` rows of ``logits`` [rows.., ≥ vocabulary] float32 to ``drawn`` [rows..] int32.

    Shapes: ``numbers`` [rows.., NUMBERS] float64 and ``words`` [rows.., WORDS] int64 (COUNTS: lane or −1,
    COUNTED: id to count or −1, MASK: row of ``masks`` or −1), ``counts`` [lanes, ≥ vocabulary] int32,
    ``masks`` [rows.., ≥ vocabulary / 32] int32; scratch ``best`` [rows.., slices, CANDIDATES] int64,
    ``flags`` [rows.., slices] int32. A row with penalties counts its first EARLIER (a word) tokens of
    ``earlier`` too; COUNTED is for rows that no other row's counts meet. ``names`` [vocabulary] are the ids
    of the logits' columns where these are not the ids themselves.
    """
    slices = slices_of(vocabulary)
    before = Earlier(words, 0, 0) if earlier is None else earlier
    _scan[(rows, slices)](
        logits, logits.stride(0), numbers, words, counts, counts.stride(0), masks, masks.stride(0),
        vocabulary,
        best, flags, slices, before.tokens, before.stride, before.step, words if names is None else names,
        NAMED=names is not None, BLOCK=SLICE, num_warps=4,
        enable_fp_fusion=False,  # every penalty operation is rounded
    )  # fmt: skip
    _draw[(rows,)](
        numbers, words, best, flags, slices, drawn, FLAGS=triton.next_power_of_2(slices),
        BLOCK=triton.next_power_of_2(slices * CANDIDATES), num_warps=4,
        enable_fp_fusion=False,
    )  # fmt: skip


def unsigned_to_signed(seed: int) -> int:
    """A 64-bit seed as the int64 word that carries its bits."""
    return seed - (1 << 64) if seed >= 1 << 63 else seed
