"""``swiglu`` on GPUs over a prefill chunk: gate and up interleaved in one product's columns."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _swiglu(x, x_stride, y, y_stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * 2 * BLOCK + tl.arange(0, 2 * BLOCK)
    pairs = tl.load(x + row * x_stride + i, mask=i < 2 * columns, other=0).to(tl.float32)
    gate, up = tl.split(tl.reshape(pairs, (BLOCK, 2)))
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    product = gate / (1 + tl.exp(-gate)) * up
    tl.store(y + row * y_stride + column, product.to(y.dtype.element_ty), mask=column < columns)


def swiglu(x: Tensor, y: Tensor, columns: int, count: int) -> None:
    """``y[r, n] = SiLU(x[r, 2n]) · x[r, 2n + 1]``: ``x`` [.., ≥ 2 columns], ``y`` [.., ≥ columns]."""
    _swiglu[(count, triton.cdiv(columns, 1024))](
        x, x.stride(0), y, y.stride(0), columns, BLOCK=1024, num_warps=4
    )
