"""``linear`` on CPUs: its tasks, each some rows of a segment against a block of columns.

Owns the division of work and the kernel that a stored format takes; the kernels stand in ``tiles.py``.
"""

from __future__ import annotations

from ninfer.fast.ops.compiled import part
from ninfer.fast.ops.control import MAX_COLUMNS
from ninfer.fast.ops.linear import formats
from ninfer.fast.ops.linear.contract import (
    BASE_STRIDE,
    FORMAT,
    HIGH_STRIDE,
    ROWS,
    SCALE_STRIDE,
    TASK_BYTES,
    X_STRIDE,
    Y_STRIDE,
    X,
    Y,
)
from ninfer.fast.ops.linear.tiles import TILE, Floats, Pairs, column_kernel, tiles_kernel
from ninfer.fast.ops.vector import LANES

f32_column, f32_tiles = column_kernel(Floats(formats.f32)), tiles_kernel(Floats(formats.f32))
bf16_column, bf16_tiles = column_kernel(Floats(formats.bf16)), tiles_kernel(Floats(formats.bf16))
q8_column, q8_tiles = column_kernel(Floats(formats.q8)), tiles_kernel(Floats(formats.q8))
q6_column, q6_tiles = column_kernel(Floats(formats.q6)), tiles_kernel(Floats(formats.q6))
q5_column, q5_tiles = column_kernel(Floats(formats.q5)), tiles_kernel(Floats(formats.q5))
q4_column, q4_tiles = column_kernel(Floats(formats.q4)), tiles_kernel(Floats(formats.q4))
fp8_column, fp8_tiles = column_kernel(Floats(formats.fp8)), tiles_kernel(Floats(formats.fp8))
nvfp4_column, nvfp4_tiles = column_kernel(Floats(formats.nvfp4)), tiles_kernel(Floats(formats.nvfp4))
pairs_column, pairs_tiles = column_kernel(Pairs()), tiles_kernel(Pairs())

# Columns of so many bytes stay in a core's second cache while rows pass by (measured 2026-11-30 with K 3,584:
# 389 GFLOP/s, with 128 KiB 366, with 64 KiB 317, with all 64 columns 376).
_BLOCK_BYTES = 256 * 1024


@part
def _one_column(number, segment, x, y, begin, end):
    """Rows ``begin..end`` against the column at ``x``, by format number."""
    if number == formats.BF16:
        bf16_column(segment, x, y, 1, begin, end)
    elif number == formats.PAIRS:
        pairs_column(segment, x, y, 1, begin, end)
    elif number == formats.Q8:
        q8_column(segment, x, y, 1, begin, end)
    elif number == formats.Q4:
        q4_column(segment, x, y, 1, begin, end)
    elif number == formats.Q5:
        q5_column(segment, x, y, 1, begin, end)
    elif number == formats.Q6:
        q6_column(segment, x, y, 1, begin, end)
    elif number == formats.FP8:
        fp8_column(segment, x, y, 1, begin, end)
    elif number == formats.NVFP4:
        nvfp4_column(segment, x, y, 1, begin, end)
    else:
        f32_column(segment, x, y, 1, begin, end)


@part
def _columns(number, segment, x, y, columns, begin, end):
    """Rows ``begin..end``, a multiple of four, against the columns from ``x``, by format number."""
    if number == formats.BF16:
        bf16_tiles(segment, x, y, columns, begin, end)
    elif number == formats.PAIRS:
        pairs_tiles(segment, x, y, columns, begin, end)
    elif number == formats.Q8:
        q8_tiles(segment, x, y, columns, begin, end)
    elif number == formats.Q4:
        q4_tiles(segment, x, y, columns, begin, end)
    elif number == formats.Q5:
        q5_tiles(segment, x, y, columns, begin, end)
    elif number == formats.Q6:
        q6_tiles(segment, x, y, columns, begin, end)
    elif number == formats.FP8:
        fp8_tiles(segment, x, y, columns, begin, end)
    elif number == formats.NVFP4:
        nvfp4_tiles(segment, x, y, columns, begin, end)
    else:
        f32_tiles(segment, x, y, columns, begin, end)


@part
def rows_per_task(segment):
    """Rows whose weights fill about TASK_BYTES, in whole tiles."""
    rows = TASK_BYTES // (segment[BASE_STRIDE] + segment[HIGH_STRIDE] + segment[SCALE_STRIDE])
    return rows // LANES * LANES if rows > LANES else max(TILE, rows // TILE * TILE)


@part
def column_blocks(columns):
    """Blocks of columns, each of which stays in a core's cache while rows pass by."""
    return (columns + MAX_COLUMNS - 1) // MAX_COLUMNS


@part
def row_tasks(segment):
    """Tasks that a block of columns makes of a segment."""
    rows = rows_per_task(segment)
    return (segment[ROWS] + rows - 1) // rows


@part
def task_count(segments, first, last, columns):
    """Tasks of the segments ``first..last`` (exclusive)."""
    total = 0
    for index in range(first, last):
        total += row_tasks(segments[index])
    return total * column_blocks(columns)


@part
def run_task(segments, first, last, start, columns, task):
    """Task number ``task`` of ``columns`` columns from ``start``; a block's rows come one after the other."""
    blocks = column_blocks(columns)
    for index in range(first, last):
        segment = segments[index]
        tasks = row_tasks(segment)
        if task < tasks * blocks:
            chunk = rows_per_task(segment)
            begin, left = task % tasks * chunk, task // tasks * MAX_COLUMNS
            place = start + left
            x, y = segment[X] + place * segment[X_STRIDE], segment[Y] + place * segment[Y_STRIDE]
            end = min(segment[ROWS], begin + chunk)
            run_rows(segment, x, y, min(MAX_COLUMNS, columns - left), begin, end)
            return
        task -= tasks * blocks


@part
def run_rows(segment, x, y, columns, begin, end):
    """Rows ``begin..end`` of one segment against ``columns`` columns at ``x``, results at ``y``."""
    number, address = segment[FORMAT], segment.ctypes.data
    whole = begin if columns == 1 else end - (end - begin) % TILE
    if whole > begin:
        at_once = max(2 * TILE, _BLOCK_BYTES // segment[X_STRIDE] // TILE * TILE)
        for left in range(0, columns, at_once):
            x_block, y_block = x + left * segment[X_STRIDE], y + left * segment[Y_STRIDE]
            _columns(number, address, x_block, y_block, min(at_once, columns - left), begin, whole)
    if whole < end:
        for column in range(columns):
            x_column, y_column = x + column * segment[X_STRIDE], y + column * segment[Y_STRIDE]
            _one_column(number, address, x_column, y_column, whole, end)
