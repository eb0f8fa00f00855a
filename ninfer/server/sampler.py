"""Fields of a body about its generation, for every protocol that has them.

Owns types and ranges of sampling fields (``spec/sampling.yaml``) and of stop strings.
"""

from __future__ import annotations

from typing import Any

from ninfer.sampling.parameters import SamplingOverrides, sampling_range
from ninfer.server.members import Members, wrong_type

_SAMPLER = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty")


def sampling_overrides(body: Members) -> SamplingOverrides:
    """Every sampling field of a body. Errors: as ``sampler_value``."""
    return SamplingOverrides(**{name: sampler_value(body, name) for name in _SAMPLER})


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


def stop_strings(body: Members, name: str, most: int, *, alone: bool = False) -> tuple[str, ...]:
    """At most ``most`` stop strings of an array; with ``alone`` a string may stand for itself.

    Errors: ``RequestError`` naming the field.
    """
    wanted = "a string or an array of strings" if alone else "an array of strings"
    value = body.value(name)
    if value is None:
        return ()
    stops = [value] if alone and isinstance(value, str) else value
    if not isinstance(stops, list):
        raise body.wrong_type(name, wanted)
    if len(stops) > most:
        raise body.invalid(name, f"may hold at most {most} strings, not {len(stops)}")
    for stop in stops:
        if not isinstance(stop, str):
            raise wrong_type(name, stop, wanted)
        if not stop:
            raise body.invalid(name, "must not hold an empty string")
    return tuple(stops)
