"""Template options of one request, merged with the server's defaults.

Owns which value wins, what contradicts, and which reasoning effort a template that rejects the wanted one is
given instead. Source: ``spec/prompt.yaml`` ``options``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ninfer import spec
from ninfer.errors import RequestError
from ninfer.prompt.conversation import TemplateOptions

_KWARGS = "chat_template_kwargs"


@dataclass(frozen=True, slots=True)
class ResolvedOptions:
    """``variables`` go to the template; ``thinking_refused`` tells that the request itself disables it."""

    variables: Mapping[str, Any]
    thinking_refused: bool


def resolve_options(
    request: TemplateOptions, defaults: TemplateOptions, accepted_efforts: Sequence[str]
) -> ResolvedOptions:
    """What the template is given; ``accepted_efforts`` are those it renders, none: all.

    Errors: ``RequestError`` ``conflicting_template_option`` where two fields contradict, ``invalid_type`` and
    ``invalid_value`` for kwargs that cannot be set so.
    """
    rules = spec.document("prompt")["options"]
    given = _given(request, rules)
    asked = given.get(rules["effort"])
    thinking = given.get("enable_thinking")
    if asked is not None and thinking is not None and thinking == (asked == rules["no_effort"]):
        raise _conflict(rules["effort"], f"{asked!r} contradicts enable_thinking {str(thinking).lower()}")
    refused = thinking is False or asked == rules["no_effort"]
    variables = dict(request.kwargs)
    for name in (*rules["booleans"], rules["effort"]):
        variables.pop(name, None)
    for name in rules["booleans"]:
        value = given.get(name, getattr(defaults, name))
        if value is not None:
            variables[name] = value
    effort = asked
    if asked is not None and not refused and variables.get("enable_thinking") is False:
        variables["enable_thinking"] = True  # an effort asks for thinking, and requests win over defaults
    if asked is None and not refused:
        effort = defaults.reasoning_effort
        if effort == rules["no_effort"] and thinking:
            effort = None
    if effort == rules["no_effort"]:
        variables["enable_thinking"] = False
    elif effort is not None:
        variables[rules["effort"]] = nearest_effort(effort, accepted_efforts)
    return ResolvedOptions(variables, refused)


def nearest_effort(wanted: str, accepted: Sequence[str]) -> str:
    """``wanted``, or the accepted effort closest in rank, the higher of two; none: ``wanted``."""
    ranks: list[str] = spec.document("prompt")["options"]["reasoning_efforts"]
    if not accepted or wanted in accepted or wanted not in ranks:
        return wanted
    rank = ranks.index(wanted)
    return min(accepted, key=lambda effort: (abs(ranks.index(effort) - rank), -ranks.index(effort)))


def _given(request: TemplateOptions, rules: Mapping[str, Any]) -> dict[str, Any]:
    """The request's own option values: typed fields and kwargs, which must agree; None is unspecified."""
    for name in (*rules["reserved"], *rules["special_tokens"]):
        if name in request.kwargs:
            raise RequestError("invalid_value", f"{_KWARGS}.{name} cannot be overridden", f"{_KWARGS}.{name}")
    given: dict[str, Any] = {}
    for name in (*rules["booleans"], rules["effort"]):
        typed = getattr(request, name)
        extra = _checked(name, request.kwargs.get(name), rules)
        if typed is not None and extra is not None and typed != extra:
            raise _conflict(name, f"is {typed!r}, but {_KWARGS}.{name} is {extra!r}")
        value = extra if typed is None else typed
        if value is not None:
            given[name] = value
    return given


def _checked(name: str, value: Any, rules: Mapping[str, Any]) -> Any:
    path = f"{_KWARGS}.{name}"
    if value is None:
        return None
    if name in rules["booleans"]:
        if not isinstance(value, bool):
            raise RequestError("invalid_type", f"{path} must be true or false, not {value!r}", path)
    elif value not in (rules["no_effort"], *rules["reasoning_efforts"]):
        known = ", ".join((rules["no_effort"], *rules["reasoning_efforts"]))
        raise RequestError("invalid_value", f"{path} must be one of {known}, not {value!r}", path)
    return value


def _conflict(name: str, message: str) -> RequestError:
    return RequestError("conflicting_template_option", f"{name} {message}", name)
