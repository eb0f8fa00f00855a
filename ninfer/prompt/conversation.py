"""The protocol-neutral conversation that every HTTP adapter and the CLI build.

Owns plain values only: no template, tokenizer or protocol rules. JSON objects (tool schemas, tool
arguments) stay Python dicts in the member order in which they were received.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "developer", "user", "assistant", "tool"]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


@dataclass(frozen=True, slots=True)
class TextPart:
    """One piece of message text; adjacent parts join without a separator.

    ``breakpoint`` asks to keep what comes before its end for other prompts; it is no part of the text.
    """

    text: str
    breakpoint: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class MediaPart:
    """An image or video of a message; ``source`` is what the client sent (URL or data URI)."""

    kind: Literal["image", "video"]
    source: str
    breakpoint: bool = field(default=False, compare=False)


Part = TextPart | MediaPart


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call in assistant history; ``arguments`` keeps the received member order."""

    name: str
    arguments: Mapping[str, Any]
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """One turn; ``reasoning`` and ``tool_calls`` belong to assistants, ``tool_call_id`` to tool results."""

    role: Role
    parts: tuple[Part, ...] = ()
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None


@dataclass(frozen=True, slots=True)
class Tool:
    """A declared tool; ``definition`` is the JSON object the template renders, in received order."""

    name: str
    definition: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TemplateOptions:
    """What a request or the server asks of the chat template; None means unspecified.

    ``kwargs`` are the request's ``chat_template_kwargs`` without the typed options above them.
    """

    enable_thinking: bool | None = None
    preserve_thinking: bool | None = None
    reasoning_effort: ReasoningEffort | None = None
    add_vision_id: bool | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages in input order, the tools declared with them, and the template options.

    A final assistant message is continued in place (``chat`` clauses TMPL-003 and prefill) where
    ``continues_final`` says so; otherwise a new assistant turn follows it. ``cache_automatic``: the end of
    the last message's body is worth keeping for other prompts, beside what ``breakpoint`` marks.
    """

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    options: TemplateOptions = TemplateOptions()
    continues_final: bool = True
    cache_automatic: bool = True
