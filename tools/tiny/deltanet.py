"""The gated delta rule for training: recurrent definition and chunked form with a checked backward.

    S <- e^g S;  S <- S + k (beta (v - S'k))';  o = S'q

Owns the two custom operations (unit-lower-triangular inverse, scan over chunk states) whose backward is
written out here, so that compilers see them whole. Everything else is left to automatic differentiation.
Nothing here is a hand-written kernel: compilers were seen to give wrong gradients for those.
"""

import torch
from torch import Tensor

# Added at a document's first token: the previous document's state is multiplied by e^-40, which is zero
# beside anything, and differences of cumulated gates stay exact to 1e-5.
RESET_GATE = -40.0

_BASE = 8  # Neumann products stay accurate to C(7, 3) = 35; larger base blocks would cancel digits.


def recurrent(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """The definition, token by token. Shapes: q, k, v [B, T, H, D]; g, beta [B, T, H]; result [B, T, H,
    D].
    """
    batch, length, heads, width = q.shape
    state = q.new_zeros(batch, heads, width, v.shape[-1])
    outputs = []
    for t in range(length):
        state = state * g[:, t, :, None, None].exp()
        error = v[:, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, t])
        state = state + k[:, t, :, :, None] * (beta[:, t, :, None] * error)[:, :, None, :]
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
    return torch.stack(outputs, 1)


def chunked(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, chunk: int = 64) -> Tensor:
    """Equal to ``recurrent``; T must be a multiple of ``chunk`` (a power of two, at least 8)."""
    batch, _, heads, _ = q.shape
    q, k, v = (_split(x, chunk) for x in (q, k, v))  # [N, B*H, C, D]
    total = _split(g[..., None], chunk).squeeze(-1).cumsum(-1)  # [N, B*H, C]
    beta = _split(beta[..., None], chunk)  # [N, B*H, C, 1]
    lower = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).tril()
    # Masked before exp: above the diagonal the differences are positive and overflow.
    gap = (total[..., :, None] - total[..., None, :]).masked_fill(~lower, float("-inf"))
    decay = gap.exp()
    grown = total.exp()[..., None]
    mixing = (beta * (k @ k.mT) * decay).tril(-1)
    solve = unit_lower_inverse(mixing)
    fresh = solve @ (beta * v)
    carried = solve @ (beta * grown * k)
    last = total[..., -1:]
    kept = k * (last - total).exp()[..., None]
    eye = torch.eye(k.shape[-1], dtype=k.dtype, device=k.device)
    advance = last.exp()[..., None] * eye - kept.mT @ carried
    states = chunk_states(advance, kept.mT @ fresh)
    written = fresh - carried @ states
    out = (q * grown) @ states + ((q @ k.mT) * decay) @ written
    return _join(out, batch, heads)


