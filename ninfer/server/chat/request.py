"""One Chat Completions body, read.

Owns the top-level fields. A field that is present, known and cannot be honoured is an error; unknown ones
are ignored, as the protocol's clients expect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ninfer import spec
from ninfer.errors import RequestError
from ninfer.prompt.conversation import Conversation
from ninfer.server.answer.exchange import Ask
from ninfer.server.cache_hints import read_automatic
from ninfer.server.chat.messages import read_messages
from ninfer.server.chat.refusals import refuse_unsupported
from ninfer.server.chat.template import read_template_options
from ninfer.server.chat.tools import read_tools
from ninfer.server.members import Members
from ninfer.server.resolution import GenerationFields
from ninfer.server.sampler import sampler_value, sampling_overrides, stop_strings


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What a chat body asks for; what follows ``stream`` matters in a stream only."""

    model: str
    ask: Ask
    stream: bool
    include_usage: bool = False
    timings_per_token: bool = False
    return_progress: bool = False


def read_chat_request(values: Mapping[str, Any]) -> ChatRequest:
    """The request of a parsed body. Errors: ``RequestError`` naming the first wrong field."""
    body = Members(values)
    model = body.required_string("model")
    stream = body.boolean("stream") or False
    options = body.child("stream_options")
    refuse_unsupported(body)
    _check_response_format(body)
    tools = read_tools(body)
    return ChatRequest(
        model=model,
        ask=Ask(
            Conversation(
                read_messages(body),
                tools.declared,
                read_template_options(body),
                cache_automatic=read_automatic(body),
            ),
            GenerationFields(
                sampling=sampling_overrides(body),
                seed=sampler_value(body, "seed"),
                max_tokens=_max_tokens(body),
                stops=_stops(body),
                ignore_stop_tokens=body.boolean("ignore_eos") or False,
            ),
            tools.callable,
            tools.choice,
        ),
        stream=stream,
        include_usage=bool(options and options.boolean("include_usage")),
        timings_per_token=body.boolean("timings_per_token") or False,
        return_progress=body.boolean("return_progress") or False,
    )


def _max_tokens(body: Members) -> int | None:
    most = spec.document("http/chat")["limits"]["max_output_tokens"]
    current, legacy = (body.integer(name, 0, most) for name in ("max_completion_tokens", "max_tokens"))
    return legacy if current is None else current


def _stops(body: Members) -> tuple[str, ...]:
    most: int = spec.document("http/chat")["limits"]["max_stops"]
    return stop_strings(body, "stop", most, alone=True)


def _check_response_format(body: Members) -> None:
    form = body.child("response_format")
    if form is None:
        return
    kind = form.required_string("type")
    if kind in ("json_object", "json_schema"):
        raise RequestError(
            "unsupported_value",
            f"response_format {kind} is not supported: NInfer does not provide output constraints yet.",
            "response_format",
        )
    if kind != "text":
        raise form.invalid("type", "must be one of text, json_object, json_schema")
