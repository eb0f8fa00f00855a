"""Gated DeltaNet on CPUs: convolution tasks of channels, recurrent tasks of one block and value head."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ninfer.fast.ops.compiled import part
from ninfer.fast.ops.control import ALL, COLUMNS, COMMIT, FIRST_ROW, STATE
from ninfer.fast.ops.copies import copy_row
from ninfer.fast.ops.gdn import contract as c
from ninfer.fast.ops.vector import F32, I32, LANES, Emitter, kernel
from ninfer.fast.ops.views import copy, floats


@kernel("ii")
def silu(e: Emitter, x: Any, n: Any) -> None:
    """X ← x · σ(x) for ``n`` floats, a multiple of 16."""
    with e.loop(e.integer(0), n, LANES) as index:
        address = e.at(x, index, 4)
        value = e.load(address, "f32")
        e.store(address, e.fmul(value, e.sigmoid(value)))


@kernel("iiiiiiii")
def four_taps(
    e: Emitter, oldest: Any, older: Any, old: Any, newest: Any, weight: Any, stride: Any, y: Any, n: Any
) -> None:
    """Y ← SiLU(Σ w[τ] ⊙ u[τ]) over four inputs of ``n`` floats, a multiple of 16."""
    with e.loop(e.integer(0), n, LANES) as index:
        total = None
        for tap, u in enumerate((oldest, older, old, newest)):
            scaled = e.fmul(
                e.load(e.at(e.add(weight, e.mul(stride, tap)), index, 4), "f32"),
                e.load(e.at(u, index, 4), "f32"),
            )
            total = scaled if total is None else e.fadd(total, scaled)
        e.store(e.at(y, index, 4), e.fmul(total, e.sigmoid(total)))


@kernel("ii", "f")
def sum_of_squares(e: Emitter, x: Any, n: Any) -> Any:
    """Σ x² over ``n`` floats, a multiple of 16."""
    total = e.variable(e.zero())
    with e.loop(e.integer(0), n, LANES) as index:
        value = e.load(e.at(x, index, 4), "f32")
        total.set(e.fma(value, value, total.get()))
    return e.sum(total.get())


@kernel("iif")
def scaled_copy(e: Emitter, source: Any, target: Any, factor: Any) -> None:
    """Target ← factor · source for 16 floats."""
    e.store(target, e.fmul(e.load(source, "f32"), e.splat(factor)))


def _tile(vectors: int) -> tuple[Any, Any, Any]:
    """The passes over ``vectors`` · 16 columns of S; every column's sums ascend in the key dimension.

    Tiles of one vector fill every S: another value dimension than a multiple of 32 is refused at the start.
    """

    @kernel("iiiiif")
    def decay_read(e: Emitter, s: Any, stride: Any, k: Any, rows: Any, out: Any, decay: Any) -> None:
        factor = e.splat(decay)
        sums = [e.variable(e.zero()) for _ in range(vectors)]
        with e.loop(e.integer(0), rows, 1) as row:
            start, key = (
                e.builder.add(s, e.builder.mul(row, stride)),
                e.splat(e.scalar(e.at(k, row, 4), "f32")),
            )
            for part in range(vectors):
                address = e.add(start, 64 * part)
                value = e.fmul(e.load(address, "f32"), factor)
                e.store(address, value)
                sums[part].set(e.fma(key, value, sums[part].get()))
        for part in range(vectors):
            e.store(e.add(out, 64 * part), sums[part].get())

    @kernel("iiiiiii")
    def update_read(e: Emitter, s: Any, stride: Any, k: Any, q: Any, rows: Any, delta: Any, out: Any) -> None:
        deltas = [e.load(e.add(delta, 64 * part), "f32") for part in range(vectors)]
        sums = [e.variable(e.zero()) for _ in range(vectors)]
        with e.loop(e.integer(0), rows, 1) as row:
            start, key = (
                e.builder.add(s, e.builder.mul(row, stride)),
                e.splat(e.scalar(e.at(k, row, 4), "f32")),
            )
            query = e.splat(e.scalar(e.at(q, row, 4), "f32"))
            for part in range(vectors):
                address = e.add(start, 64 * part)
                value = e.fma(key, deltas[part], e.load(address, "f32"))
                e.store(address, value)
                sums[part].set(e.fma(query, value, sums[part].get()))
        for part in range(vectors):
            e.store(e.add(out, 64 * part), sums[part].get())

    @kernel("iiiiiiiifi")
    def update_decay_read(
        e: Emitter,
        s: Any,
        stride: Any,
        k: Any,
        q: Any,
        rows: Any,
        delta: Any,
        out: Any,
        next_k: Any,
        decay: Any,
        read: Any,
    ) -> None:
        """``update_read`` of one column and ``decay_read`` of the next in one pass over S, bit for bit."""
        deltas = [e.load(e.add(delta, 64 * part), "f32") for part in range(vectors)]
        factor = e.splat(decay)
        sums = [e.variable(e.zero()) for _ in range(vectors)]
        reads = [e.variable(e.zero()) for _ in range(vectors)]
        with e.loop(e.integer(0), rows, 1) as row:
            start = e.builder.add(s, e.builder.mul(row, stride))
            key, query, next_key = (e.splat(e.scalar(e.at(x, row, 4), "f32")) for x in (k, q, next_k))
            for part in range(vectors):
                address = e.add(start, 64 * part)
                value = e.fma(key, deltas[part], e.load(address, "f32"))
                sums[part].set(e.fma(query, value, sums[part].get()))
                value = e.fmul(value, factor)
                e.store(address, value)
                reads[part].set(e.fma(next_key, value, reads[part].get()))
        for part in range(vectors):
            e.store(e.add(out, 64 * part), sums[part].get())
            e.store(e.add(read, 64 * part), reads[part].get())

    return decay_read, update_read, update_decay_read


_decay_read_4, _update_read_4, _update_decay_read_4 = _tile(4)
_decay_read_1, _update_read_1, _update_decay_read_1 = _tile(1)


@part
def _begin(s, k, key_dim, value_dim, decay, read):
    """``read`` = Sᵀ k of the decayed S, which stays decayed."""
    step = 64 if value_dim % 64 == 0 else 16
    for column in range(0, value_dim, step):
        at = 4 * column
        if step == 64:
            _decay_read_4(s + at, 4 * value_dim, k, key_dim, read + at, decay)
        else:
            _decay_read_1(s + at, 4 * value_dim, k, key_dim, read + at, decay)


@part
def _end(s, k, q, key_dim, value_dim, delta, out):
    """S ← S + k δᵀ, ``out`` = Sᵀ q."""
    step = 64 if value_dim % 64 == 0 else 16
    for column in range(0, value_dim, step):
        at = 4 * column
        if step == 64:
            _update_read_4(s + at, 4 * value_dim, k, q, key_dim, delta + at, out + at)
        else:
            _update_read_1(s + at, 4 * value_dim, k, q, key_dim, delta + at, out + at)


@part
def _pass_on(s, k, q, key_dim, value_dim, delta, out, next_k, decay):
    """``_end`` of one column and ``_begin`` of the next, which reads into ``delta``."""
    step = 64 if value_dim % 64 == 0 else 16
    stride = 4 * value_dim
    for column in range(0, value_dim, step):
        at = 4 * column
        if step == 64:
            _update_decay_read_4(
                s + at, stride, k, q, key_dim, delta + at, out + at, next_k, decay, delta + at
            )
        else:
            _update_decay_read_1(
                s + at, stride, k, q, key_dim, delta + at, out + at, next_k, decay, delta + at
            )


@part
def conv_tasks(d, blocks, block_count):
    """Tasks of ``convolve`` for ``block_count`` blocks; every block has those of the widest."""
    return block_count * _conv_slices(d) * _conv_groups(d, blocks, block_count)


@part
def _conv_slices(d):
    return (d[c.CHANNELS] + c.CONV_TASK - 1) // c.CONV_TASK


@part
def _conv_columns(d):
    return max(c.CONV_COLUMNS, d[c.TAPS])


@part
def _conv_groups(d, blocks, block_count):
    groups, columns = 1, _conv_columns(d)
    for block in range(block_count):
        groups = max(groups, (blocks[block, COLUMNS] + columns - 1) // columns)
    return groups


@part
def convolve(d, blocks, block_count, task):
    """Some columns of one block and slice of channels; the window moves on when the block commits."""
    slices = _conv_slices(d)
    block, first = task // slices % block_count, (task % slices) * c.CONV_TASK
    begin = task // slices // block_count * _conv_columns(d)
    count = min(c.CONV_TASK, d[c.CHANNELS] - first)
    for column in range(begin, min(begin + _conv_columns(d), blocks[block, COLUMNS])):
        row = blocks[block, FIRST_ROW] + column
        target = d[c.CONVOLVED] + row * d[c.CONVOLVED_STRIDE] + 4 * first
        if d[c.TAPS] == 4:
            four_taps(
                _input(d, blocks[block], column - 3, first),
                _input(d, blocks[block], column - 2, first),
                _input(d, blocks[block], column - 1, first),
                _input(d, blocks[block], column, first),
                d[c.CONV_WEIGHT] + 4 * first,
                4 * d[c.CHANNELS],
                target,
                count,
            )
        else:
            _convolve(d, blocks[block], column, first, target, count)
    # Only the first columns read the window, so that their task may move it.
    if blocks[block, COMMIT] == 1 and begin == 0:
        shift_window(d, blocks[block], blocks[block, COLUMNS], first, count)


@part
def _convolve(d, block, column, first, target, count):
    """One column of ``count`` channels, for any number of taps."""
    y = floats(target, count)
    for tap in range(d[c.TAPS]):
        weight = floats(d[c.CONV_WEIGHT] + 4 * (tap * d[c.CHANNELS] + first), count)
        u = floats(_input(d, block, column - d[c.TAPS] + 1 + tap, first), count)
        if tap == 0:
            for index in range(count):
                y[index] = weight[index] * u[index]
        else:
            for index in range(count):
                y[index] += weight[index] * u[index]
    silu(target, count)


@part
def _input(d, block, column, first):
    """Address of input column ``column`` of the block; negative columns lie in the lane's window."""
    if column >= 0:
        return d[c.U] + (block[FIRST_ROW] + column) * d[c.U_STRIDE] + 4 * first
    slot = d[c.TAPS] - 1 + column
    return block[STATE] + d[c.WINDOW_OFFSET] + 4 * (slot * d[c.CHANNELS] + first)


