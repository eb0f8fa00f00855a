"""One Responses body, read.

Owns the top-level fields and the conversation they make together: instructions, the history that
``previous_response_id`` names, the new Items.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from ninfer import spec
from ninfer.errors import RequestError
from ninfer.prompt.conversation import Conversation, Message, ReasoningEffort, TemplateOptions, TextPart
from ninfer.sampling.parameters import SamplingOverrides
from ninfer.server.answer.exchange import Ask
from ninfer.server.cache_hints import read_automatic
from ninfer.server.members import Members, shown, wrong_type
from ninfer.server.resolution import GenerationFields
from ninfer.server.response_store import ResponseStore, StoredResponse
from ninfer.server.responses.fields import check_fields
from ninfer.server.responses.history import holds_user_message, turns
from ninfer.server.responses.items import STORED, Item, read_input, require_unique_ids
from ninfer.server.responses.output import OutputChoices
from ninfer.server.responses.tools import read_tools
from ninfer.server.sampler import sampler_value


@dataclass(frozen=True, slots=True)
class ResponsesRequest:
    """What a body asks for.

    ``items`` are its own, after those of ``parent``. ``echo`` are the members of the Response object that
    repeat the request. ``preserve_thinking`` is what a child inherits.
    """

    model: str
    ask: Ask
    stream: bool
    store: bool
    items: tuple[Item, ...]
    parent: StoredResponse | None
    preserve_thinking: bool | None
    choices: OutputChoices
    echo: Mapping[str, Any]


def read_responses_request(values: Mapping[str, Any], store: ResponseStore) -> ResponsesRequest:
    """The request of a parsed body. Errors: ``RequestError`` naming the first wrong member."""
    body = Members(values)
    model = body.required_string("model")
    if not model:
        raise body.invalid("model", "must not be empty")
    check_fields(body)
    _check_text_format(body)
    tools = read_tools(body)
    parent = _parent(body, store)
    items = read_input(body)
    history = (*_stored_items(parent), *items)
    require_unique_ids(history)
    if not items and not holds_user_message(history):
        raise body.missing("input") if not body.has("input") else body.invalid("input", "must not be empty")
    own = _preserve_thinking(body)
    preserve = parent.preserve_thinking if own is None and parent is not None else own
    limits = spec.document("http/responses")["limits"]
    return ResponsesRequest(
        model=model,
        ask=Ask(
            Conversation(
                (*_instructions(body), *turns(history)),
                tools.fields.declared,
                options=_template_options(body, preserve),
                continues_final=False,
                cache_automatic=read_automatic(body),
            ),
            GenerationFields(
                SamplingOverrides(**{name: sampler_value(body, name) for name in ("temperature", "top_p")}),
                max_tokens=body.integer("max_output_tokens", 0, limits["max_output_tokens"]),
            ),
            tools.fields.callable,
            tools.choice,
            semantic_change=parent is not None and preserve != parent.preserve_thinking,
            inherits_preservation=own is None,
        ),
        stream=body.boolean("stream") or False,
        store=body.boolean("store") is not False,
        items=items,
        parent=parent,
        preserve_thinking=preserve,
        choices=OutputChoices(_summary(body) is not None, _mirror(body), tools.functions),
        echo={**_echo(body), **tools.echo},
    )


def _parent(body: Members, store: ResponseStore) -> StoredResponse | None:
    name = body.string(STORED)
    if name is None:
        return None
    parent = store.find(name)
    if parent is None:
        raise body.invalid(STORED, f"{shown(name)} names no stored Response", "previous_response_not_found")
    return parent


def _stored_items(parent: StoredResponse | None) -> list[Item]:
    """The whole conversation up to and with ``parent``, in order."""
    if parent is None:
        return []
    arrays: list[bytes] = []
    for context in parent.context.lineage():
        arrays += (context.outputs, context.inputs)
    return [Item(wire, STORED) for array in reversed(arrays) for wire in msgspec.json.decode(array)]


def _instructions(body: Members) -> tuple[Message, ...]:
    text = body.string("instructions")
    return () if text is None else (Message("developer", (TextPart(text),)),)


def _preserve_thinking(body: Members) -> bool | None:
    """The request's own choice; None leaves it to the Response it continues, and then to the server."""
    kwargs = body.child("chat_template_kwargs")
    for chosen in (body.boolean("preserve_thinking"), kwargs and kwargs.value("preserve_thinking")):
        if isinstance(chosen, bool):
            return chosen
    return None


def _template_options(body: Members, preserve: bool | None) -> TemplateOptions:
    options = spec.document("prompt")["options"]
    reasoning = body.child("reasoning")
    effort = None
    if reasoning is not None:
        effort = reasoning.choice("effort", (options["no_effort"], *options["reasoning_efforts"]))
    kwargs = body.child("chat_template_kwargs")
    return TemplateOptions(
        preserve_thinking=preserve,
        reasoning_effort=cast(ReasoningEffort | None, effort),
        kwargs={} if kwargs is None else kwargs.values,
    )


def _summary(body: Members) -> str | None:
    reasoning = body.child("reasoning")
    return None if reasoning is None else reasoning.string("summary")


def _mirror(body: Members) -> bool:
    """Whether ``include`` asks for the raw text in ``encrypted_content``."""
    include = body.value("include")
    if include is None:
        return False
    if not isinstance(include, list):
        raise body.wrong_type("include", "an array of strings")
    known: list[str] = spec.document("http/responses")["includes"]
    for index, value in enumerate(include):
        path = f"include[{index}]"
        if not isinstance(value, str):
            raise wrong_type(path, value, "a string")
        if value not in known:
            raise RequestError(
                "unsupported_value", f"{path} must be one of {', '.join(known)}, not {shown(value)}.", path
            )
    return bool(include)


def _check_text_format(body: Members) -> None:
    text = body.child("text")
    form = None if text is None else text.child("format")
    if form is None:
        return
    form.required_string("type")
    kind = form.choice("type", spec.document("http/responses")["text_formats"])
    if kind != "text":
        raise RequestError(
            "unsupported_value",
            f"text.format {kind} is not supported: NInfer does not provide output constraints yet.",
            "text.format",
        )


def _echo(body: Members) -> dict[str, Any]:
    """The request as the Response object repeats it."""
    most = spec.document("http/responses")["limits"]["max_tool_calls"]
    reasoning = body.child("reasoning")
    options = body.child("stream_options")
    if options is not None:
        options.boolean("include_obfuscation")
    text = body.value("text") or {}
    return {
        "instructions": body.string("instructions"),
        "max_output_tokens": body.value("max_output_tokens"),
        "max_tool_calls": body.integer("max_tool_calls", 0, most),
        "metadata": body.value("metadata") or {},
        "model": body.value("model"),
        "previous_response_id": body.value(STORED),
        "prompt_cache_key": body.value("prompt_cache_key"),
        "reasoning": {"effort": reasoning and reasoning.value("effort"), "summary": _summary(body)},
        "safety_identifier": body.value("safety_identifier"),
        "service_tier": "default",
        "store": body.boolean("store") is not False,
        "text": {**text, "format": text.get("format") or {"type": "text"}},
        "top_logprobs": 0,
        "truncation": "disabled",
        "user": body.value("user"),
    }
