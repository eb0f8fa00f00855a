"""Merges the sampler's sources into the parameters one request runs with.

Owns the precedence: registered preset, then process, then request, then greedy; and what a seed becomes.
Values were checked where they were read (``parameters.SamplingRange``).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from ninfer.model.presets import Preset
from ninfer.sampling.parameters import SamplingOverrides, SamplingParameters


def resolve_sampling(
    preset: Preset,
    process: SamplingOverrides,
    request: SamplingOverrides,
    greedy: bool,
    seed: int | None,
    fresh_seed: Callable[[], int],
) -> SamplingParameters:
    """The effective sampler. Source: ``spec/sampling.yaml`` ``precedence``.

    ``seed`` is the request's seed, or else the process's; ``fresh_seed`` is asked only when there is neither.
    """

    def effective(name: str) -> Any:
        values = (getattr(source, name) for source in (request, process, preset))
        return next(value for value in values if value is not None)

    return SamplingParameters(
        temperature=0.0 if greedy else float(effective("temperature")),
        top_p=float(effective("top_p")),
        top_k=int(effective("top_k")),
        min_p=float(effective("min_p")),
        presence_penalty=float(effective("presence_penalty")),
        frequency_penalty=float(effective("frequency_penalty")),
        seed=unsigned_seed(fresh_seed() if seed is None else seed),
    )


def unsigned_seed(seed: int) -> int:
    """A signed seed as the unsigned 64-bit key it stands for (two's complement)."""
    return seed % 2**64


def random_seed() -> int:
    """A fresh seed that a client can send back as a signed integer: 63 random bits."""
    return secrets.randbits(63)
