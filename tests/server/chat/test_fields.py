"""Each field over HTTP: what is refused by name, what asks for nothing, and what changes the prompt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.http.client import Answer, Client
from conformance.http.schemas import check_answer
from ninfer.engine.interface import SerialEngine
from ninfer.server.chat.request import read_chat_request
from tests.server.conftest import MODEL
from tests.server.engines import RecordingEngine
from tests.server.inprocess import serving

GREEDY: dict[str, Any] = {"temperature": 0, "seed": 1, "max_tokens": 16, "enable_thinking": False}
NO_CONTENT_OPTIONS: dict[str, Any] = {"temperature": 0, "seed": 1, "max_tokens": 0}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def row(members: dict[str, Any], param: str, proves: pytest.MarkDecorator) -> Any:
    return pytest.param(members, param, marks=proves, id=str(members)[:60])


REFUSED = [
    row({"logit_bias": {"5": 1}}, "logit_bias", pytest.mark.clause("FIELD-021", "FIELD-032")),
    row({"logprobs": True}, "logprobs", pytest.mark.clause("FIELD-022", "FIELD-032")),
    row({"top_logprobs": 3}, "top_logprobs", pytest.mark.clause("FIELD-022", "FIELD-032")),
    row({"messages": [user([{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}])]},
        "messages[0].content[0]", pytest.mark.clause("FIELD-023", "FIELD-032")),
    row({"messages": [user([{"type": "text", "text": "x"}, {"type": "file", "file": {"file_id": "f"}}])]},
        "messages[0].content[1]", pytest.mark.clause("FIELD-024", "FIELD-032")),
    row({"modalities": ["audio"]}, "modalities", pytest.mark.clause("FIELD-025", "FIELD-032")),
    row({"modalities": ["text", "audio"], "audio": {"voice": "v", "format": "wav"}}, "modalities",
        pytest.mark.clause("FIELD-014", "FIELD-025", "FIELD-032")),
    row({"web_search_options": {}}, "web_search_options", pytest.mark.clause("FIELD-027", "FIELD-032")),
    row({"moderation": {"model": "m"}}, "moderation", pytest.mark.clause("FIELD-028", "FIELD-032")),
    row({"verbosity": "low"}, "verbosity", pytest.mark.clause("FIELD-029", "FIELD-032")),
    row({"verbosity": "high"}, "verbosity", pytest.mark.clause("FIELD-029", "FIELD-032")),
    row({"store": True}, "store", pytest.mark.clause("FIELD-030", "FIELD-032")),
    row({"functions": [{"name": "f"}]}, "functions", pytest.mark.clause("FIELD-031", "FIELD-032")),
    row({"repetition_penalty": 1.1}, "repetition_penalty", pytest.mark.clause("FIELD-042")),
    row({"mm_processor_kwargs": {"a": 1}}, "mm_processor_kwargs", pytest.mark.clause("FIELD-043")),
    row({"reasoning_effort": "ultra"}, "reasoning_effort", pytest.mark.clause("THINK-017")),
    row({"messages": [user("x") | {"name": "bob"}]}, "messages[0].name", pytest.mark.clause("CHAT-021")),
    row({"messages": [{"role": "system", "content": "x", "name": "bob"}, user("x")]}, "messages[0].name",
        pytest.mark.clause("CHAT-021")),
]  # fmt: skip

NEUTRAL = [
    row({"logit_bias": {"5": 0}}, "", pytest.mark.clause("FIELD-033")),
    row({"logprobs": False}, "", pytest.mark.clause("FIELD-034")),
    row({"top_logprobs": 0}, "", pytest.mark.clause("FIELD-034")),
    row({"verbosity": "medium"}, "", pytest.mark.clause("FIELD-035")),
    row({"functions": []}, "", pytest.mark.clause("FIELD-036")),
    row({"modalities": ["text"]}, "", pytest.mark.clause("FIELD-014")),
    row({"modalities": ["text"], "audio": {"voice": "v"}}, "", pytest.mark.clause("FIELD-037")),
    row({"prediction": {"type": "content", "content": "x"}}, "", pytest.mark.clause("FIELD-038")),
    row({"metadata": {"a": "b"}}, "", pytest.mark.clause("FIELD-039")),
    row({"user": "u"}, "", pytest.mark.clause("FIELD-039")),
    row({"safety_identifier": "s"}, "", pytest.mark.clause("FIELD-039")),
    row({"service_tier": "flex"}, "", pytest.mark.clause("FIELD-039")),
    row({"repetition_penalty": 1}, "", pytest.mark.clause("FIELD-042")),
    row({"repetition_penalty": 1.0}, "", pytest.mark.clause("FIELD-042")),
    row({"mm_processor_kwargs": {}}, "", pytest.mark.clause("FIELD-043")),
    row({"mm_processor_kwargs": {"a": None}}, "", pytest.mark.clause("FIELD-043")),
    row({"messages": [user("hi") | {"name": ""}]}, "", pytest.mark.clause("CHAT-021")),
]  # fmt: skip


@pytest.mark.parametrize(("members", "param"), REFUSED)
def test_a_missing_capability_is_refused_by_name(
    reference: Client, members: dict[str, Any], param: str
) -> None:
    for stream in (False, True):
        answer = reference.chat(**members, stream=stream)
        assert answer.status == 400
        check_answer("POST", "/v1/chat/completions", 400, answer.json)
        assert answer.error["param"] == param
        assert answer.error["type"] == "invalid_request_error"
        assert param in answer.error["message"]
        if answer.error["code"].startswith("unsupported"):
            # Behind the name the message says what is not provided.
            assert "not" in answer.error["message"]
            assert len(answer.error["message"]) > len(param) + 30


@pytest.fixture(scope="module")
def plain(reference: Client) -> Answer:
    return reference.chat(**GREEDY)


@pytest.mark.parametrize(("members", "param"), NEUTRAL)
def test_what_asks_for_nothing_changes_no_token(
    reference: Client, plain: Answer, members: dict[str, Any], param: str
) -> None:
    answer = reference.chat(**GREEDY, **members)
    assert answer.status == 200
    assert answer.json["choices"] == plain.json["choices"]
    assert answer.json["usage"] == plain.json["usage"]


def tokens(client: Client, *messages: dict[str, Any], **members: Any) -> int:
    answer = client.chat(messages=list(messages) or [user("hi")], **NO_CONTENT_OPTIONS | members)
    assert answer.status == 200, answer.body
    return int(answer.json["usage"]["prompt_tokens"])


CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"city":"Lima"}'}}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "sunny there"}
LEGACY = [
    {"role": "assistant", "content": None, "function_call": CALL["function"]},
    {"role": "function", "name": "look", "content": "sunny there"},
]


@pytest.mark.clause("CHAT-004", "CHAT-005", "CHAT-018")
def test_calls_and_results_of_both_styles_are_part_of_the_prompt(reference: Client) -> None:
    """The second turn of a tool conversation; public report Qwen3#1894: 500 on every such turn."""
    modern, legacy = (tokens(reference, user("q"), *turn) for turn in ([CALLED, RESULT], LEGACY))
    assert modern == legacy > tokens(reference, user("q"))
    longer = RESULT | {"content": "sunny there, with a light wind"}
    assert tokens(reference, user("q"), CALLED, longer) > modern


