"""Bodies of ``POST /v1/responses``: what each field takes, what it means, and how a wrong one is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer import spec
from ninfer.errors import RequestError
from ninfer.prompt import Tokenizer
from ninfer.server.response_store import ResponseStore
from ninfer.server.responses.request import read_responses_request
from tests.server.conftest import MODEL
from tests.server.inprocess import serving
from tests.server.responses.stage import PlayingEngine, Stage, message
from tests.server.test_json_body import JSON_VALUES

TABLES = spec.document("http/responses")


def outcome(members: dict[str, Any]) -> RequestError | None:
    try:
        read_responses_request({"model": "m", "input": "hi"} | members, ResponseStore(1, 1))
    except RequestError as error:
        return error
    return None


def asked(stage: Stage, **members: Any) -> Any:
    """What the engine is asked for a body, but for the name and a drawn seed."""
    stage.create(**members)
    made = stage.engine.last
    return made.tokens, made.max_tokens, made.sampling.temperature, made.sampling.top_p, made.stops


@pytest.mark.clause("RESP-005")
@pytest.mark.parametrize("model", [..., "", 5])
def test_model_is_a_required_string(stage: Stage, model: Any) -> None:
    error = stage.refused(model=model)
    assert (error["status"], error["param"]) == (400, "model")


@pytest.mark.clause("RESP-006")
def test_only_the_public_model_is_served(stage: Stage) -> None:
    error = stage.refused(model="öther")
    assert (error["status"], error["code"], error["param"]) == (404, "model_not_found", "model")
    assert r"\xf6ther" in error["message"]
    assert stage.create(model="nano")["model"] == "nano"  # the --model-id of this server


@pytest.mark.clause("RESP-007")
def test_input_is_text_or_items(stage: Stage) -> None:
    stage.create(input="hi")
    stage.create(input=[message("user", "hi")])
    for value in (7, {}, True):
        assert stage.refused(input=value)["param"] == "input"


@pytest.mark.clause("RESP-008")
def test_input_may_be_missing_only_after_a_user_query(stage: Stage) -> None:
    for value in (..., "", [], None):
        error = stage.refused(input=value)
        assert (error["status"], error["param"]) == (400, "input")
    parent = stage.create()["id"]
    for value in (..., [], ""):
        stage.create(input=value, previous_response_id=parent)
    assert stage.prompt(input=..., previous_response_id=parent).count("hi<|im_end|>") == 1


def test_developer_items_alone_ask_nothing(stage: Stage) -> None:
    error = stage.refused(input=[message("developer", "Be brief.")])
    assert (error["status"], error["code"], error["param"]) == (400, "invalid_prompt", "input")


@pytest.mark.clause("RESP-009")
def test_instructions_stand_before_the_whole_history(stage: Stage) -> None:
    parent = stage.create(input="first")["id"]
    text = stage.prompt(input="second", instructions="Be brief.", previous_response_id=parent)
    assert text.index("Be brief.") < text.index("first") < text.index("second")
    assert stage.refused(instructions=3)["param"] == "instructions"


@pytest.mark.clause("RESP-010")
def test_a_parent_must_be_kept(stage: Stage) -> None:
    error = stage.refused(previous_response_id="resp_nope")
    assert (error["status"], error["code"]) == (400, "previous_response_not_found")
    assert error["param"] == "previous_response_id"
    assert "resp_nope" in error["message"]
    parent = stage.create(input="first")["id"]
    assert "first" in stage.prompt(input="second", previous_response_id=parent)


@pytest.mark.clause("RESP-011")
def test_the_output_limit_is_a_count(stage: Stage) -> None:
    for value in (0, 1, 128):
        assert stage.create(max_output_tokens=value)["max_output_tokens"] == value
        assert stage.engine.last.max_tokens == value
    for value in (-1, 1.5, "8", True):
        error = stage.refused(max_output_tokens=value)
        assert (error["status"], error["param"]) == (400, "max_output_tokens")


@pytest.mark.clause("RESP-014")
def test_stream_chooses_the_form(stage: Stage) -> None:
    assert stage.post().headers["content-type"] == "application/json"
    assert stage.post(stream=False).headers["content-type"] == "application/json"
    assert stage.post(stream=True).headers["content-type"].startswith("text/event-stream")
    assert stage.refused(stream="yes")["status"] == 400


@pytest.mark.clause("RESP-015")
def test_store_is_the_default(stage: Stage) -> None:
    assert stage.get(stage.create()["id"]).status == 200
    assert stage.get(stage.create(store=False)["id"]).status == 404
    error = stage.refused(store="x")
    assert (error["status"], error["param"]) == (400, "store")


@pytest.mark.clause("RESP-016", "RESP-017")
@pytest.mark.parametrize(("name", "most"), [("temperature", 2), ("top_p", 1)])
def test_sampling_ranges(stage: Stage, name: str, most: int) -> None:
    for value in (0, most):
        assert stage.create(**{name: value})[name] == value
        assert getattr(stage.engine.last.sampling, name) == value
    for value in (-0.01, most + 0.01, "1", True):
        error = stage.refused(**{name: value})
        assert (error["status"], error["param"]) == (400, name)
    huge = stage.client.request(
        "POST", "/v1/responses", f'{{"model":"nano","input":"a","{name}":1e999}}'.encode()
    )
    assert (huge.status, huge.error["param"]) == (400, name)


@pytest.mark.clause("RESP-018", "RESP-019", "RESP-020")
@pytest.mark.parametrize(
    ("metadata", "good"),
    [
        ({f"k{index}": "v" for index in range(16)}, True),
        ({f"k{index}": "v" for index in range(17)}, False),
        ({"a": 1}, False),
        ({"k" * 64: "v"}, True),
        ({"k" * 65: "v"}, False),
        ({"k": "ü" * 512}, True),
        ({"k": "v" * 513}, False),
        ([], False),
    ],
)
def test_metadata(stage: Stage, metadata: Any, good: bool) -> None:
    if good:
        assert stage.create(metadata=metadata)["metadata"] == metadata
    else:
        error = stage.refused(metadata=metadata)
        assert (error["status"], error["param"]) == (400, "metadata")
        assert len(error["message"]) < 250


@pytest.mark.clause("RESP-021", "RESP-048")
def test_hints_change_nothing(stage: Stage) -> None:
    hints: dict[str, Any] = {"safety_identifier": "a", "user": "b", "client_metadata": {"x": [1, {"y": 2}]}}
    plain = asked(stage, temperature=0)
    assert asked(stage, temperature=0, **hints) == plain
    assert asked(stage, temperature=0, client_metadata=None) == plain
    assert stage.refused(client_metadata="s")["param"] == "client_metadata"
    assert stage.refused(user=1)["param"] == "user"


@pytest.mark.clause_early("RESP-047")
def test_cache_hints_change_nothing(stage: Stage) -> None:
    hints = {
        "prompt_cache_key": "k",
        "prompt_cache_options": {"mode": "explicit", "ttl": "30m"},
        "prompt_cache_retention": "24h",
    }
    assert asked(stage, temperature=0, **hints) == asked(stage, temperature=0)
    for options, param in [
        ({"mode": "x"}, "mode"),
        ({"ttl": "0s"}, "ttl"),
        ({"ttl": "x"}, "ttl"),
        ({"a": 1}, "a"),
    ]:
        assert stage.refused(prompt_cache_options=options)["param"] == f"prompt_cache_options.{param}"
    assert stage.refused(prompt_cache_retention="forever")["param"] == "prompt_cache_retention"


@pytest.mark.clause("RESP-022")
def test_no_effort_is_no_thinking(stage: Stage) -> None:
    stage.say("Hello")
    response = stage.create(reasoning={"effort": "none"})
    assert [item["type"] for item in response["output"]] == ["message"]
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] == 0
    assert stage.engine.last.initial_channel == "content"


@pytest.mark.clause("RESP-023")
def test_efforts_reach_the_template(stage: Stage) -> None:
    counts = {effort: stage.count(reasoning={"effort": effort}) for effort in ("low", "medium", "xhigh")}
    assert len(set(counts.values())) == 3
    assert "Think briefly" in stage.prompt(reasoning={"effort": "low"})
    error = stage.refused(reasoning={"effort": "enormous"})
    assert (error["status"], error["param"]) == (400, "reasoning.effort")


@pytest.mark.clause_early("RESP-024")
@pytest.mark.parametrize(("wanted", "rendered"), [("high", "xhigh"), ("max", "xhigh"), ("minimal", "low")])
def test_a_refused_effort_is_the_nearest(stage: Stage, wanted: str, rendered: str) -> None:
    response = stage.create(reasoning={"effort": wanted})
    assert response["usage"]["input_tokens"] == stage.count(reasoning={"effort": rendered})
    assert response["reasoning"]["effort"] == wanted


@pytest.mark.clause("RESP-025", "RESP-027", "RESP-028", "RESP-056")
def test_any_summary_is_one_placeholder(stage: Stage) -> None:
    shown = []
    for value in ("auto", "detailed", "foo", ""):
        response = stage.create(reasoning={"summary": value})
        assert response["reasoning"]["summary"] == value
        shown.append(response["output"][0]["summary"])
    assert all(summary == shown[0] for summary in shown)
    assert [part["type"] for part in shown[0]] == ["summary_text"]
    for reasoning in ({}, {"summary": None}, None):
        assert stage.create(reasoning=reasoning)["output"][0]["summary"] == []
    error = stage.refused(reasoning={"summary": 3})
    assert (error["status"], error["param"]) == (400, "reasoning.summary")


@pytest.mark.clause("RESP-029")
def test_template_kwargs(stage: Stage) -> None:
    stage.say("Hello")
    response = stage.create(chat_template_kwargs={"enable_thinking": False})
    assert [item["type"] for item in response["output"]] == ["message"]
    assert stage.refused(chat_template_kwargs=[])["param"] == "chat_template_kwargs"


@pytest.mark.clause("RESP-030")
def test_kwargs_that_contradict(stage: Stage) -> None:
    error = stage.refused(reasoning={"effort": "none"}, chat_template_kwargs={"enable_thinking": True})
    assert (error["status"], error["code"]) == (400, "conflicting_template_option")
    assert error["param"] == "reasoning.effort"
    assert "reasoning.effort" in error["message"]


@pytest.mark.clause("RESP-031")
def test_preserve_thinking_in_two_places(stage: Stage) -> None:
    stage.create(preserve_thinking=True, chat_template_kwargs={"preserve_thinking": True})
    error = stage.refused(preserve_thinking=True, chat_template_kwargs={"preserve_thinking": False})
    assert (error["status"], error["code"]) == (400, "conflicting_template_option")


@pytest.mark.clause("RESP-039")
def test_a_limit_of_hosted_calls_is_accepted(stage: Stage) -> None:
    assert stage.create(max_tool_calls=0)["max_tool_calls"] == 0
    assert stage.create()["max_tool_calls"] is None
    error = stage.refused(max_tool_calls=-1)
    assert (error["status"], error["param"]) == (400, "max_tool_calls")


NEUTRAL: dict[str, list[Any]] = {
    "truncation": ["disabled", None],
    "top_logprobs": [0, None],
    "service_tier": ["auto", "default", None],
    "background": [False, None],
    "tool_constraints": ["basic", "auto"],
    "include": [[], None],
    "text": [{}, None, {"format": None}, {"format": {"type": "text"}}, {"verbosity": "medium"}],
    "stream_options": [{}, {"include_obfuscation": True}, {"include_obfuscation": False}],
    "conversation": [None],
    "prompt": [None],
}


@pytest.mark.clause("RESP-040", "RESP-042", "RESP-043", "RESP-044")
@pytest.mark.parametrize("name", NEUTRAL)
def test_neutral_values_ask_for_nothing(stage: Stage, name: str) -> None:
    plain = asked(stage, temperature=0)
    for value in NEUTRAL[name]:
        assert asked(stage, temperature=0, **{name: value}) == plain
        assert stage.create(**{name: value})["service_tier"] == "default"


ACTIVE: list[tuple[str, Any, str]] = [
    ("truncation", "auto", "truncation"),
    ("top_logprobs", 5, "top_logprobs"),
    ("service_tier", "flex", "service_tier"),
    ("service_tier", "priority", "service_tier"),
    ("background", True, "background"),
    ("conversation", "c1", "conversation"),
    ("prompt", {"id": "p"}, "prompt"),
    ("context_management", [{"type": "compaction"}], "context_management"),
    ("moderation", {"model": "m"}, "moderation"),
    ("access_programs", {}, "access_programs"),
    ("structured_outputs", {"regex": "x"}, "structured_outputs"),
    ("grammar", "root ::= x", "grammar"),
    ("guided_json", {}, "guided_json"),
    ("include", ["message.output_text.logprobs"], "include[0]"),
    ("include", ["reasoning.encrypted_content", "file_search_call.results"], "include[1]"),
    ("include", "reasoning.encrypted_content", "include"),
    ("text", {"format": {"type": "json_object"}}, "text.format"),
    ("text", {"format": {"type": "xml"}}, "text.format.type"),
    ("text", {"verbosity": "low"}, "text.verbosity"),
    ("stream_options", {"include_obfuscation": "x"}, "stream_options.include_obfuscation"),
    ("reasoning", {"generate_summary": "auto"}, "reasoning.generate_summary"),
    ("reasoning", {"mode": "pro"}, "reasoning.mode"),
]


@pytest.mark.clause("RESP-001", "RESP-040", "RESP-042", "RESP-043", "RESP-044", "RESP-045", "RESP-050")
@pytest.mark.parametrize(("name", "value", "param"), ACTIVE)
def test_what_is_missing_is_refused_by_name(stage: Stage, name: str, value: Any, param: str) -> None:
    error = stage.refused(**{name: value})
    assert (error["status"], error["param"]) == (400, param)
    assert param in error["message"]


def test_errors_of_shared_steps_name_this_protocols_fields(nano: Path, tokenizer: Tokenizer) -> None:
    with serving(nano, engine := PlayingEngine(), (*MODEL, "--default-thinking-budget", "50")) as client:
        error = Stage(client, engine, tokenizer).refused(max_output_tokens=52)
    assert (error["code"], error["param"]) == ("thinking_budget_capacity_insufficient", "max_output_tokens")


@pytest.mark.clause("RESP-049")
def test_an_unknown_field_is_an_error(stage: Stage) -> None:
    for members, param in [
        ({"foo": 1}, "foo"),
        ({"foo": None}, "foo"),
        ({"seed": 7}, "seed"),
        ({"messages": []}, "messages"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"stop": "x"}, "stop"),
        ({"reasoning": {"budget": 3}}, "reasoning.budget"),
        ({"text": {"foo": 1}}, "text.foo"),
    ]:
        error = stage.refused(**members)
        assert (error["status"], error["code"], error["param"]) == (400, "unknown_parameter", param)
        assert param in error["message"]


@pytest.mark.clause("RESP-041")
def test_input_beyond_the_context_is_refused_whole(stage: Stage) -> None:
    error = stage.refused(input="word " * 9000)
    assert (error["status"], error["code"], error["param"]) == (400, "context_length_exceeded", "input")


@pytest.mark.clause("RESP-052")
def test_long_values_are_cut_with_their_size(stage: Stage) -> None:
    error = stage.refused(metadata={"k": "v" * 600})
    assert "vvvvvvvv" in error["message"]
    assert "600" in error["message"]
    error = stage.refused(input=[message("user", "a"), {"role": "r" * 10_000, "content": "x"}])
    assert error["param"] == "input[1].role"
    assert "10000 characters" in error["message"]
    assert len(error["message"]) < 200


def test_every_field_of_the_table_is_in_the_document() -> None:
    documented = spec.document("http/openapi")["components"]["schemas"]["ResponsesRequest"]["properties"]
    assert set(documented) == {*TABLES["read"], *TABLES["hints"], *TABLES["refused"]}
    for name, rows in TABLES["members"].items():
        assert set(documented[name]["properties"]) == {*rows["read"], *rows["refused"]}
    limits = TABLES["limits"]
    for name, most in limits.items():
        assert documented[name]["maximum"] == most
    metadata = documented["metadata"]
    assert metadata["maxProperties"] == TABLES["metadata"]["entries"]
    assert metadata["propertyNames"]["maxLength"] == TABLES["metadata"]["key_characters"]
    assert metadata["additionalProperties"]["maxLength"] == TABLES["metadata"]["value_characters"]


FIELDS = st.dictionaries(
    st.sampled_from([*TABLES["read"], *TABLES["hints"], *TABLES["refused"]]), JSON_VALUES
)


@given(FIELDS)
def test_any_values_are_read_or_refused(members: dict[str, Any]) -> None:
    error = outcome(members)
    assert error is None or (error.param is not None and error.message.isascii())
