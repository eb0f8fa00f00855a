"""Tool members of a chat body: declarations, choice, and calls and results in history."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ninfer.errors import RequestError
from ninfer.prompt.conversation import TextPart, ToolCall
from ninfer.server.chat.request import ChatRequest, read_chat_request

USER = {"role": "user", "content": "q"}
F: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "f",
        "parameters": {"type": "object", "properties": {"b": {"type": "string"}, "a": {}}},
        "description": "d",
    },
}
G: dict[str, Any] = {"function": {"name": "g"}, "type": "function"}
CUSTOM: dict[str, Any] = {"type": "custom", "custom": {"name": "apply", "description": "Edit a file."}}


def read(**members: Any) -> ChatRequest:
    return read_chat_request({"model": "m", "messages": [USER], **members})


def refused(**members: Any) -> tuple[str, str | None]:
    with pytest.raises(RequestError) as caught:
        read(**members)
    assert caught.value.param is None or caught.value.param in caught.value.message
    return caught.value.code, caught.value.param


class TestDeclarations:
    """What stands in the prompt."""

    @pytest.mark.clause_early("EXEC-009")
    def test_definitions_keep_their_order_as_received(self) -> None:
        ask = read(tools=[F, {**G, "cache_control": {"type": "ephemeral"}}]).ask
        shown = [json.dumps(tool.definition) for tool in ask.conversation.tools]
        assert shown == [json.dumps(F), json.dumps(G)]
        assert ask.callable_tools == ask.conversation.tools

    @pytest.mark.clause_early("CHAT-014")
    def test_a_custom_tool_is_a_function_with_one_string(self) -> None:
        (tool,) = read(tools=[CUSTOM]).ask.conversation.tools
        assert tool.name == "apply"
        assert tool.definition == {
            "type": "function",
            "function": {
                "name": "apply",
                "description": "Edit a file.",
                "parameters": {
                    "type": "object",
                    "properties": {"input": {"type": "string"}},
                    "required": ["input"],
                },
            },
        }

    @pytest.mark.parametrize(
        ("tools", "code", "param"),
        [
            ("x", "invalid_type", "tools"),
            (["x"], "invalid_type", "tools[0]"),
            ([{"function": {}}], "missing_required_parameter", "tools[0].type"),
            ([{"type": "web_search"}], "unsupported_value", "tools[0].type"),
            ([{"type": "function"}], "missing_required_parameter", "tools[0].function"),
            ([{"type": "function", "function": {}}], "missing_required_parameter", "tools[0].function.name"),
            ([{"type": "function", "function": {"name": 1}}], "invalid_type", "tools[0].function.name"),
            ([F, F], "invalid_value", "tools[1].function.name"),
            (
                [{**CUSTOM, "custom": {"name": "f"}}, {"type": "function", "function": {"name": "f"}}],
                "invalid_value",
                "tools[1].function.name",
            ),
            (
                [{"type": "function", "function": {"name": "f", "parameters": []}}],
                "invalid_type",
                "tools[0].function.parameters",
            ),
            (
                [G, {"type": "function", "function": {"name": "f", "strict": True}}],
                "unsupported_value",
                "tools[1].function.strict",
            ),
            (
                [{"type": "custom", "custom": {"name": "x", "format": {"type": "grammar"}}}],
                "unsupported_value",
                "tools[0].custom.format.type",
            ),
        ],
    )
    def test_what_cannot_be_declared_is_named(self, tools: Any, code: str, param: str) -> None:
        assert refused(tools=tools) == (code, param)

    @pytest.mark.parametrize("name", ["", "a b", "a.b", "é", "n" * 257, "a\n"])
    def test_a_wrong_name_is_shown_with_its_size(self, name: str) -> None:
        with pytest.raises(RequestError) as caught:
            read(tools=[G, {"type": "function", "function": {"name": name}}])
        assert caught.value.param == "tools[1].function.name"
        assert f"{len(name.encode())} bytes" in caught.value.message
        assert ascii(name[:40]) in caught.value.message
        assert len(caught.value.message) < 200

    def test_the_longest_name(self) -> None:
        (tool,) = read(tools=[{"type": "function", "function": {"name": "n" * 256}}]).ask.callable_tools
        assert len(tool.name) == 256


class TestChoice:
    """What may be called, and what needs constraints that are not there yet."""

    @pytest.mark.clause_early("CHAT-015")
    @pytest.mark.parametrize(
        "members",
        [
            {},
            {"tool_choice": "auto"},
            {"tool_choice": None},
            {"tool_constraints": "auto"},
            {"parallel_tool_calls": True},
            {"stop": ["x"]},
        ],
    )
    def test_free_calls(self, members: dict[str, Any]) -> None:
        ask = read(tools=[F, G], **members).ask
        assert [tool.name for tool in ask.callable_tools] == ["f", "g"]

    @pytest.mark.clause_early("CHAT-015")
    @pytest.mark.parametrize("more", [{}, {"parallel_tool_calls": False}, {"tool_constraints": "basic"}])
    def test_none_keeps_the_declarations_and_reads_no_calls(self, more: dict[str, Any]) -> None:
        ask = read(tools=[F, G], tool_choice="none", **more).ask
        assert len(ask.conversation.tools) == 2
        assert ask.callable_tools == ()

    @pytest.mark.clause("FIELD-036")
    @pytest.mark.parametrize(
        "members",
        [
            {"tools": []},
            {"tools": None},
            {"functions": []},
            {"function_call": "none"},
            {"tool_choice": "none"},
            {"tool_choice": "auto"},
            {"parallel_tool_calls": False},
            {"tool_constraints": "basic"},
        ],
    )
    def test_empty_controls_ask_for_nothing(self, members: dict[str, Any]) -> None:
        assert read(**members) == read()

    @pytest.mark.parametrize(
        ("members", "param"),
        [
            ({"tool_choice": "required"}, "tool_choice"),
            ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
            ({"tool_choice": {"type": "custom", "custom": {"name": "f"}}}, "tool_choice"),
            (
                {
                    "tool_choice": {
                        "type": "allowed_tools",
                        "allowed_tools": {
                            "mode": "auto",
                            "tools": [{"type": "function", "function": {"name": "g"}}],
                        },
                    }
                },
                "tool_choice",
            ),
            ({"parallel_tool_calls": False}, "parallel_tool_calls"),
            ({"tool_constraints": "basic"}, "tool_constraints"),
        ],
    )
    def test_what_needs_constraints_is_refused_by_name(self, members: dict[str, Any], param: str) -> None:
        assert refused(tools=[F, G], **members) == ("unsupported_value", param)

    @pytest.mark.parametrize(
        ("members", "code", "param"),
        [
            ({"tool_choice": "any"}, "invalid_value", "tool_choice"),
            ({"tool_choice": 1}, "invalid_type", "tool_choice"),
            ({"tool_choice": {}}, "missing_required_parameter", "tool_choice.type"),
            ({"tool_choice": {"type": "tool"}}, "invalid_value", "tool_choice.type"),
            ({"tool_choice": {"type": "function"}}, "missing_required_parameter", "tool_choice.function"),
            (
                {"tool_choice": {"type": "function", "function": {"name": "h"}}},
                "invalid_value",
                "tool_choice.function.name",
            ),
            ({"tool_constraints": "none"}, "invalid_value", "tool_constraints"),
            ({"parallel_tool_calls": "no"}, "invalid_type", "parallel_tool_calls"),
        ],
    )
    def test_malformed_choices(self, members: dict[str, Any], code: str, param: str) -> None:
        assert refused(tools=[F], **members) == (code, param)

    def test_a_forced_call_needs_tools(self) -> None:
        assert refused(tool_choice="required") == ("invalid_value", "tool_choice")


def called(*calls: dict[str, Any], **members: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls), **members}


def made(call_id: str, name: str = "look", arguments: Any = "{}", **members: Any) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}, **members}


def result(call_id: str, content: str = "ok", **members: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content, **members}


class TestHistory:
    """Calls and results of earlier turns."""

    def messages(self, *messages: dict[str, Any]) -> tuple[Any, ...]:
        return read(messages=[USER, *messages]).ask.conversation.messages[1:]

    @pytest.mark.clause_early("CHAT-004", "CHAT-018", "CHAT-019")
    def test_a_call_and_its_result(self) -> None:
        """Public reports Qwen3#1894, Rapid-MLX#973: the template gets a mapping."""
        history = [called(made("c1", arguments='{"z": 1, "city": "Lima"}')), result("c1", name="look")]
        call, answer = self.messages(*history)
        assert call.tool_calls == (ToolCall("look", {"z": 1, "city": "Lima"}, "c1"),)
        assert list(call.tool_calls[0].arguments) == ["z", "city"]
        assert (answer.role, answer.parts, answer.tool_call_id) == ("tool", (TextPart("ok"),), "c1")

    @pytest.mark.parametrize("arguments", ["", " \n", None, "{}"])
    def test_no_arguments(self, arguments: Any) -> None:
        """Public reports openai-agents-js#664, litellm#5064: an empty string is an empty object."""
        call, _ = self.messages(called(made("c1", arguments=arguments)), result("c1"))
        assert call.tool_calls[0].arguments == {}

    @pytest.mark.parametrize(
        "arguments", ["[]", "null", "not json", '"x"', "{'a': 1}", '{"a": NaN}', "[" * 5000]
    )
    def test_other_arguments_are_named(self, arguments: str) -> None:
        path = "messages[1].tool_calls[0].function.arguments"
        assert refused(messages=[USER, called(made("c1", arguments=arguments)), result("c1")]) == (
            "invalid_value",
            path,
        )

    def test_results_come_in_the_order_of_the_calls(self) -> None:
        messages = self.messages(called(made("a"), made("b")), result("b", "2"), result("a", "1"), USER)
        assert [message.tool_call_id for message in messages] == [None, "a", "b", None]

    def test_ids_may_return_in_a_later_turn(self) -> None:
        turn = [called(made("call_0")), result("call_0"), {"role": "assistant", "content": "done"}, USER]
        assert len(self.messages(*turn, *turn)) == 8

    @pytest.mark.clause_early("CHAT-018")
    def test_the_legacy_forms(self) -> None:
        call, answer = self.messages(
            {"role": "assistant", "function_call": {"name": "look", "arguments": '{"a":1}'}},
            {"role": "function", "name": "look", "content": "seen"},
        )
        assert call.tool_calls == (ToolCall("look", {"a": 1}),)
        assert (answer.role, answer.parts) == ("tool", (TextPart("seen"),))

    def test_a_custom_call(self) -> None:
        custom = {"id": "c", "type": "custom", "custom": {"name": "apply", "input": "x\n"}}
        call, _ = self.messages(called(custom), result("c"))
        assert call.tool_calls == (ToolCall("apply", {"input": "x\n"}, "c"),)

    def test_results_before_any_call_are_an_imported_history(self) -> None:
        (first, *_) = read(messages=[result("gone"), USER]).ask.conversation.messages
        assert first.role == "tool"

    @pytest.mark.clause("CHAT-020")
    @pytest.mark.parametrize("name", [5, ["x"], {"a": 1}, True])
    def test_a_name_that_is_no_string(self, name: Any) -> None:
        messages = [USER, called(made("c1")), result("c1", name=name)]
        assert refused(messages=messages) == ("invalid_type", "messages[2].name")

    @pytest.mark.parametrize(
        ("messages", "param"),
        [
            ([called(made("a")), result("b")], "messages[2].tool_call_id"),
            ([called(made("a")), result("a"), result("a")], "messages[3].tool_call_id"),
            ([called(made("a"), made("b")), result("a"), USER], "messages[1].tool_calls[1].id"),
            ([called(made("a")), USER], "messages[1].tool_calls[0].id"),
            ([called(made("a"), made("a")), result("a")], "messages[1].tool_calls[1].id"),
            ([{"role": "assistant", "content": "x"}, result("a")], "messages[2].tool_call_id"),
            ([called(made("a")), result("a"), USER, result("a")], "messages[4].tool_call_id"),
            (
                [
                    {"role": "assistant", "function_call": {"name": "f"}},
                    {"role": "function", "name": "g", "content": ""},
                ],
                "messages[2].name",
            ),
        ],
    )
    def test_calls_and_results_must_match(self, messages: list[Any], param: str) -> None:
        assert refused(messages=[USER, *messages]) == ("invalid_tool_history", param)

    @pytest.mark.parametrize(
        ("message", "code", "param"),
        [
            ({"role": "assistant", "tool_calls": {}}, "invalid_type", "messages[1].tool_calls"),
            (called({"type": "function"}), "missing_required_parameter", "messages[1].tool_calls[0].id"),
            (called({"id": "c"}), "missing_required_parameter", "messages[1].tool_calls[0].function"),
            (called(made("c", "a b")), "invalid_value", "messages[1].tool_calls[0].function.name"),
            (called(made("c", arguments={})), "invalid_type", "messages[1].tool_calls[0].function.arguments"),
            (called(made("c", type="x")), "invalid_value", "messages[1].tool_calls[0].type"),
            (called(made("c"), function_call={"name": "f"}), "invalid_value", "messages[1].function_call"),
        ],
    )  # fmt: skip
    def test_malformed_calls(self, message: dict[str, Any], code: str, param: str) -> None:
        assert refused(messages=[USER, message, result("c")]) == (code, param)