@pytest.mark.clause("CHAT-019")
def test_a_tool_messages_name_has_no_effect(reference: Client) -> None:
    answers = [
        reference.chat(messages=[user("q"), CALLED, RESULT | name], **GREEDY)
        for name in ({}, {"name": "look"}, {"name": "other"})
    ]
    assert {answer.status for answer in answers} == {200}
    for answer in answers[1:]:
        assert answer.json["choices"] == answers[0].json["choices"]
        assert answer.json["usage"] == answers[0].json["usage"]


@pytest.mark.clause("CHAT-015")
@pytest.mark.parametrize("choice", ["auto", "none"])
def test_free_choices_of_tools(reference: Client, choice: str) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    assert tokens(reference, tools=[tool], tool_choice=choice) > tokens(reference)


@pytest.mark.clause("CHAT-007")
def test_refusal_parts_are_text_in_their_order(reference: Client) -> None:
    def history(*parts: dict[str, str]) -> list[dict[str, Any]]:
        return [user("a"), {"role": "assistant", "content": list(parts)}, user("b")]

    text, refusal = {"type": "text", "text": "Sorry, "}, {"type": "refusal", "refusal": "no"}
    joined = tokens(reference, *history({"type": "text", "text": "Sorry, no"}))
    assert tokens(reference, *history(text, refusal)) == joined
    assert tokens(reference, *history(refusal)) > tokens(reference, *history())


