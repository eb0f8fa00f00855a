"""What a model's call becomes can always be sent back as history."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.output.tools import ToolParser
from ninfer.prompt.conversation import Tool
from ninfer.server.members import Members
from ninfer.server.tools import call_arguments

TYPES: list[Any] = [{}, {"type": "object"}, {"type": "array"}, {"type": "integer"}, {"type": "string"}]
PIECES = [
    '{"a": 1, "a": 2}',
    '{"a": 1, "a": 123456789012345678901234567890}',
    '{"a": {"b": 1, "b": [1, 1e2]}}',
    "[" * 199 + "]" * 199,
    "[" * 200 + "]" * 200,
    "[" * 2000,
    "1e999",
    "1" + "0" * 400,
    '"\\ud800"',
    '"\\u00e9"',
    "1],[2",
    "1, 2",
    "1 ",
    "nul",
    "NaN",
    "{}",
    '"a\tb"',
    "0.10",
]


def arguments_of(value: str, schema: Any) -> str:
    definition = {"function": {"name": "f", "parameters": {"properties": {"x": schema}}}}
    parser = ToolParser([Tool("f", definition)])
    parser.push("content", f"<function=f><parameter=x>\n{value}\n</parameter></function>")
    (call,) = parser.finish(stopped_by_token=True, truncated=False).calls
    return call.arguments


@pytest.mark.parametrize("schema", TYPES, ids=str)
@given(st.sampled_from(PIECES) | st.text('{}[]",:1e-. \\uatrf', max_size=20))
def test_a_call_can_be_replayed(schema: Any, value: str) -> None:
    text = arguments_of(value, schema)
    read = call_arguments(Members({"arguments": text}), "arguments")
    assert read == json.loads(text)


@pytest.mark.parametrize("schema", TYPES[:3], ids=str)
def test_a_member_named_twice_inside_a_value_keeps_the_last(schema: Any) -> None:
    assert arguments_of('{"a": 1, "b": 2, "a": {"c": 3, "c": 4}}', schema) == '{"x":{"a":{"c":4},"b":2}}'
    assert arguments_of('{"b": 1.50, "a": 2}', schema) == '{"x":{"b": 1.50, "a": 2}}'