@part
def shift_window(d, block, accepted, first, count):
    """The window after ``accepted`` columns, for ``count`` channels from ``first``."""
    for slot in range(d[c.TAPS] - 1):
        # Sources lie at or after their targets, so ascending order reads nothing already overwritten.
        source = floats(_input(d, block, accepted - d[c.TAPS] + 1 + slot, first), count)
        target = floats(block[STATE] + d[c.WINDOW_OFFSET] + 4 * (slot * d[c.CHANNELS] + first), count)
        for index in range(count):
            target[index] = source[index]


@part
def recur(d, blocks, task, thread):
    """One block and value head: all its columns in order, then the gated norm of each.

    What a block that only reads comes to is kept where there is room: ``fold`` may need all of it.
    """
    block, head = blocks[task // d[c.VALUE_HEADS]], task % d[c.VALUE_HEADS]
    key_dim, value_dim = d[c.KEY_DIM], d[c.VALUE_DIM]
    scratch = d[c.SCRATCH] + thread * d[c.SCRATCH_STRIDE]
    s = block[STATE] + d[c.STATE_OFFSET] + 4 * head * key_dim * value_dim
    working = s
    if block[COMMIT] == 0:
        working = _kept(d, task // d[c.VALUE_HEADS], head)
        if working == 0:
            working = scratch + 4 * (4 * key_dim + 2 * value_dim)
        copy(s, working, key_dim * value_dim)
    for column in range(block[COLUMNS]):
        _gates(d, block[FIRST_ROW] + column, head)
    y = d[c.Y] + block[FIRST_ROW] * d[c.Y_STRIDE] + 4 * head * value_dim
    _columns(d, block[FIRST_ROW], block[COLUMNS], head, working, scratch, y, d[c.Y_STRIDE])
    for column in range(block[COLUMNS]):
        _gated_norm(d, block[FIRST_ROW] + column, head, y + column * d[c.Y_STRIDE])


@part
def fold(d, blocks, index, head, thread):
    """The accepted columns of a kept block on the committed state of one value head.

    They are replayed, unless they are all and what they come to was kept.
    """
    block = blocks[index]
    key_dim, value_dim = d[c.KEY_DIM], d[c.VALUE_DIM]
    scratch = d[c.SCRATCH] + thread * d[c.SCRATCH_STRIDE]
    s = block[STATE] + d[c.STATE_OFFSET] + 4 * head * key_dim * value_dim
    kept = _kept(d, index, head)
    if block[COMMIT] == ALL and kept != 0:
        copy(kept, s, key_dim * value_dim)
        return
    out = scratch + 4 * (4 * key_dim + value_dim)
    _columns(d, block[FIRST_ROW], block[COLUMNS], head, s, scratch, out, np.int64(0))


@part
def _kept(d, index, head):
    """Where the working state of the block number ``index`` is kept; 0: nowhere."""
    if index > 0 or d[c.KEPT] == 0:
        return np.int64(0)
    return d[c.KEPT] + 4 * head * d[c.KEY_DIM] * d[c.VALUE_DIM]


@part
def _gates(d, row, head):
    """Record e^g and β of one row and head."""
    heads = d[c.VALUE_HEADS]
    a = floats(d[c.A] + row * d[c.AB_STRIDE], heads)[head] + floats(d[c.DT_BIAS], heads)[head]
    b = floats(d[c.B] + row * d[c.AB_STRIDE], heads)[head]
    gates = floats(d[c.GATES] + 8 * row * heads, 2 * heads)
    softplus = a if a > 20 else math.log1p(math.exp(a))
    gates[2 * head] = math.exp(-math.exp(floats(d[c.A_LOG], heads)[head]) * softplus)
    gates[2 * head + 1] = np.float32(1) / (np.float32(1) + np.float32(math.exp(-b)))


@part
def _columns(d, first, count, head, s, scratch, y, y_stride):
    """The transitions of ``count`` recorded columns from row ``first`` on ``s``; outputs from ``y``."""
    key_dim, value_dim = d[c.KEY_DIM], d[c.VALUE_DIM]
    delta = scratch + 16 * key_dim
    error = floats(delta, value_dim)
    for column in range(count):
        row = first + column
        gates = floats(d[c.GATES] + 8 * (row * d[c.VALUE_HEADS] + head), 2)
        q, k = _query(d, scratch, column), _key(d, scratch, column)
        if column == 0:
            _units(d, row, head, q, k)
            _begin(s, k, key_dim, value_dim, gates[0], delta)
        value_at = 4 * (2 * d[c.KEY_HEADS] * key_dim + head * value_dim)
        value = floats(d[c.CONVOLVED] + row * d[c.CONVOLVED_STRIDE] + value_at, value_dim)
        for index in range(value_dim):
            error[index] = gates[1] * (value[index] - error[index])
        out = y + column * y_stride
        if column + 1 == count:
            _end(s, k, q, key_dim, value_dim, delta, out)
        else:
            next_q, next_k = _query(d, scratch, column + 1), _key(d, scratch, column + 1)
            _units(d, row + 1, head, next_q, next_k)
            decay = floats(d[c.GATES] + 8 * ((row + 1) * d[c.VALUE_HEADS] + head), 1)[0]
            _pass_on(s, k, q, key_dim, value_dim, delta, out, next_k, decay)


@part
def _query(d, scratch, column):
    """Where the scaled unit query of a column stands: two of them live at a time, each before its key."""
    return scratch + 8 * d[c.KEY_DIM] * (column % 2)


@part
def _key(d, scratch, column):
    return scratch + 8 * d[c.KEY_DIM] * (column % 2) + 4 * d[c.KEY_DIM]


@part
def _units(d, row, head, q, k):
    """The scaled unit query and the unit key of one row and value head."""
    key_dim = d[c.KEY_DIM]
    key_head = head // (d[c.VALUE_HEADS] // d[c.KEY_HEADS])
    convolved = d[c.CONVOLVED] + row * d[c.CONVOLVED_STRIDE]
    _unit(convolved + 4 * key_head * key_dim, q, key_dim, np.float32(1.0 / np.sqrt(key_dim)))
    _unit(convolved + 4 * (d[c.KEY_HEADS] + key_head) * key_dim, k, key_dim, np.float32(1))


@part
def _unit(source, target, n, scale):
    """Target = scale · source / √(Σ source² + eps)."""
    norm = np.float32(math.sqrt(sum_of_squares(source, n) + np.float32(c.L2_EPS)))
    for index in range(0, n, 16):
        scaled_copy(source + 4 * index, target + 4 * index, scale / norm)


@kernel("iiiii")
def norm_and_gate(e: Emitter, x: Any, weight: Any, z: Any, n: Any, eps_bits: Any) -> None:
    """X ← w ⊙ x / √(mean(x²) + eps) ⊙ SiLU(z) for ``n`` floats, a multiple of 16."""
    total = e.variable(e.zero())
    with e.loop(e.integer(0), n, LANES) as index:
        value = e.load(e.at(x, index, 4), "f32")
        total.set(e.fma(value, value, total.get()))
    mean = e.builder.fdiv(e.sum(total.get()), e.builder.sitofp(n, F32))
    eps = e.builder.bitcast(e.builder.trunc(eps_bits, I32), F32)
    root = e.call("llvm.sqrt.f32", F32, e.builder.fadd(mean, eps))
    scale = e.splat(e.builder.fdiv(e.number(1.0), root))
    with e.loop(e.integer(0), n, LANES) as index:
        address = e.at(x, index, 4)
        gate = e.load(e.at(z, index, 4), "f32")
        normed = e.fmul(e.fmul(e.load(address, "f32"), scale), e.load(e.at(weight, index, 4), "f32"))
        e.store(address, e.fmul(normed, e.fmul(gate, e.sigmoid(gate))))


@part
def _gated_norm(d, row, head, out):
    size = d[c.VALUE_DIM]
    norm_and_gate(out, d[c.NORM], d[c.Z] + row * d[c.Z_STRIDE] + 4 * head * size, size, d[c.EPS_BITS])
    copy_row(d, c.PERMUTED, row, head * size, out, size)
