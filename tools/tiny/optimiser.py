"""The optimiser: Muon for matrices, AdamW for the rest, or AdamW for all; one learning-rate schedule.

Owns update rules and their moments. Muon orthogonalises the momentum of each matrix by Newton-Schulz
steps and scales it to AdamW's usual update size (0.2 root mean square), so that both rules share a
learning rate.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_NEWTON = (3.4445, -4.7750, 2.0315)
_MATCHED_RMS = 0.2


@dataclass(frozen=True, slots=True)
class Recipe:
    """Rates and decays. ``total_tokens`` fixes the schedule; a shorter run follows its beginning."""

    total_tokens: int
    rule: str = "muon"  # or "adamw"
    rate: float = 3e-3
    matrix_rate: float = 5e-3
    warmup_tokens: int = 10_000_000
    decay_share: float = 0.4
    weight_decay: float = 0.05
    betas: tuple[float, float] = (0.9, 0.95)
    momentum: float = 0.95
    clip: float = 1.0

    def schedule(self, tokens: int) -> float:
        """Share of the full rate at ``tokens``: linear warm-up, constant, linear to zero."""
        up = min(1.0, tokens / max(1, self.warmup_tokens))
        decay = self.decay_share * self.total_tokens
        down = min(1.0, max(0.0, (self.total_tokens - tokens) / decay))
        return min(up, down)


class Optimiser:
    """Updates parameters in place from their gradients. Moments are named after parameters."""

    def __init__(self, parameters: dict[str, Tensor], recipe: Recipe) -> None:
        self.recipe = recipe
        self._parameters = parameters
        matrices = {n for n, p in parameters.items() if recipe.rule == "muon" and _is_matrix(n, p)}
        self._matrices = sorted(matrices)
        self._others = [name for name in parameters if name not in matrices]
        self.first = {name: torch.zeros_like(p) for name, p in parameters.items()}
        self.second = {name: torch.zeros_like(parameters[name]) for name in self._others}
        self.steps = 0

    @torch.no_grad()
    def step(self, share: float) -> Tensor:
        """One update at ``share`` of the full rates; returns the gradients' norm before clipping."""
        self.steps += 1
        gradients = {name: p.grad for name, p in self._parameters.items()}
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(gradients.values()))))
        scale = (self.recipe.clip / (norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(list(gradients.values()), scale)
        if self._others:
            self._adam(gradients, self.recipe.rate * share)
        if self._matrices:
            self._muon(gradients, self.recipe.matrix_rate * share)
        for parameter in self._parameters.values():
            parameter.grad = None
        return norm

    def _adam(self, gradients: dict[str, Tensor], rate: float) -> None:
        one, two = self.recipe.betas
        names = self._others
        grads, first, second = ([table[n] for n in names] for table in (gradients, self.first, self.second))
        weights = [self._parameters[n] for n in names]
        torch._foreach_lerp_(first, grads, 1 - one)
        torch._foreach_mul_(second, two)
        torch._foreach_addcmul_(second, grads, grads, 1 - two)
        root = torch._foreach_sqrt(second)
        torch._foreach_div_(root, (1 - two**self.steps) ** 0.5)
        torch._foreach_add_(root, 1e-8)
        decayed = [w for w in weights if w.ndim == 2]
        if decayed:
            torch._foreach_mul_(decayed, 1 - rate * self.recipe.weight_decay)
        torch._foreach_addcdiv_(weights, first, root, -rate / (1 - one**self.steps))

    def _muon(self, gradients: dict[str, Tensor], rate: float) -> None:
        momentum = self.recipe.momentum
        names = self._matrices
        grads, first = ([table[n] for n in names] for table in (gradients, self.first))
        torch._foreach_lerp_(first, grads, 1 - momentum)
        ahead = torch._foreach_lerp(grads, first, momentum)  # Nesterov
        pieces: dict[tuple[int, ...], list[tuple[Tensor, Tensor]]] = {}
        for name, update in zip(names, ahead, strict=True):
            for target, part in zip(_parts(name, self._parameters[name]), _parts(name, update), strict=True):
                pieces.setdefault(tuple(part.shape), []).append((target, part))
        for (rows, columns), group in pieces.items():
            targets = [target for target, _ in group]
            turned = orthogonalise(torch.stack([part for _, part in group]))
            torch._foreach_mul_(targets, 1 - rate * self.recipe.weight_decay)
            step = rate * _MATCHED_RMS * max(rows, columns) ** 0.5
            torch._foreach_add_(targets, list(turned.to(targets[0].dtype).unbind()), alpha=-step)


def _is_matrix(name: str, parameter: Tensor) -> bool:
    return parameter.ndim == 2 and min(parameter.shape) >= 16 and "embed" not in name


def _parts(name: str, matrix: Tensor) -> tuple[Tensor, ...]:
    """Query, key and value rows of a fused projection are matrices of their own."""
    return matrix.chunk(3) if "in_proj_qkv" in name else (matrix,)


def orthogonalise(batch: Tensor, steps: int = 5) -> Tensor:
    """Nearest half-orthogonal matrices of [N, rows, columns], roughly: singular values within 0.7 to 1.2."""
    a, b, c = _NEWTON
    x = batch.bfloat16() if batch.is_cuda else batch
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x
