"""How a round's kernels follow each other on a device.

Where the device can, a kernel starts while the one before it still runs and waits inside for its end
(programmatic dependent launch): launch and first loads of constant data cost nothing then. Every kernel of such a
chain waits before it reads or writes what others share, so that waiting for the last one is waiting for all.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def follow(PDL: tl.constexpr):
    """The next kernel may start; go on when the one before has ended."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def prefetch(addresses):
    """Ask for the cache lines at these addresses; nothing waits for them."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [addresses], dtype=tl.int32, is_pure=False, pack=1
    )


def options(tensor: Tensor) -> dict[str, Any]:
    """Launch options of a kernel on the device of ``tensor``."""
    if tensor.is_cuda and _can_follow(tensor.device.index or 0):
        return {"PDL": True, "launch_pdl": True}
    return {"PDL": False}


@functools.cache
def _can_follow(index: int) -> bool:
    return torch.cuda.get_device_capability(index)[0] >= 9
