"""The threads of one round: what they claim tasks from and how they wait, in plain memory.

Threads are ordinary Python threads that entered compiled code without the GIL, so no threading layer of
Numba is involved and nothing else may launch parallel kernels. Waiting yields the core after a while: on a
busy machine the thread that is waited for may need it.
"""

from __future__ import annotations

import platform
from typing import Any

from llvmlite import ir

from ninfer.fast.ops.vector import I32, I64, Emitter, kernel

LINE = 8  # int64 words of a cache line
_SPINS_PER_YIELD = 1024

# The claim word: the operation, how many tasks it has, and the next one nobody has taken. One fetch-and-add
# returns all three, so a claim always belongs to the operation that it names.
TASK_BITS = 24
TASK_MASK = (1 << TASK_BITS) - 1


def _load(e: Emitter, address: Any) -> Any:
    return e.builder.load_atomic(e.builder.inttoptr(address, ir.PointerType(I64)), "acquire", 8, typ=I64)


def _pause(e: Emitter) -> None:
    if platform.machine() in ("x86_64", "AMD64"):
        e.call("llvm.x86.sse2.pause", ir.VoidType())


@kernel("ii", "i")
def fetch_add(e: Emitter, address: Any, amount: Any) -> Any:
    """Add to the int64 at ``address``; returns the value before."""
    pointer = e.builder.inttoptr(address, ir.PointerType(I64))
    return e.builder.atomic_rmw("add", pointer, amount, "acq_rel")


@kernel("ii")
def store_release(e: Emitter, address: Any, value: Any) -> None:
    """Store an int64 so that everything written before is seen by whoever reads it."""
    e.builder.store_atomic(value, e.builder.inttoptr(address, ir.PointerType(I64)), "release", 8)


@kernel("i", "i")
def load_acquire(e: Emitter, address: Any) -> Any:
    """Load an int64 written by ``store_release``."""
    return _load(e, address)


@kernel("i")
def rest(e: Emitter, spins: Any) -> None:
    """One idle moment: a pause, and now and then the core for somebody else. ``spins`` counts them."""
    builder = e.builder
    _pause(e)
    turn = builder.icmp_signed("==", builder.and_(spins, e.integer(_SPINS_PER_YIELD - 1)), e.integer(0))
    with builder.if_then(turn):
        e.call("sched_yield", I32)
