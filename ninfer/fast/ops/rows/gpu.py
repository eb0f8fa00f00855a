"""``rows`` on GPUs: the last row of a lane into its state image, and rows gathered for a drafter."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ninfer.fast.ops.gpu_control import BLOCK_WORDS, ROW_WORDS

_ROW, _BLOCK = tl.constexpr(ROW_WORDS), tl.constexpr(BLOCK_WORDS)


@triton.jit
def _keep(
    hidden, hidden_stride, images, image_stride, at, blocks, size, BLOCK: tl.constexpr
):  # fmt: skip
    record = blocks + tl.program_id(0) * _BLOCK
    first_row, columns, slot = tl.load(record), tl.load(record + 1), tl.load(record + 2)
    if (tl.load(record + 3) != 0) & (columns > 0):
        i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        row = hidden + (first_row + columns - 1).to(tl.int64) * hidden_stride
        image = images + slot.to(tl.int64) * image_stride + at
        tl.store(image + i, tl.load(row + i, mask=i < size, other=0), mask=i < size)


def keep_last(hidden: Tensor, images: Tensor, at: int, blocks: Tensor, count: int) -> None:
    """The last row of each block that commits into its lane's image, at float ``at``.

    Shapes: ``hidden`` [rows.., H] float32, ``images`` [slots, floats] float32, ``blocks`` [count..,
    BLOCK_WORDS] int32.
    """
    size = hidden.shape[1]
    _keep[(count, triton.cdiv(size, 1024))](
        hidden, hidden.stride(0), images, images.stride(0), at, blocks, size, BLOCK=1024
    )


@triton.jit
def _gather(
    hidden, hidden_stride, count, chunk, chunk_stride, images, image_stride, at, rows, y, y_stride, size,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    source = tl.load(rows + row * _ROW + 6)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    if source >= count:
        x = tl.load(chunk + (source - count).to(tl.int64) * chunk_stride + i, mask=i < size, other=0)
    elif source >= 0:
        x = tl.load(hidden + source.to(tl.int64) * hidden_stride + i, mask=i < size, other=0)
    else:
        image = images + (-1 - source).to(tl.int64) * image_stride + at
        x = tl.load(image + i, mask=i < size, other=0)
    tl.store(y + row.to(tl.int64) * y_stride + i, x, mask=i < size)


def gather(
    hidden: Tensor, chunk: Tensor, images: Tensor, at: int, rows: Tensor, y: Tensor, count: int
) -> None:
    """Rows of ``hidden``, ``chunk``, or state images at float ``at``, into ``y`` [count.., H] float32.

    Shapes: ``hidden`` [N, H] and ``chunk`` [.., H] float32; ``rows`` [count.., ROW_WORDS] int32 say in BLOCK
    which: a row's number, N + that of a row of ``chunk``, or −1 − slot.
    """
    size = y.shape[1]
    _gather[(count, triton.cdiv(size, 1024))](
        hidden, hidden.stride(0), hidden.shape[0], chunk, chunk.stride(0), images, images.stride(0), at, rows,
        y, y.stride(0), size, BLOCK=1024,
    )  # fmt: skip


@triton.jit
def _advance(
    drawn, names, rows, blocks, words, words_stride, drafts, told, drafts_stride, NAMED: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0)
    token = tl.load(drawn + row)
    if NAMED:
        token = tl.where(token >= 0, tl.load(names + tl.maximum(token, 0)), token)
    step = tl.load(words + row * words_stride + 5)
    tl.store(drafts + row * drafts_stride + step, token)
    tl.store(told + row * drafts_stride + step, token)
    tl.store(words + row * words_stride + 5, step + 1)
    tl.store(words + row * words_stride + 1, tl.load(words + row * words_stride + 1) + 1)
    record = rows + row * _ROW
    tl.store(record, tl.maximum(token, 0))
    for word in tl.static_range(1, 5):
        tl.store(record + word, tl.load(record + word) + 1)
    start = blocks + row * _BLOCK + 4
    tl.store(start, tl.load(start) + 1)


def advance(
    drawn: Tensor,
    names: Tensor | None,
    rows: Tensor,
    blocks: Tensor,
    words: Tensor,
    drafts: Tensor,
    told: Tensor,
    count: int,
) -> None:
    """Let the ``count`` rows of a draft, a block each, stand one place further, on the token just drawn.

    Shapes: ``drawn`` [rows..] int32 (ids, or columns that ``names`` [n] int32 give ids to), control records
    ``rows``, ``blocks`` and ``words``; ``drafts`` and ``told`` (pinned, for the host), both [lanes, most]
    int32, get the id at the row's EARLIER, which counts its drafts.
    """
    _advance[(count,)](
        drawn, drawn if names is None else names, rows, blocks, words, words.stride(0), drafts,
        told, drafts.stride(0), NAMED=names is not None, num_warps=1,
    )  # fmt: skip
