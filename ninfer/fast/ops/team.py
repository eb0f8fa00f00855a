"""The threads of one round: a spin barrier and a task counter in plain memory.

Threads are ordinary Python threads that entered compiled code without the GIL, so no threading layer of
Numba is involved and nothing else may launch parallel kernels. Waiting yields the core after a while: on a
busy machine the thread that is waited for may need it.
"""

from __future__ import annotations

import platform
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from ninfer.fast.ops.vector import I32, I64, Emitter, kernel

# Team memory in int64 words, each on its own cache line: arrivals, generation, then the runner's own.
ARRIVALS, GENERATION, COUNTERS, LINE = 0, 8, 16, 8
_SPINS_BEFORE_YIELD = 4000


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


@kernel("ii")
def wait_while_equal(e: Emitter, address: Any, value: Any) -> None:
    """Spin until the int64 at ``address`` differs from ``value``; yields the core now and then."""
    builder = e.builder
    spins = cgutils.alloca_once_value(builder, e.integer(0))
    check, spin, rest, done = (builder.append_basic_block(name) for name in ("check", "spin", "rest", "done"))
    builder.branch(check)
    builder.position_at_end(check)
    builder.cbranch(builder.icmp_signed("==", _load(e, address), value), spin, done)
    builder.position_at_end(spin)
    _pause(e)
    count = builder.add(builder.load(spins), e.integer(1))
    builder.store(count, spins)
    long_wait = builder.icmp_signed(">", count, e.integer(_SPINS_BEFORE_YIELD))
    builder.cbranch(long_wait, rest, check)
    builder.position_at_end(rest)
    e.call("sched_yield", I32)
    builder.branch(check)
    builder.position_at_end(done)
