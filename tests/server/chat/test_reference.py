"""Chat over the reference engine: what a request's fields do to the tokens, whole and streamed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.http.client import Answer, Client
from conformance.http.schemas import check_answer, check_schema
from conformance.http.streams import chat_events, check_order, payloads, text_of
from ninfer.engine.interface import SerialEngine
from tests.server.conftest import MODEL
from tests.server.inprocess import serving

PLAIN: dict[str, Any] = {"enable_thinking": False, "max_tokens": 24}
GREEDY = PLAIN | {"temperature": 0}
SEEDED = PLAIN | {"temperature": 1, "seed": 7}


def content(answer: Answer) -> str:
    assert answer.status == 200, answer.body
    return str(answer.json["choices"][0]["message"]["content"])


def prompt_tokens(answer: Answer) -> int:
    assert answer.status == 200, answer.body
    return int(answer.json["usage"]["prompt_tokens"])


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


@pytest.mark.clause("CHAT-001", "STREAM-008", "STREAM-009")
def test_the_smallest_request(reference: Client) -> None:
    messages = [{"role": "system", "content": "Be brief."}, user("hi")]
    answer = reference.request(
        "POST", "/v1/chat/completions", {"model": "nano", "messages": messages, "max_tokens": 128}
    )
    assert answer.status == 200
    check_answer("POST", "/v1/chat/completions", 200, answer.json)
    (choice,) = answer.json["choices"]
    assert "content" in choice["message"]
    assert choice["logprobs"] is None
    assert choice["message"]["refusal"] is None


@pytest.mark.clause("CHAT-002", "CHAT-003")
def test_roles_of_a_history(reference: Client) -> None:
    for first in ("system", "developer"):
        history = [
            {"role": first, "content": "s"},
            user("a"),
            {"role": "assistant", "content": "b"},
            user("c"),
        ]
        assert reference.chat(messages=history, max_tokens=1).status == 200


@pytest.mark.clause("CHAT-006", "CHAT-008")
def test_parts_join_without_a_separator(reference: Client) -> None:
    parts = [{"type": "text", "text": "ab"}, {"type": "text", "text": "cd"}]
    for text, form in (("ab", parts[:1]), ("abcd", parts)):
        plain, listed = (reference.chat(messages=[user(c)], **GREEDY) for c in (text, form))
        assert prompt_tokens(plain) == prompt_tokens(listed)
        assert content(plain) == content(listed)


@pytest.mark.clause("CHAT-009")
def test_empty_content_keeps_its_turn(reference: Client) -> None:
    without = reference.chat(messages=[user("a")], max_tokens=0)
    for empty in ("", []):
        answer = reference.chat(messages=[user(empty), user("a")], max_tokens=0)
        assert prompt_tokens(answer) > prompt_tokens(without)


@pytest.mark.clause("FIELD-004")
def test_temperature_zero_is_repeatable_and_top_p_is_taken(reference: Client) -> None:
    answers = {content(reference.chat(**GREEDY, seed=seed)) for seed in (1, 2)}
    assert len(answers) == 1
    assert reference.chat(**SEEDED, top_p=0.5).status == 200


@pytest.mark.clause("FIELD-005")
def test_penalties_change_a_seeded_answer(reference: Client) -> None:
    base = SEEDED | {"max_tokens": 48, "presence_penalty": 0}
    plain = content(reference.chat(**base))
    for name in ("presence_penalty", "frequency_penalty"):
        assert content(reference.chat(**base | {name: 2})) != plain


@pytest.mark.clause("FIELD-006")
def test_seeds_are_signed_integers(reference: Client) -> None:
    answers = [content(reference.chat(**SEEDED | {"seed": seed})) for seed in (-3, -3, 3)]
    assert answers[0] == answers[1] != answers[2]
    for wrong in (1.5, "3", True, 2**63):
        answer = reference.chat(**SEEDED | {"seed": wrong})
        assert (answer.status, answer.error["param"]) == (400, "seed")


@pytest.mark.clause("FIELD-007", "FIELD-008", "FIELD-013", "CHAT-022")
def test_ranges(reference: Client) -> None:
    accepted: list[dict[str, Any]] = [
        {"top_k": 0}, {"top_k": 20}, {"min_p": 0}, {"min_p": 1}, {"n": 1}, {"temperature": 2},
    ]  # fmt: skip
    refused: list[dict[str, Any]] = [
        {"top_k": 21}, {"top_k": -1}, {"min_p": 1.1}, {"min_p": -0.1}, {"n": 2}, {"temperature": "hot"},
        {"messages": {}}, {"temperature": 2.1},
    ]  # fmt: skip
    for members in accepted:
        assert reference.chat(max_tokens=1, **members).status == 200
    for members in refused:
        answer = reference.chat(**members)
        assert (answer.status, answer.error["param"]) == (400, *members)


@pytest.mark.clause("FIELD-001", "FIELD-002")
def test_both_spellings_of_the_limit(reference: Client) -> None:
    for name in ("max_completion_tokens", "max_tokens"):
        answer = reference.chat(**{name: 5}, temperature=0)
        assert answer.json["usage"]["completion_tokens"] <= 5
        assert answer.json["choices"][0]["finish_reason"] == "length"
        negative = reference.chat(**{name: -1})
        assert (negative.status, negative.error["param"]) == (400, name)


@pytest.mark.clause("FIELD-003")
def test_no_output_is_an_answer_too(reference: Client) -> None:
    for thinking in (False, True):
        answer = reference.chat(max_tokens=0, enable_thinking=thinking)
        assert answer.json["usage"]["completion_tokens"] == 0
        assert prompt_tokens(answer) > 0
        assert content(answer) == ""
        assert answer.json["choices"][0]["finish_reason"] == "length"


@pytest.mark.clause("FIELD-009", "FIELD-010", "FIELD-011")
def test_stop_strings(reference: Client) -> None:
    full = content(reference.chat(**GREEDY))
    stop = full[5:8]
    for form in (stop, [stop], ["\0never", stop, "\1never", "\2never"]):
        answer = reference.chat(**GREEDY, stop=form)
        assert content(answer) == full[: full.index(stop)]
        assert answer.json["choices"][0]["finish_reason"] == "stop"
    for wrong in ([""], "", ["a"] * 5):
        answer = reference.chat(stop=wrong)
        assert (answer.status, answer.error["param"]) == (400, "stop")


@pytest.mark.clause("FIELD-015", "FIELD-041", "START-034")
def test_neutral_and_unknown_fields_change_nothing(reference: Client) -> None:
    plain = reference.chat(**SEEDED)
    for members in (
        {"response_format": {"type": "text"}},
        {"zzz": 1},
        {"speculative": {"backend": "mtp"}, "draft_tokens": 4, "spec": "mtp", "vision": True},
        {"store": False, "metadata": {"a": "b"}, "user": "u", "logit_bias": {}, "tools": []},
    ):
        answer = reference.chat(**SEEDED, **members)
        assert content(answer) == content(plain)
        assert answer.json["usage"] == plain.json["usage"]


@pytest.mark.clause("START-029", "START-034")
@pytest.mark.parametrize("kind", ["image_url", "video_url"])
@pytest.mark.parametrize("stream", [False, True])
def test_media_needs_vision(reference: Client, kind: str, stream: bool) -> None:
    part = {"type": kind, kind: {"url": "data:image/png;base64,iVBORw0KGgo="}}
    answer = reference.chat(messages=[user([part, {"type": "text", "text": "x"}])], stream=stream)
    assert (answer.status, answer.error["code"]) == (400, "vision_disabled")


@pytest.mark.clause("CHAT-010")
def test_another_model_is_refused_by_name(reference: Client) -> None:
    for name in ("nope", "", "NANO", "nano "):
        answer = reference.chat(model=name)
        assert (answer.status, answer.error["code"], answer.error["param"]) == (
            404,
            "model_not_found",
            "model",
        )
    assert reference.chat(max_tokens=1).status == 200


@pytest.mark.clause("CHAT-023")
def test_a_prompt_the_template_refuses(
    reference: Client, nano: Path, reference_engine: SerialEngine, tmp_path: Path
) -> None:
    """The continuation of an answer while thinking is on, and a template that raises."""
    prefill = [user("a"), {"role": "assistant", "content": "The answer is"}]
    assert_invalid_prompt(reference.chat(messages=prefill))
    template = tmp_path / "strict.jinja"
    template.write_text("{% if messages|length > 1 %}{{ raise_exception('one at a time') }}{% endif %}x")
    with serving(nano, reference_engine, (*MODEL, "--chat-template", str(template))) as client:
        answer = client.chat(messages=[user("a"), user("b")])
        assert_invalid_prompt(answer)
        assert "one at a time" in answer.error["message"]


def assert_invalid_prompt(answer: Answer) -> None:
    assert (answer.status, answer.error["code"]) == (400, "invalid_prompt")


STREAMS: list[dict[str, Any]] = [
    SEEDED,
    GREEDY,
    SEEDED | {"enable_thinking": True},
    SEEDED | {"max_tokens": 0},
    SEEDED | {"max_tokens": 1},
    SEEDED | {"stop": ["e", "a"]},
]


@pytest.mark.clause("FIELD-016", "STREAM-001", "STREAM-002", "STREAM-003", "STREAM-005", "STREAM-007")
@pytest.mark.clause("STREAM-004", "STREAM-008")
@pytest.mark.parametrize("members", STREAMS, ids=lambda members: "-".join(map(str, members.values())))
@pytest.mark.parametrize("include_usage", [False, True])
def test_a_stream_is_the_whole_answer_in_pieces(
    reference: Client, members: dict[str, Any], include_usage: bool
) -> None:
    whole = reference.chat(**members)
    streamed = reference.chat(**members, stream=True, stream_options={"include_usage": include_usage})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    stream = payloads(streamed.body)
    events = chat_events(stream)
    check_order("chat", events)
    assert ("usage" in events) == include_usage
    chunks = [chunk for chunk in stream if not isinstance(chunk, str)]
    for chunk in chunks:
        check_schema("ChatChunk", chunk)
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    (choice,) = whole.json["choices"]
    assert text_of(stream) == choice["message"]["content"]
    assert text_of(stream, "reasoning_content") == choice["message"].get("reasoning_content", "")
    finish = chunks[events.index("finish")]
    assert finish["choices"][0]["finish_reason"] == choice["finish_reason"]
    if include_usage:
        assert chunks[-1]["usage"] == whole.json["usage"]
        assert all(chunk["usage"] is None for chunk in chunks[:-1])
    else:
        assert not any("usage" in chunk for chunk in chunks)
    assert len({chunk["id"] for chunk in chunks}) == 1


@pytest.mark.clause("MEDIA-011")
@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(small: Client, stream: bool) -> None:
    text = of_tokens(small, 300)
    answer = small.chat(messages=[user(text)], stream=stream)
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
    assert "300" in answer.error["message"]
    assert "256" in answer.error["message"]


def test_the_context_bounds_prompt_and_output_together(small: Client) -> None:
    for length in (246, 255, 256):
        answer = small.chat(messages=[user(of_tokens(small, length))], max_tokens=10**6, ignore_eos=True)
        assert prompt_tokens(answer) == length
        assert answer.json["usage"]["completion_tokens"] <= 256 - length
        assert answer.json["choices"][0]["finish_reason"] in ("length", "stop")


@pytest.fixture(scope="module")
def small(nano: Path, reference_engine: SerialEngine) -> Iterator[Client]:
    with serving(nano, reference_engine, (*MODEL, "--max-context", "256")) as client:
        yield client


def of_tokens(client: Client, count: int) -> str:
    """A user message whose prompt has ``count`` tokens; digits are one token each."""
    empty = prompt_tokens(client.chat(messages=[user("1")], max_tokens=0))
    return "1" * (count - empty + 1)
