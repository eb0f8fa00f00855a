"""The thinking fields of a chat request and its ``chat_template_kwargs`` as template options.

Owns where each option may stand and that a value given twice agrees; what a template does with the options
is its own affair.
"""

from __future__ import annotations

from typing import Any, cast

from ninfer import spec
from ninfer.errors import RequestError
from ninfer.prompt.conversation import ReasoningEffort, TemplateOptions
from ninfer.server.members import Members

_SWITCHES = ("enable_thinking", "preserve_thinking", "add_vision_id")
_KWARGS = "chat_template_kwargs"


def read_template_options(body: Members) -> TemplateOptions:
    """Errors: ``RequestError``, code ``conflicting_template_option`` where two fields disagree."""
    kwargs = body.child(_KWARGS) or Members({}, _KWARGS)
    _refuse_reserved(kwargs)
    switches = {name: _agreed(body, kwargs, name) for name in _SWITCHES}
    effort = _effort(body, kwargs)
    thinking = switches["enable_thinking"]
    if effort is not None and thinking is not None and thinking != (effort != "none"):
        raise RequestError(
            "conflicting_template_option",
            f"reasoning_effort {effort} contradicts enable_thinking {str(thinking).lower()}.",
            "reasoning_effort",
        )
    return TemplateOptions(
        enable_thinking=thinking,
        preserve_thinking=switches["preserve_thinking"],
        reasoning_effort=effort,
        add_vision_id=switches["add_vision_id"],
        kwargs={
            name: value
            for name, value in (body.value(_KWARGS) or {}).items()
            if name not in (*_SWITCHES, "reasoning_effort")
        },
    )


def _refuse_reserved(kwargs: Members) -> None:
    for name in spec.document("http/chat")["reserved_template_kwargs"]:
        if kwargs.has(name):
            raise kwargs.invalid(name, "cannot be overridden")


def _agreed(body: Members, kwargs: Members, name: str) -> bool | None:
    values = [value for value in (body.boolean(name), kwargs.boolean(name)) if value is not None]
    _must_agree(values, name)
    return values[0] if values else None


def _effort(body: Members, kwargs: Members) -> ReasoningEffort | None:
    tables = spec.document("http/chat")
    allowed = [*tables["reasoning_efforts"], *tables["reasoning_effort_aliases"]]
    given = (source.choice("reasoning_effort", allowed) for source in (body, kwargs))
    values = [value for value in given if value is not None]
    _must_agree(values, "reasoning_effort")
    if not values or values[0] in tables["reasoning_effort_aliases"]:
        return None
    return cast(ReasoningEffort, values[0])


def _must_agree(values: list[Any], name: str) -> None:
    if len(values) == 2 and values[0] != values[1]:
        raise RequestError(
            "conflicting_template_option", f"{name} and {_KWARGS}.{name} have different values.", name
        )
