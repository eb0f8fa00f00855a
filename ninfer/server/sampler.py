"""A sampling field of a body, for every protocol that has it; ranges stand in ``spec/sampling.yaml``."""

from __future__ import annotations

from typing import Any

from ninfer.sampling.parameters import sampling_range
from ninfer.server.members import Members


def sampler_value(body: Members, name: str) -> Any:
    """The number that ``name`` gives; None when absent. Errors: ``RequestError`` when it is wrong."""
    value = body.value(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise body.wrong_type(name, "a number")
    problem = sampling_range(name).problem(value)
    if problem is not None:
        raise body.invalid(name, problem)
    return value
