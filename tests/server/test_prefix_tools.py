"""Calls in history and the prefix cache: the same bytes match, the same meaning does not.

The program computes; what it draws is a test's script, so that a model of random weights makes a call.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance.http.client import Client
from ninfer.fast.memory.lanes import Lane
from ninfer.fast.program.program import Row, Sampler
from ninfer.prompt import Conversation, Message, TemplateOptions, TextPart
from ninfer.prompt.conversation import Tool, ToolCall
from ninfer.server.served_model import ModelChoices, ServedModel, open_served_model
from tests.fast.conftest import COLD_LIMIT_S, compiled  # noqa: F401  (kernels before any server)
from tests.server.fast_host import FastHost, serving_fast

pytestmark = pytest.mark.timeout(COLD_LIMIT_S)

QUESTION = "Which way is it from the old river to the garden of stones, and how long does it take on foot?"
FUNCTION = {
    "name": "route",
    "description": "The way between two places.",
    "parameters": {
        "type": "object",
        "properties": {"start": {"type": "string"}, "goal": {"type": "string"}},
    },
}
ARGUMENTS = {"start": "the old river", "goal": "the garden of stones"}


class Scripted:
    """Draws these ids, one request after the other; everything else is the program's own."""

    def __init__(self, host: FastHost, script: Sequence[int]) -> None:
        self._left = list(script)
        program, first, round_ = host.program, host.program.first, host.program.round

        def draw_first(lane: Lane, row: np.ndarray, sampler: Sampler) -> int:
            drawn = first(lane, row, sampler)
            return self._left.pop(0) if self._left else drawn

        def draw_round(rows: Sequence[Row]) -> list[int]:
            drawn = round_(rows)
            return [self._left.pop(0)] if self._left else drawn

        program.first, program.round = draw_first, draw_round  # type: ignore[method-assign]


@pytest.fixture(scope="module")
def model(nano: Path) -> ServedModel:
    return open_served_model(nano, ModelChoices())


@pytest.fixture(scope="module")
def server(nano: Path) -> Iterator[tuple[Client, FastHost]]:
    with serving_fast(nano, ("--cache-taps-per-request", "8", "--no-thinking"), endless=False) as both:
        yield both


def answer_of(model: ServedModel) -> list[int]:
    """The ids with which a model calls the function, as the template will write them into history."""
    user = Message("user", (TextPart(QUESTION),))
    call = Message("assistant", tool_calls=(ToolCall("route", ARGUMENTS),))
    tools = (Tool("route", {"type": "function", "function": FUNCTION}),)
    options = TemplateOptions(enable_thinking=False)

    def ids(*messages: Message) -> list[int]:
        prepared = model.preparer.prepare(Conversation(messages, tools, options))
        return [int(token) for token in prepared.tokens]

    before, after = ids(user), ids(user, call, user)
    assert after[: len(before)] == before
    rest = after[len(before) :]
    return rest[: next(place for place, token in enumerate(rest) if token in model.stop_token_ids) + 1]


def chat(client: Client, *messages: dict[str, Any], function: dict[str, Any] = FUNCTION) -> dict[str, Any]:
    answer = client.chat(
        messages=list(messages),
        tools=[{"type": "function", "function": function}],
        temperature=0,
        max_tokens=100,
    )
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json
    return found


def cached(answer: dict[str, Any]) -> int:
    tokens: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return tokens


@pytest.mark.clause("TMPL-009")
@pytest.mark.clause("TMPL-010")
def test_a_replayed_call_matches_only_as_it_was(server: tuple[Client, FastHost], model: ServedModel) -> None:
    client, host = server
    script = answer_of(model)
    Scripted(host, script)
    question = {"role": "user", "content": QUESTION}
    first = chat(client, question)
    message = first["choices"][0]["message"]
    (call,) = message["tool_calls"]
    assert call["function"]["arguments"] == '{"start":"the old river","goal":"the garden of stones"}'
    end = first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"] - 1
    assert first["usage"]["completion_tokens"] == len(script)
    result = {"role": "tool", "tool_call_id": call["id"], "content": "North, an hour."}
    swapped = json.dumps(dict(reversed(ARGUMENTS.items())))
    reordered = {**call, "function": {"name": "route", "arguments": swapped}}
    changed = chat(client, question, {**message, "tool_calls": [reordered]}, result)
    assert 0 < cached(changed) <= first["usage"]["prompt_tokens"]
    same = chat(client, question, message, result)
    assert cached(same) == end, "everything but the stop token, which was drawn and never taken in"
    assert cached(same) < same["usage"]["prompt_tokens"]


@pytest.mark.clause("TMPL-011")
def test_equal_meaning_is_not_made_equal_text(server: tuple[Client, FastHost]) -> None:
    client, _ = server
    question = {"role": "user", "content": QUESTION}
    explicit = {**FUNCTION, "parameters": {**FUNCTION["parameters"], "additionalProperties": True}}  # type: ignore[dict-item]
    plain, longer = (chat(client, question, function=one)["usage"] for one in (FUNCTION, explicit))
    assert plain["prompt_tokens"] < longer["prompt_tokens"]
