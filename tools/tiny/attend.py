"""Causal attention inside documents: several implementations of one function, chosen by measurement.

``dense`` is plain scaled-dot-product attention under a [B, T, T] mask and runs anywhere. ``varlen`` calls
PyTorch's flash kernels over cumulated document lengths. ``choose`` checks each against float64 on the device
it will run on and keeps the fastest that is right.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

# q [B, T, Hq, D], k and v [B, T, Hkv, D], layout -> [B, T, Hq, D]
Attend = Callable[[Tensor, Tensor, Tensor, "Layout"], Tensor]


class Layout(NamedTuple):
    """Where documents begin in a batch of packed rows.

    ``starts`` [B, T] bool: first token of a document (always at column 0). ``mask`` [B, 1, T, T] bool and
    ``offsets`` [documents + padding + 1] int32 are built only when an implementation asks for them.
    """

    starts: Tensor
    mask: Tensor | None = None
    offsets: Tensor | None = None
    longest: int = 0

    @classmethod
    def of(cls, starts: Tensor, wants: str) -> "Layout":
        """A layout holding what implementation ``wants`` needs."""
        if wants == "varlen":
            return cls(starts, offsets=_offsets(starts), longest=starts.shape[1])
        return cls(starts, mask=_mask(starts))


def _mask(starts: Tensor) -> Tensor:
    document = starts.cumsum(1)
    same = document[:, None, :, None] == document[:, None, None, :]
    return same & torch.ones_like(same[:1, :1]).tril()


def _offsets(starts: Tensor) -> Tensor:
    """Document starts over flattened rows, padded to one length: no shape changes, no wait for the device.

    Documents have at least sixteen tokens, so that the capacity holds them all.
    """
    total = starts.numel()
    capacity = total // 16
    index = starts.flatten().cumsum(0) - 1
    # What does not begin a document is written to one slot past the end and dropped.
    slot = torch.where(starts.flatten(), index.clamp(max=capacity), capacity + 1)
    offsets = torch.full((capacity + 2,), total, dtype=torch.int32, device=starts.device)
    offsets.scatter_(0, slot, torch.arange(total, dtype=torch.int32, device=starts.device))
    return offsets[: capacity + 1]


def dense(q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
    """Masked scaled-dot-product attention."""
    group = q.shape[2] // k.shape[2]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=layout.mask)
    return out.transpose(1, 2)


def varlen(q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
    """Flash attention over documents laid end to end."""
    if layout.offsets is None:
        raise ValueError("varlen attention needs a layout with offsets")
    group = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, 2) for x in (k, v))
    flat = (x.flatten(0, 1).contiguous() for x in (q, k, v))
    return _flash(*flat, layout.offsets, layout.longest)[0].view(q.shape)


@torch.library.custom_op("ninfer_tiny::flash_documents", mutates_args=())
def _flash(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, longest: int) -> tuple[Tensor, Tensor]:
    """Shapes: q, k, v [tokens, H, D]; returns the output and the log sums [H, tokens] for the backward."""
    out, log_sums, *_ = torch.ops.aten._flash_attention_forward(
        q, k, v, offsets, offsets, longest, longest, 0.0, True, False
    )
    return out, log_sums


@_flash.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, longest: int) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q), q.new_empty((q.shape[1], q.shape[0]), dtype=torch.float32)


@torch.library.custom_op("ninfer_tiny::flash_documents_backward", mutates_args=())
def _flash_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    log_sums: Tensor,
    offsets: Tensor,
    longest: int,
) -> tuple[Tensor, Tensor, Tensor]:
    seed = torch.zeros(2, dtype=torch.uint64, device=q.device)  # no dropout: never read
    unused = torch.zeros((), dtype=torch.uint64, device=q.device)
    lengths = (offsets, offsets, longest, longest)
    dq, dk, dv = torch.ops.aten._flash_attention_backward(
        grad.contiguous(), q, k, v, out, log_sums, *lengths, 0.0, True, seed, unused
    )
    return dq, dk, dv


@_flash_backward.register_fake
def _(grad, q, k, v, out, log_sums, offsets, longest):  # type: ignore[no-untyped-def]
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _flash_setup(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    q, k, v, offsets, longest = inputs
    ctx.save_for_backward(q, k, v, *output, offsets)
    ctx.longest = longest


def _flash_grad(ctx, grad, _unused):  # type: ignore[no-untyped-def]
    return *_flash_backward(grad, *ctx.saved_tensors, ctx.longest), None, None


_flash.register_autograd(_flash_grad, setup_context=_flash_setup)

CANDIDATES: dict[str, Attend] = {"varlen": varlen, "dense": dense}


def choose(device: torch.device, log: Callable[[str], None]) -> str:
    """The name of the fastest implementation that agrees with float64 on ``device`` (dense without a GPU)."""
    if device.type != "cuda":
        return "dense"
    timings: dict[str, float] = {}
    for name, function in CANDIDATES.items():
        try:
            # Compiled, as training will run it: an operation's declared shapes are tried too.
            compiled = torch.compile(function, dynamic=False)
            error = _error(compiled, name, device)
            timing = _time(compiled, name, device)
        except Exception as failure:  # whatever it is, the next candidate is tried and the log says why
            log(f"attention={name} refused: {type(failure).__name__} {str(failure)[:300]!r}")
            continue
        log(f"attention={name} relative_error={error:.2e} forward_backward_ms={timing * 1e3:.2f}")
        if error < 2e-2:
            timings[name] = timing
    if not timings:
        raise RuntimeError("no attention implementation agrees with float64 on this device")
    return min(timings, key=timings.__getitem__)


def _sample(device: torch.device, rows: int, length: int) -> tuple[list[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(7)
    shapes = ((rows, length, 4, 64), (rows, length, 2, 64), (rows, length, 2, 64), (rows, length, 4, 64))
    tensors = [torch.randn(shape, generator=generator).to(device, torch.bfloat16) for shape in shapes]
    starts = torch.rand(rows, length, generator=generator) < 0.01
    starts[:, 0] = True
    return tensors, starts.to(device)


def _grads(function: Attend, wants: str, inputs: list[Tensor], starts: Tensor) -> list[Tensor]:
    *qkv, weight = inputs
    qkv = [x.detach().requires_grad_() for x in qkv]
    out = function(*qkv, Layout.of(starts, wants))
    return [out, *torch.autograd.grad((out * weight).sum(), qkv)]


def _error(function: Attend, wants: str, device: torch.device) -> float:
    inputs, starts = _sample(device, 4, 2048)
    got = _grads(function, wants, inputs, starts)
    want = _grads(dense, "dense", [x.double() for x in inputs], starts)
    errors = [((a.double() - b).norm() / b.norm()).item() for a, b in zip(got, want, strict=True)]
    return max(error if error == error else float("inf") for error in errors)


def _time(function: Attend, wants: str, device: torch.device) -> float:
    inputs, starts = _sample(device, 4, 2048)
    best = float("inf")
    for _ in range(4):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        _grads(function, wants, inputs, starts)
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - begin)
    return best
