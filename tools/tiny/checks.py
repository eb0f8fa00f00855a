"""Checks that a training run makes on its own machine before it trusts the compiler.

Compilers were seen to give wrong gradients for gated delta rules on new GPUs; both checks therefore compare
gradients, not only results, and stop the run.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tools.tiny.deltanet import RESET_GATE, chunked, recurrent

_DELTA_LIMIT = 5e-3  # tf32 products are right to about 1e-3
_MODEL_SLACK = 0.02
_SMALL = 1e-5


class WrongGradients(RuntimeError):
    """A gradient on this device is not what float64 or float32 says."""


def check_delta_rule(device: torch.device, log: Callable[[str], None], length: int = 256) -> None:
    """Chunked form on ``device`` against the recurrent definition in float64: result and all gradients."""
    inputs = _delta_inputs(length)
    want = _delta_gradients(recurrent, [x.to(device, torch.float64) for x in inputs])
    got = _delta_gradients(chunked, [x.to(device) for x in inputs])
    errors = [_relative(a, b) for a, b in zip(got, want, strict=True)]
    log("check=delta_rule relative_errors=" + ",".join(f"{error:.1e}" for error in errors))
    if not max(errors) < _DELTA_LIMIT:
        raise WrongGradients(f"chunked delta rule is off by {max(errors):.2e} on {device}")


def _delta_inputs(length: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    shape = (2, length, 4, 64)
    q, k, v = (torch.randn(shape, generator=generator) for _ in range(3))
    # Keys that resemble each other are what makes the triangular inverse hard.
    k = torch.nn.functional.normalize(k + 0.5 * torch.randn(2, 1, 4, 64, generator=generator), dim=-1)
    q = torch.nn.functional.normalize(q, dim=-1) / 8
    gate = -0.1 * torch.rand(shape[:3], generator=generator)
    gate[:, [length // 4 + 6, length // 4 + 11, length // 2]] = RESET_GATE
    beta = torch.rand(shape[:3], generator=generator)
    return [q, k, v, gate, beta]


def _delta_gradients(rule: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in inputs]
    out = rule(*leaves)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(4)).to(out)
    return [out, *torch.autograd.grad((out * weight).sum(), leaves)]


def check_gradients(
    fast: Callable[[], Tensor],
    plain: Callable[[], Tensor],
    exact: Callable[[], Tensor],
    parameters: dict[str, Tensor],
    log: Callable[[str], None],
) -> None:
    """Every parameter's gradient of the compiled loss on one batch.

    ``plain`` is the same arithmetic without the compiler, ``exact`` float32: the compiled gradient may lie no
    farther from ``exact`` than bf16 itself puts the plain one, times three.
    """
    got, rounded, want = (_gradients(loss, parameters) for loss in (fast, plain, exact))
    largest = max(g.norm().item() for g in want.values())
    names = [name for name, g in want.items() if g.norm().item() > _SMALL * largest]
    errors = {name: _relative(got[name], want[name]) for name in names}
    limits = {name: 3 * _relative(rounded[name], want[name]) + _MODEL_SLACK for name in names}
    worst = max(names, key=lambda name: errors[name] / limits[name])
    median = sorted(errors.values())[len(errors) // 2]
    log(
        f"check=gradients parameters={len(names)} median_error={median:.1e} worst={worst} "
        f"error={errors[worst]:.1e} limit={limits[worst]:.1e}"
    )
    if not errors[worst] < limits[worst]:
        raise WrongGradients(f"the compiled gradient of {worst} is off by {errors[worst]:.2e}")


def _gradients(loss: Callable[[], Tensor], parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    loss().backward()
    found = {}
    for name, parameter in parameters.items():
        if parameter.grad is not None:
            found[name] = parameter.grad
        parameter.grad = None
    return found


def _relative(got: Tensor, want: Tensor) -> float:
    got, want = (x.detach().double().cpu() for x in (got, want))
    error = (got - want).norm() / want.norm()
    return float(error) if torch.isfinite(error) else float("inf")
