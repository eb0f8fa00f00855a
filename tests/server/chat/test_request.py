"""Chat bodies: what they mean, and which field a wrong one names."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer import spec
from ninfer.errors import RequestError
from ninfer.prompt.conversation import Message, TextPart
from ninfer.sampling.parameters import SamplingOverrides
from ninfer.server.chat.request import ChatRequest, read_chat_request
from ninfer.spec.errors import error_row
from tests.server.chat.capabilities import ACTIVE, ADVISORY, NEUTRAL
from tests.server.test_json_body import JSON_VALUES

USER = {"role": "user", "content": "hi"}


def read(**members: Any) -> ChatRequest:
    return read_chat_request({"model": "m", "messages": [USER], **members})


def refused(**members: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read(**members)
    return caught.value


def outcome(**members: Any) -> RequestError | None:
    try:
        read(**members)
    except RequestError as error:
        return error
    return None


def test_a_minimal_body() -> None:
    request = read()
    assert (request.model, request.stream, request.include_usage) == ("m", False, False)
    assert request.ask.conversation.messages == (Message("user", (TextPart("hi"),)),)
    assert request.ask.fields.max_tokens is None
    assert request.ask.fields.sampling == SamplingOverrides()


def test_null_is_absent() -> None:
    names = [
        "stream",
        "stream_options",
        "max_tokens",
        "temperature",
        "seed",
        "stop",
        "n",
        "tools",
        "response_format",
        "reasoning_effort",
        "chat_template_kwargs",
        "logit_bias",
        "store",
    ]
    assert read(**dict.fromkeys(names)) == read()


def test_sampling_fields_arrive() -> None:
    values = {
        "temperature": 0.5,
        "top_p": 1,
        "top_k": 20,
        "min_p": 0,
        "presence_penalty": -2,
        "frequency_penalty": 2,
    }
    request = read(**values, seed=-3)
    assert request.ask.fields.sampling == SamplingOverrides(**values)
    assert request.ask.fields.seed == -3


@pytest.mark.parametrize(
    "name", ["temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "seed"]
)
def test_sampling_ranges_are_those_of_the_spec(name: str) -> None:
    row = spec.document("sampling")["ranges"][name]
    step = 1 if row["type"] == "integer" else 0.001
    for value in (row["minimum"], row["maximum"]):
        read(**{name: value})
    for value in (row["minimum"] - step, row["maximum"] + step):
        error = refused(**{name: value})
        assert (error.code, error.param) == ("invalid_value", name)
    for value in ("hot", True, [1], {}):
        error = refused(**{name: value})
        assert (error.code, error.param) == ("invalid_type", name)


def test_the_newer_limit_wins() -> None:
    assert read(max_tokens=5).ask.fields.max_tokens == 5
    assert read(max_completion_tokens=7).ask.fields.max_tokens == 7
    assert read(max_completion_tokens=0, max_tokens=5).ask.fields.max_tokens == 0


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize(
    ("value", "code"),
    [
        (-1, "invalid_value"),
        (10**12, "invalid_value"),
        (1.5, "invalid_type"),
        (1e12, "invalid_type"),
        ("5", "invalid_type"),
        (True, "invalid_type"),
    ],
)
def test_limits_are_nonnegative_integers(name: str, value: object, code: str) -> None:
    error = refused(**{name: value})
    assert (error.code, error.param) == (code, name)


@pytest.mark.parametrize(
    ("value", "stops"), [("a", ("a",)), (["a", "b", "c", "d"], ("a", "b", "c", "d")), ([], ())]
)
def test_stops(value: object, stops: tuple[str, ...]) -> None:
    assert read(stop=value).ask.fields.stops == stops


@pytest.mark.parametrize("value", ["", [""], ["a", ""], ["a", 1], ["a"] * 5, ["x"] * 10_000, 5, {}])
def test_wrong_stops_name_stop(value: object) -> None:
    assert refused(stop=value).param == "stop"


@pytest.mark.parametrize(
    ("members", "code", "param"),
    [
        ({"model": None}, "invalid_type", "model"),
        ({"model": 5}, "invalid_type", "model"),
        ({"messages": {}}, "invalid_type", "messages"),
        ({"messages": []}, "invalid_value", "messages"),
        ({"messages": ["hi"]}, "invalid_type", "messages[0]"),
        ({"messages": [{"content": "x"}]}, "missing_required_parameter", "messages[0].role"),
        ({"messages": [USER, {"role": "wizard", "content": "x"}]}, "invalid_value", "messages[1].role"),
        ({"messages": [{"role": 1}]}, "invalid_type", "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "missing_required_parameter", "messages[0].content"),
        ({"messages": [{"role": "user", "content": None}]}, "invalid_type", "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "invalid_type", "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "invalid_type", "messages[0].content[0]"),
        (
            {"messages": [{"role": "user", "content": [{"text": "x"}]}]},
            "missing_required_parameter",
            "messages[0].content[0].type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "missing_required_parameter",
            "messages[0].content[0].text",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
            "invalid_type",
            "messages[0].content[0].text",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "smell"}]}]},
            "invalid_value",
            "messages[0].content[0].type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
            "unsupported_value",
            "messages[0].content[0]",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "file"}]}]},
            "unsupported_value",
            "messages[0].content[0]",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "vision_disabled",
            "messages[0].content[0]",
        ),
        (
            {"messages": [{"role": "user", "content": "x", "name": "bob"}]},
            "unsupported_parameter",
            "messages[0].name",
        ),
        ({"messages": [{"role": "user", "content": "x", "name": 5}]}, "invalid_type", "messages[0].name"),
        (
            {"messages": [{"role": "tool", "content": "x"}]},
            "missing_required_parameter",
            "messages[0].tool_call_id",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{}]}, USER]},
            "missing_required_parameter",
            "messages[0].tool_calls[0].id",
        ),
        (
            {"messages": [{"role": "assistant", "content": "x", "reasoning": 5}]},
            "invalid_type",
            "messages[0].reasoning",
        ),
        ({"stream": "yes"}, "invalid_type", "stream"),
        ({"stream_options": []}, "invalid_type", "stream_options"),
        ({"stream_options": {"include_usage": 1}}, "invalid_type", "stream_options.include_usage"),
        ({"response_format": {"type": "json_object"}}, "unsupported_value", "response_format"),
        ({"response_format": {"type": "xml"}}, "invalid_value", "response_format.type"),
        ({"response_format": {}}, "missing_required_parameter", "response_format.type"),
        ({"enable_thinking": "no"}, "invalid_type", "enable_thinking"),
        ({"chat_template_kwargs": []}, "invalid_type", "chat_template_kwargs"),
        ({"reasoning_effort": "ultra"}, "invalid_value", "reasoning_effort"),
    ],
)
def test_a_malformed_field_is_named(members: dict[str, Any], code: str, param: str) -> None:
    error = refused(**members)
    assert (error.code, error.param) == (code, param)
    assert param in error.message


@pytest.mark.parametrize("missing", ["model", "messages"])
def test_required_members(missing: str) -> None:
    body = {"model": "m", "messages": [USER]}
    del body[missing]
    with pytest.raises(RequestError) as caught:
        read_chat_request(body)
    assert (caught.value.code, caught.value.param) == ("missing_required_parameter", missing)


def test_history_forms() -> None:
    request = read(
        messages=[
            {"role": "system", "content": "s"},
            {"role": "developer", "content": [{"type": "text", "text": "d"}]},
            {"role": "assistant", "content": None, "tool_calls": [], "refusal": None, "name": ""},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}], "reasoning": "why"},
            {"role": "assistant", "refusal": "never"},
            {"role": "user", "content": []},
            {"role": "user", "content": ""},
        ]
    )
    assert request.ask.conversation.messages == (
        Message("system", (TextPart("s"),)),
        Message("developer", (TextPart("d"),)),
        Message("assistant"),
        Message("assistant", (TextPart("no"),), reasoning="why"),
        Message("assistant", (TextPart("never"),)),
        Message("user"),
        Message("user", (TextPart(""),)),
    )


def test_reasoning_and_its_alias() -> None:
    for member in ("reasoning_content", "reasoning"):
        history = [{"role": "assistant", "content": "x", member: "why"}, USER]
        assert read(messages=history).ask.conversation.messages[0].reasoning == "why"
    error = refused(
        messages=[{"role": "assistant", "content": "x", "reasoning": "a", "reasoning_content": "b"}]
    )
    assert error.param == "messages[0].reasoning"


def test_template_options_are_handed_on() -> None:
    kwargs = {"enable_thinking": False, "own": None}
    options = read(
        preserve_thinking=True, reasoning_effort="low", chat_template_kwargs=kwargs
    ).ask.conversation.options
    assert (options.enable_thinking, options.preserve_thinking, options.reasoning_effort) == (
        None,
        True,
        "low",
    )
    assert dict(options.kwargs) == kwargs


@pytest.mark.parametrize("value", ["default", "auto"])
def test_effort_aliases_are_the_servers_own_level(value: str) -> None:
    assert read(reasoning_effort=value).ask.conversation.options.reasoning_effort is None


def test_the_tables_cover_the_spec() -> None:
    refused_fields = set(spec.document("http/chat")["refused"])
    assert set(NEUTRAL) == set(ACTIVE) == refused_fields


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in NEUTRAL.items() for value in [None, *values]]
)
def test_a_field_that_asks_for_nothing_changes_nothing(name: str, value: object) -> None:
    assert read(**{name: value}) == read()


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in ACTIVE.items() for value in values]
)
def test_a_missing_capability_is_refused_by_name(name: str, value: object) -> None:
    error = refused(**{name: value})
    row = spec.document("http/chat")["refused"][name]
    assert (error.code, error.param) == (row["code"], name)
    assert error_row(error.code).status == 400
    assert row["lacking"] in error.message


@pytest.mark.parametrize("name", ["timings_per_token", "return_progress"])
def test_observations_of_a_running_request_are_asked_for(name: str) -> None:
    for stream in (False, True):
        assert getattr(read(**{name: True}, stream=stream), name)
        assert read(**{name: False}, stream=stream) == read(stream=stream)
    error = refused(**{name: 1})
    assert (error.code, error.param) == ("invalid_type", name)


def test_ignore_eos_goes_on_behind_the_models_end() -> None:
    assert read(ignore_eos=True).ask.fields.ignore_stop_tokens
    assert not read(ignore_eos=False).ask.fields.ignore_stop_tokens
    assert refused(ignore_eos=1).param == "ignore_eos"


def test_unknown_and_advisory_fields_are_ignored() -> None:
    assert read(**ADVISORY) == read()


def test_a_long_wrong_value_is_cut_in_the_message() -> None:
    assert len(refused(reasoning_effort="x" * 10_000).message) < 300


@given(
    st.dictionaries(
        st.sampled_from(
            [
                *NEUTRAL,
                *ADVISORY,
                "temperature",
                "stop",
                "stream",
                "stream_options",
                "max_tokens",
                "seed",
                "response_format",
                "reasoning_effort",
                "chat_template_kwargs",
                "messages",
                "model",
            ]
        ),
        JSON_VALUES,
        max_size=4,
    )
)
def test_any_values_are_read_or_refused(members: dict[str, Any]) -> None:
    """Nothing a client can send raises anything but a 4xx that names a field."""
    error = outcome(**members)
    assert error is None or (400 <= error_row(error.code).status < 500 and error.param)
