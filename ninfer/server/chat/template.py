"""The thinking fields of a chat request and its ``chat_template_kwargs`` as template options.

Owns where each option may stand and its type; whether two values agree and what kwargs may set is decided
where prompts are prepared, for every protocol.
"""

from __future__ import annotations

from typing import cast

from ninfer import spec
from ninfer.prompt.conversation import ReasoningEffort, TemplateOptions
from ninfer.server.members import Members


def read_template_options(body: Members) -> TemplateOptions:
    """Errors: ``RequestError`` naming the field."""
    kwargs = body.child("chat_template_kwargs")
    return TemplateOptions(
        enable_thinking=body.boolean("enable_thinking"),
        preserve_thinking=body.boolean("preserve_thinking"),
        reasoning_effort=_effort(body),
        kwargs={} if kwargs is None else kwargs.values,
    )


def _effort(body: Members) -> ReasoningEffort | None:
    options = spec.document("prompt")["options"]
    aliases: list[str] = spec.document("http/chat")["reasoning_effort_aliases"]
    allowed = [options["no_effort"], *options["reasoning_efforts"], *aliases]
    value = body.choice("reasoning_effort", allowed)
    return None if value in aliases else cast(ReasoningEffort | None, value)
