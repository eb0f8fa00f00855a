"""One Messages body, read.

Owns the top-level fields. Unknown and advisory ones are ignored, as the protocol's clients expect; one that
asks for a missing capability is an error that names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ninfer import spec
from ninfer.prompt.conversation import Conversation, Message
from ninfer.server.answer.exchange import Ask
from ninfer.server.members import Members
from ninfer.server.messages.blocks import read_system
from ninfer.server.messages.cache_control import CacheMarkers
from ninfer.server.messages.history import read_history
from ninfer.server.messages.thinking import Thinking, read_template_options, read_thinking
from ninfer.server.messages.tools import read_tools
from ninfer.server.neutral import refuse_unsupported
from ninfer.server.resolution import GenerationFields
from ninfer.server.sampler import sampler_value, sampling_overrides, stop_strings
from ninfer.server.tools import ToolFields


@dataclass(frozen=True, slots=True)
class MessagesRequest:
    """``model`` is a label that is echoed; ``omitted`` keeps reasoning out of the visible answer."""

    model: str
    ask: Ask
    stream: bool
    omitted: bool


@dataclass(frozen=True, slots=True)
class _Prompt:
    model: str
    conversation: Conversation
    thinking: Thinking
    tools: ToolFields


def read_messages_request(values: Mapping[str, Any]) -> MessagesRequest:
    """The request of a parsed body. Errors: ``RequestError`` naming the first wrong field."""
    body = Members(values)
    prompt = _read_prompt(body)
    fields = GenerationFields(
        sampling=sampling_overrides(body),
        seed=sampler_value(body, "seed"),
        max_tokens=_max_tokens(body),
        stops=_stops(body),
        thinking_budget=prompt.thinking.budget,
    )
    return MessagesRequest(
        model=prompt.model,
        ask=Ask(prompt.conversation, fields, prompt.tools.callable, prompt.tools.choice),
        stream=body.boolean("stream") or False,
        omitted=prompt.thinking.omitted,
    )


def read_count_request(values: Mapping[str, Any]) -> Conversation:
    """What is counted of a body; fields of output only are not looked at. Errors: as above."""
    return _read_prompt(Members(values)).conversation


def _read_prompt(body: Members) -> _Prompt:
    model = body.required_string("model")
    if not model:
        raise body.invalid("model", "must not be empty")
    _refuse(body)
    markers = CacheMarkers()
    tools = read_tools(body, markers)
    system = read_system(body, markers)
    history = read_history(body, markers)
    automatic = markers.request(body)
    thinking = read_thinking(body)
    messages = (Message("system", system), *history) if system else history
    return _Prompt(
        model,
        Conversation(
            messages, tools.declared, read_template_options(body, thinking), cache_automatic=automatic
        ),
        thinking,
        tools,
    )


def _refuse(body: Members) -> None:
    refuse_unsupported(body, spec.document("http/messages")["refused"])
    output = body.child("output_config")
    if output is not None and output.value("format") is not None:
        raise output.invalid(
            "format", "is not supported: NInfer does not provide output constraints", "unsupported_parameter"
        )


def _max_tokens(body: Members) -> int | None:
    return body.integer("max_tokens", 1, spec.document("http/messages")["limits"]["max_output_tokens"])


def _stops(body: Members) -> tuple[str, ...]:
    most: int = spec.document("http/messages")["limits"]["max_stops"]
    return stop_strings(body, "stop_sequences", most)