def reasoned(**members: str) -> list[dict[str, Any]]:
    return [user("a"), {"role": "assistant", "content": "b", **members}, user("c")]


@pytest.mark.clause("CHAT-012")
def test_reasoning_history_has_two_names(reference: Client) -> None:
    counts = [
        tokens(reference, *reasoned(**members), preserve_thinking=True)
        for members in ({"reasoning_content": "because of it"}, {"reasoning": "because of it"}, {})
    ]
    assert counts[0] == counts[1] > counts[2]


@pytest.mark.clause("THINK-025", "FIELD-020")
def test_preserve_thinking_in_either_place(reference: Client) -> None:
    history = reasoned(reasoning_content="because of it")
    kept = [
        tokens(reference, *history, **members)
        for members in ({"preserve_thinking": True}, {"chat_template_kwargs": {"preserve_thinking": True}})
    ]
    dropped = tokens(reference, *history, preserve_thinking=False)
    assert kept[0] == kept[1] > dropped


@pytest.mark.clause("FIELD-019", "THINK-016")
def test_thinking_is_disabled_in_either_place(reference: Client) -> None:
    answers = [
        reference.chat(**{**GREEDY, "enable_thinking": None, **members})
        for members in (
            {"enable_thinking": False},
            {"chat_template_kwargs": {"enable_thinking": False}},
            {"reasoning_effort": "none"},
        )
    ]
    for answer in answers:
        assert answer.status == 200
        assert "reasoning_content" not in answer.json["choices"][0]["message"]
        assert answer.json["usage"] == answers[0].json["usage"]
        assert answer.json["choices"] == answers[0].json["choices"]


