"""The sampler's values: what one source overrides, what is in force, and the ranges both must keep.

Owns plain values and their range check; knows nothing of where a value came from (``resolve.py``).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import msgspec

from ninfer import spec


class SamplingParameters(msgspec.Struct, frozen=True):
    """The effective sampler of one request, after preset, process and request values are merged.

    Ranges stand in ``spec/sampling.yaml``. ``temperature`` 0 is argmax with ties to the lower id;
    ``top_k`` 0 selects the cap. ``seed`` is unsigned 64-bit.
    """

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    seed: int


@dataclass(frozen=True, slots=True)
class SamplingOverrides:
    """What one source (the process's options or a request) says; None leaves the source below in force."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None


@dataclass(frozen=True, slots=True)
class SamplingRange:
    """The allowed values of one parameter, both bounds included."""

    name: str
    integer: bool
    minimum: float
    maximum: float

    def problem(self, value: object) -> str | None:
        """What is wrong with ``value``, to follow the field's name in a sentence; None if nothing."""
        kinds = int if self.integer else int | float
        kind = "an integer" if self.integer else "a number"
        wanted = f"must be {kind} in {self.minimum:g}..{self.maximum:g}"
        if self.name == "seed":
            wanted = "must be a signed 64-bit integer"
        if isinstance(value, bool) or not isinstance(value, kinds):
            return f"{wanted}, not {value!r}"
        if not math.isfinite(value) or not self.minimum <= value <= self.maximum:
            return f"{wanted}, not {value}"
        return None


@functools.cache
def sampling_range(name: str) -> SamplingRange:
    """The range of the parameter ``name`` (``seed`` included). Source: ``spec/sampling.yaml`` ``ranges``."""
    row = spec.document("sampling")["ranges"][name]
    return SamplingRange(name, row["type"] == "integer", row["minimum"], row["maximum"])


@functools.cache
def candidate_cap() -> int:
    """The most candidates one draw may choose from. Source: ``spec/sampling.yaml`` ``candidate_cap``."""
    return int(spec.document("sampling")["candidate_cap"])