def _split(x: Tensor, chunk: int) -> Tensor:
    """[B, T, H, D] to [N, B*H, C, D]: chunks lead, so that a chunk of all rows lies together."""
    batch, length, heads, width = x.shape
    x = x.reshape(batch, length // chunk, chunk, heads, width).permute(1, 0, 3, 2, 4)
    return x.reshape(length // chunk, batch * heads, chunk, width)


def _join(x: Tensor, batch: int, heads: int) -> Tensor:
    chunks, _, chunk, width = x.shape
    x = x.reshape(chunks, batch, heads, chunk, width).permute(1, 0, 3, 2, 4)
    return x.reshape(batch, chunks * chunk, heads, width)


@torch.library.custom_op("ninfer_tiny::unit_lower_inverse", mutates_args=())
def unit_lower_inverse(strict: Tensor) -> Tensor:
    """(I + L)^-1 for strictly lower triangular L [..., C, C], by blocks of 8, 16, … in full precision."""
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        return _block_inverse(strict.contiguous())
    finally:
        torch.set_float32_matmul_precision(precision)


def _block_inverse(strict: Tensor) -> Tensor:
    *lead, size, _ = strict.shape
    power = -_diagonal_blocks(strict, min(_BASE, size))
    inverse = power + torch.eye(power.shape[-1], dtype=strict.dtype, device=strict.device)
    reach = 2
    while reach < power.shape[-1]:
        power = power @ power
        inverse = inverse + inverse @ power
        reach *= 2
    while inverse.shape[-1] < size:
        inverse = _merge_pairs(inverse, strict)
    return inverse.reshape(*lead, size, size)


def _diagonal_blocks(x: Tensor, width: int) -> Tensor:
    """[..., C, C] to its diagonal blocks [..., C/width, width, width]."""
    *lead, size, _ = x.shape
    grid = x.reshape(*lead, size // width, width, size // width, width)
    return grid.diagonal(dim1=-4, dim2=-2).movedim(-1, -3).contiguous()


def _merge_pairs(inverse: Tensor, strict: Tensor) -> Tensor:
    """Inverses of neighbouring blocks A, D and the block B under A give [[A, 0], [-D B A, D]]."""
    *lead, count, width, _ = inverse.shape
    pairs = inverse.reshape(*lead, count // 2, 2, width, width)
    first, second = pairs[..., 0, :, :], pairs[..., 1, :, :]
    below = _diagonal_blocks(strict, 2 * width)[..., width:, :width]
    merged = inverse.new_zeros(*lead, count // 2, 2 * width, 2 * width)
    merged[..., :width, :width] = first
    merged[..., width:, width:] = second
    merged[..., width:, :width] = -(second @ below @ first)
    return merged


@unit_lower_inverse.register_fake
def _(strict: Tensor) -> Tensor:
    return torch.empty_like(strict, memory_format=torch.contiguous_format)


def _inverse_setup(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    ctx.save_for_backward(output)


def _inverse_backward(ctx, grad: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
    (inverse,) = ctx.saved_tensors
    return -(inverse.mT @ grad @ inverse.mT).tril(-1)


unit_lower_inverse.register_autograd(_inverse_backward, setup_context=_inverse_setup)


@torch.library.custom_op("ninfer_tiny::chunk_states", mutates_args=())
def chunk_states(advance: Tensor, add: Tensor) -> Tensor:
    """States before each chunk: S_0 = 0, S_{n+1} = advance_n S_n + add_n. Shapes: [N, G, K, K], [N, G, K,
    V].
    """
    states = torch.zeros_like(add, memory_format=torch.contiguous_format)
    for n in range(add.shape[0] - 1):
        torch.baddbmm(add[n], advance[n], states[n], out=states[n + 1])
    return states


@chunk_states.register_fake
def _(advance: Tensor, add: Tensor) -> Tensor:
    return torch.empty_like(add, memory_format=torch.contiguous_format)


@torch.library.custom_op("ninfer_tiny::chunk_states_adjoint", mutates_args=())
def chunk_states_adjoint(advance: Tensor, grad: Tensor) -> Tensor:
    """R_n = advance_n' R_{n+1} + grad_n from the last chunk back; R_{n+1} is the gradient of add_n."""
    adjoint = grad.clone(memory_format=torch.contiguous_format)
    for n in range(grad.shape[0] - 2, -1, -1):
        torch.baddbmm(grad[n], advance[n].mT, adjoint[n + 1], out=adjoint[n])
    return adjoint


@chunk_states_adjoint.register_fake
def _(advance: Tensor, grad: Tensor) -> Tensor:
    return torch.empty_like(grad, memory_format=torch.contiguous_format)


def _states_setup(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    ctx.save_for_backward(inputs[0], output)


def _states_backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[no-untyped-def]
    advance, states = ctx.saved_tensors
    adjoint = chunk_states_adjoint(advance, grad)
    # add_n feeds S_{n+1}; the last chunk's feeds nothing.
    of_add = torch.cat([adjoint[1:], torch.zeros_like(adjoint[:1])])
    return of_add @ states.mT, of_add


chunk_states.register_autograd(_states_backward, setup_context=_states_setup)