@pytest.fixture(scope="module")
def efforts(nano: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A template that takes low, medium and xhigh, as Qwen3.8's does, and marks each by its tokens."""
    template = tmp_path_factory.mktemp("template") / "efforts.jinja"
    template.write_text(
        "{%- set marks = {'low': '1', 'medium': '22', 'xhigh': '4444'} %}"
        "{%- if reasoning_effort is defined and reasoning_effort not in marks %}"
        "{{ raise_exception('no such effort') }}{% endif %}"
        "{{- marks[reasoning_effort] if reasoning_effort is defined else '' }}"
        "{%- for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
        "{%- endfor %}<|im_start|>assistant\n"
    )
    with serving(nano, RecordingEngine(), (*MODEL, "--chat-template", str(template))) as client:
        yield client


@pytest.mark.clause("EXEC-018", "FIELD-017", "THINK-017", "THINK-022", "THINK-023")
@pytest.mark.parametrize(
    ("effort", "marks"),
    [("minimal", 1), ("low", 1), ("medium", 2), ("high", 4), ("xhigh", 4), ("max", 4)],
)
def test_an_effort_is_rendered_or_its_nearest(efforts: Client, effort: str, marks: int) -> None:
    """A tie goes up: high lies between medium and xhigh."""
    assert tokens(efforts, reasoning_effort=effort) == tokens(efforts) + marks


@pytest.mark.clause("FIELD-018")
@pytest.mark.parametrize("alias", ["default", "auto"])
def test_effort_aliases_are_the_servers_level(efforts: Client, alias: str) -> None:
    assert tokens(efforts, reasoning_effort=alias) == tokens(efforts)


@pytest.mark.clause("FIELD-018", "THINK-022")
def test_the_servers_level_is_an_option(nano: Path, efforts: Client, tmp_path: Path) -> None:
    template = tmp_path / "marked.jinja"
    template.write_text("{{ {'low': '1', 'high': '333'}[reasoning_effort] }}{{ messages[0].content }}")
    arguments = (*MODEL, "--chat-template", str(template), "--reasoning-effort", "low")
    with serving(nano, RecordingEngine(), arguments) as client:
        low = tokens(client)
        assert [tokens(client, reasoning_effort=alias) for alias in ("default", "auto")] == [low, low]
        assert tokens(client, reasoning_effort="high") == low + 2


@pytest.mark.clause("THINK-018", "THINK-019")
@pytest.mark.parametrize(
    "members",
    [
        {"enable_thinking": True, "reasoning_effort": "none"},
        {"enable_thinking": False, "reasoning_effort": "low"},
        {"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "high"},
    ],
)
def test_thinking_and_effort_must_agree(reference: Client, members: dict[str, Any]) -> None:
    answer = reference.chat(**members)
    assert (answer.status, answer.error["code"]) == (400, "conflicting_template_option")


@pytest.mark.clause("OPT-080")
def test_no_thinking(nano: Path, reference_engine: SerialEngine, reference: Client) -> None:
    asked = {"max_tokens": 8, "temperature": 0, "ignore_eos": True}
    with serving(nano, reference_engine, (*MODEL, "--no-thinking")) as client:
        off, on = (client.chat(**asked, **members) for members in ({}, {"enable_thinking": True}))
    plain = reference.chat(**asked)
    for answer, thinks in ((off, False), (on, True), (plain, True)):
        assert ("reasoning_content" in answer.json["choices"][0]["message"]) == thinks


@pytest.mark.clause("OPT-081")
def test_preserve_thinking(nano: Path, tmp_path: Path) -> None:
    """With a template that drops reasoning unless it is told otherwise; Qwen3.8's own keeps it."""
    template = tmp_path / "dropping.jinja"
    template.write_text(
        "{% for message in messages %}{% if preserve_thinking is defined and preserve_thinking %}"
        "{{ message.reasoning_content }}{% endif %}{{ message.content }}{% endfor %}"
    )
    history = reasoned(reasoning_content="because of it")
    choose = (*MODEL, "--chat-template", str(template))
    with (
        serving(nano, RecordingEngine(), (*choose, "--preserve-thinking")) as keeping,
        serving(nano, RecordingEngine(), choose) as plain,
    ):
        assert tokens(keeping, *history) > tokens(plain, *history)
        assert tokens(keeping, *history, preserve_thinking=False) == tokens(plain, *history)
        assert tokens(keeping, *history) == tokens(plain, *history, preserve_thinking=True)


def test_ignore_eos_goes_on_to_the_limit(reference: Client) -> None:
    """Once ignored in the field on this route."""
    answer = reference.chat(temperature=1, seed=3, max_tokens=400, ignore_eos=True)
    assert answer.json["usage"]["completion_tokens"] == 400
    assert answer.json["choices"][0]["finish_reason"] == "length"


def test_member_order_of_a_tool_reaches_the_prompt() -> None:
    """TMPL-006/007 at the reader: nothing between body and template sorts or rebuilds an object."""
    function = {"name": "f", "parameters": {"z": 1, "a": {"y": 2, "b": 3}}, "description": "d"}
    ask = read_chat_request(
        {"model": "m", "messages": [user("x")], "tools": [{"function": function, "type": "function"}]}
    ).ask
    (tool,) = ask.conversation.tools
    assert str(dict(tool.definition)) == str({"function": function, "type": "function"})


@pytest.mark.parametrize(
    "members",
    [
        {"n": 10**6}, {"messages": []}, {"max_tokens": -1}, {"max_tokens": 10**12}, {"top_logprobs": 10**6},
        {"stop": ["x"] * 10_000}, {"temperature": "hot"}, {"best_of": 100},
    ],
)  # fmt: skip
def test_limits_are_refused_at_once(reference: Client, members: dict[str, Any]) -> None:
    """Case B43 of the public reports."""
    answer = reference.chat(**members)
    assert answer.status == 400
    check_answer("POST", "/v1/chat/completions", 400, answer.json)
    assert answer.error["param"] in members


def test_numbers_that_are_none_are_refused(reference: Client) -> None:
    for body in (b'{"temperature":NaN}', b'{"temperature":1e999}', b'{"seed":Infinity}'):
        answer = reference.request("POST", "/v1/chat/completions", body)
        assert (answer.status, answer.error["code"]) == (400, "invalid_json")
