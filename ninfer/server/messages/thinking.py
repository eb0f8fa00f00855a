"""The thinking fields of a Messages body, and the signatures that thinking blocks carry.

Owns both directions of a signature: what an answer's block gets, and what a block in history means.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import cast

from ninfer import spec
from ninfer.prompt.conversation import ReasoningEffort, TemplateOptions
from ninfer.server.members import Members


@dataclass(frozen=True, slots=True)
class Thinking:
    """``budget`` caps thinking tokens; ``omitted`` keeps reasoning out of the visible answer."""

    enabled: bool | None = None
    budget: int | None = None
    omitted: bool = False


def read_thinking(body: Members) -> Thinking:
    """The member ``thinking``. Errors: ``RequestError`` naming the field."""
    rules = spec.document("http/messages")
    field = body.child("thinking")
    if field is None:
        return Thinking()
    field.required_string("type")
    kind = field.choice("type", rules["thinking_types"])
    omitted = field.choice("display", rules["thinking_displays"]) == "omitted"
    if kind != "enabled":
        return Thinking(enabled=kind == "adaptive", omitted=omitted)
    limits = rules["limits"]
    budget = field.integer("budget_tokens", limits["minimum_thinking_budget"], limits["max_output_tokens"])
    if budget is None:
        raise field.missing("budget_tokens")
    return Thinking(True, budget, omitted)


def read_template_options(body: Members, thinking: Thinking) -> TemplateOptions:
    """Errors: ``RequestError`` naming the field."""
    kwargs = body.child("chat_template_kwargs")
    output = body.child("output_config")
    efforts: list[str] = spec.document("prompt")["options"]["reasoning_efforts"]
    effort = None if output is None else output.choice("effort", efforts)
    if thinking.enabled is False:
        effort = None  # an effort says how to think; this request does not
    return TemplateOptions(
        enable_thinking=thinking.enabled,
        preserve_thinking=body.boolean("preserve_thinking"),
        reasoning_effort=cast(ReasoningEffort | None, effort),
        kwargs={} if kwargs is None else kwargs.values,
    )


def signature(reasoning: str, omitted: bool) -> str:
    """What stands beside an answer's reasoning; with ``omitted`` it carries it."""
    rules = spec.document("http/messages")
    if not omitted:
        visible: str = rules["visible_signature"]
        return visible
    mark: str = rules["reasoning_signature"]
    return mark + base64.b64encode(reasoning.encode()).decode()


def reasoning_of(block: Members) -> str:
    """The reasoning that a thinking block of history stands for.

    Errors: ``RequestError`` ``invalid_thinking_signature`` for a broken signature of ours on an empty block.
    """
    text = block.required_string("thinking")
    sign = block.string("signature") or ""
    mark: str = spec.document("http/messages")["reasoning_signature"]
    if text or not sign.startswith(mark):
        return text
    try:
        return base64.b64decode(sign[len(mark) :], validate=True).decode()
    except (binascii.Error, ValueError) as error:
        raise block.invalid(
            "signature", "is not the signature that this server sent", "invalid_thinking_signature"
        ) from error
