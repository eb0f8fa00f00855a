"""``carry`` on GPUs: control records out of pinned host memory, which kernels read where it lies.

They are launches like others, so a captured round begins with its own upload and asks the host for nothing.
Sources may be filled again once these have run. Everything is words of int32 and equal bit for bit.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ninfer.fast.ops.gpu_control import ROW_WORDS

# Of each kind as many changes of block tables and counts go with a round's records.
MARKS = 256
TABLE_PLACE, TABLE_PAGE, COUNT_PLACE, MARK_KINDS = range(4)

_ROW, _MARKS = tl.constexpr(ROW_WORDS), tl.constexpr(MARKS)
_BLOCK = 1024


@triton.jit
def _carry(source, target, size, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + i, tl.load(source + i, mask=i < size, other=0), mask=i < size)


def carry(source: Tensor, target: Tensor, words: int) -> None:
    """The first ``words`` words of ``source`` (pinned) into ``target``; both int32 without gaps."""
    _carry[(triton.cdiv(words, _BLOCK),)](source, target, words, BLOCK=_BLOCK)


@triton.jit
def _arrive(source, target, size, marks, tables, counts, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + i, tl.load(source + i, mask=i < size, other=0), mask=i < size)
    if tl.program_id(0) == 0:
        mark = marks + tl.arange(0, _MARKS)
        place, page, seen = tl.load(mark), tl.load(mark + _MARKS), tl.load(mark + 2 * _MARKS)
        tl.store(tables + tl.maximum(place, 0), page, mask=place >= 0)
        tl.atomic_add(counts + tl.maximum(seen, 0), 1, mask=seen >= 0)


def arrive(source: Tensor, target: Tensor, marks: Tensor, tables: Tensor, counts: Tensor) -> None:
    """A round's records, and with them changes of block tables and tokens to count.

    Shapes: ``source`` (pinned) and ``target`` [words] int32; ``marks`` (pinned) [MARK_KINDS, MARKS] int32:
    places in ``tables`` [lanes, pages] int32, each once, and their pages, then places in ``counts``
    [lanes, ids] int32 that get one more each time they stand there; −1 stands for none.
    """
    words = source.numel()
    _arrive[(triton.cdiv(words, _BLOCK),)](source, target, words, marks, tables, counts, BLOCK=_BLOCK)


@triton.jit
def _pull(ring, length, cursor, rows, count, BLOCK: tl.constexpr):
    at = tl.load(cursor)
    at = tl.where(at + count > length, 0, at)
    i = tl.arange(0, BLOCK)
    tl.store(rows + i, tl.load(ring + at * _ROW + i, mask=i < count * _ROW, other=0), mask=i < count * _ROW)
    tl.store(cursor, at + count)


def pull(ring: Tensor, cursor: Tensor, rows: Tensor, count: int) -> None:
    """The next ``count`` records of a ring into ``rows``; ``cursor`` moves behind them.

    Shapes: ``ring`` (pinned) [length, ROW_WORDS] int32, ``cursor`` [1] int32, ``rows`` [count.., ROW_WORDS]
    int32. Records that the rest of the ring cannot hold stand at its begin.
    """
    # One warp reads the cursor before it moves it.
    block = triton.next_power_of_2(count * ROW_WORDS)
    _pull[(1,)](ring, ring.shape[0], cursor, rows, count, BLOCK=block, num_warps=1)
