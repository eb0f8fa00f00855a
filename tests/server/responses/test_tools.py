"""Function tools and namespaces: declarations, calls whole and streamed, the way back into the prompt."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from ninfer.engine.scripted import Step
from tests.server.responses.stage import Stage, joined, labels, message, result

NAMESPACE = "mcp__weather"
FUNCTION = {
    "type": "function",
    "name": "get_weather",
    "description": "Get current weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
GROUP = {
    "type": "namespace",
    "name": NAMESPACE,
    "description": "Weather service",
    "tools": [{"type": "function", "name": "get_current"}, {"type": "function", "name": "get_later"}],
}
TOOLS = [FUNCTION, GROUP]


def called(name: str, **values: str) -> str:
    """A call as the model writes it."""
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def known(stage: Stage, name: str, tools: list[Any] = TOOLS) -> str:
    """The name under which the model knows a function of a namespace: the one in the prompt that ends so."""
    text = stage.prompt(tools=tools)
    found = [word for word in text.replace('"', " ").replace(",", " ").split() if word.endswith(name)]
    return found[0]


def say_calls(stage: Stage, *calls: str) -> None:
    stage.say("I call.", "</think>\n\n", "Look: ", *[piece for call in calls for piece in (call, "\n")])


def function_calls(response: dict[str, Any]) -> list[dict[str, Any]]:
    return [item for item in response["output"] if item["type"] == "function_call"]


@pytest.mark.clause("RESP-033", "RESP-058", "RTOOL-002", "RTOOL-004", "RTOOL-009")
def test_a_function_and_a_namespace_are_called_under_their_own_names(stage: Stage) -> None:
    say_calls(stage, called("get_weather", city="Bonn"), called(known(stage, "get_current")))
    response = stage.create(tools=TOOLS)
    direct, grouped = function_calls(response)
    assert (direct["name"], direct["arguments"]) == ("get_weather", '{"city":"Bonn"}')
    assert "namespace" not in direct
    assert (grouped["namespace"], grouped["name"], grouped["arguments"]) == (NAMESPACE, "get_current", "{}")
    assert all(item["id"].startswith("fc_") for item in (direct, grouped))
    assert all(item["call_id"].startswith("call_") for item in (direct, grouped))
    assert len({direct["id"], grouped["id"], direct["call_id"], grouped["call_id"]}) == 4
    assert response["output"][1]["content"][0]["text"].startswith("Look:")
    assert response["status"] == "completed"
    assert response["tools"] == TOOLS


@pytest.mark.clause("RESP-037", "RESP-039")
def test_several_calls_are_the_default(stage: Stage) -> None:
    say_calls(stage, called("get_weather", city="a"), called("get_weather", city="b"))
    response = stage.create(tools=TOOLS, max_tool_calls=1)
    assert [item["arguments"] for item in function_calls(response)] == ['{"city":"a"}', '{"city":"b"}']
    assert response["parallel_tool_calls"] is True


@pytest.mark.clause("RSSE-014", "RTOOL-005")
def test_a_streamed_call(stage: Stage) -> None:
    name = known(stage, "get_current")
    say_calls(stage, called("get_weather", city="Bonn"), called(name, city="Rome"))
    events = stage.stream(tools=TOOLS)
    names = labels(events)
    at = names.index("output_item.added/function_call")
    one = ["output_item.added/function_call", "function_call_arguments.delta"]
    one += ["function_call_arguments.done", "output_item.done/function_call"]
    assert names[at:] == [*one, *one, "completed"]
    output = function_calls(events[-1]["response"])
    for call, group in zip(output, (events[at : at + 4], events[at + 4 : at + 8]), strict=True):
        added, delta, done, whole = group
        assert added["item"] == call | {"status": "in_progress", "arguments": ""}
        assert delta["delta"] == done["arguments"] == call["arguments"]
        assert whole["item"] == call
        assert {event["item_id"] for event in (delta, done)} == {call["id"]}
    assert [call.get("namespace") for call in output] == [None, NAMESPACE]


@pytest.mark.clause("RSSE-019")
def test_text_streams_at_once_beside_tools(stage: Stage) -> None:
    stage.say("</think>\n\n", "Long ", "prose", " a <tool", Step(text=" box>", wait_s=0.05), ", yes")
    events = stage.stream(tools=TOOLS)
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert joined(events, "output_text") == "Long prose a <tool box>, yes"
    assert len(deltas) >= 3
    assert "Long" in deltas[0]
    assert not deltas[0].endswith("<tool")


@pytest.mark.clause("RSSE-020")
def test_broken_markup_comes_back_as_text(stage: Stage) -> None:
    broken = "<tool_call>\n<function=get_weather>\n<parameter=city>\nBonn\n</function>"
    stage.say("</think>\n\n", "Look: ", broken)
    events = stage.stream(tools=TOOLS, tool_constraints="auto")
    assert joined(events, "output_text") == "Look: " + broken
    assert not function_calls(events[-1]["response"])
    assert events[-1]["type"] == "response.completed"


def test_a_call_that_the_limit_cuts_is_incomplete_text(stage: Stage) -> None:
    """Case B31 of the field's reports, in a function call."""
    stage.say("</think>\n\n", "<tool_call>\n<function=get_weather>\n", "<parameter=city>\n", "Bonn")
    response = stage.create(tools=TOOLS, max_output_tokens=3)
    (item,) = response["output"]
    assert (item["type"], item["status"], response["status"]) == ("message", "incomplete", "incomplete")
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}


@pytest.mark.clause("RTOOL-008")
def test_declarations_are_in_the_prompt(stage: Stage) -> None:
    assert stage.count(tools=TOOLS) > stage.count(tools=[FUNCTION]) > stage.count()
    text = stage.prompt(tools=TOOLS)
    for word in ("get_weather", "Get current weather", '"city"', "get_current", NAMESPACE, "Weather service"):
        assert word in text
    assert text.count("Weather service") == 1


def test_no_call_is_read_where_none_may_be(stage: Stage) -> None:
    say_calls(stage, called("get_weather", city="Bonn"))
    for members in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        response = stage.create(**members)
        assert not function_calls(response)
        assert "<tool_call>" in response["output"][1]["content"][0]["text"]
    assert stage.count(tools=TOOLS, tool_choice="none") == stage.count(tools=TOOLS)


@pytest.mark.clause("RTOOL-010", "RSTORE-006")
def test_a_loop_of_two_turns(stage: Stage) -> None:
    say_calls(stage, called("get_weather", city="Bonn"))
    first = stage.create(input="Weather?", tools=TOOLS)
    (made,) = function_calls(first)
    stage.say("</think>\n\n", "Sunny.")
    second = {"input": [result(made["call_id"], "sun")], "previous_response_id": first["id"]}
    answer = stage.create(tools=TOOLS, **second)
    assert answer["output"][0]["content"][0]["text"] == "Sunny."
    text = stage.prompt(tools=TOOLS, **second)
    assert text.index("<function=get_weather>") < text.index("<tool_response>\nsun")
    say_calls(stage, called("get_weather", city="Bonn"))
    bare = stage.create(**second)
    assert bare["usage"]["input_tokens"] < answer["usage"]["input_tokens"]
    assert not function_calls(bare)


@pytest.mark.clause("RTOOL-006")
def test_a_replayed_call_is_the_stored_one(stage: Stage) -> None:
    say_calls(stage, called(known(stage, "get_current"), city="Bonn"))
    first = stage.create(input="Weather?", tools=TOOLS)
    (made,) = function_calls(first)
    answered = result(made["call_id"], "sun", namespace=NAMESPACE, name="get_current")
    stage.create(input=[answered], previous_response_id=first["id"], tools=TOOLS)
    continued = stage.engine.prompt()
    stage.create(input=[message("user", "Weather?"), *first["output"], answered], tools=TOOLS)
    assert stage.engine.prompt() == continued


def test_member_order_comes_back_as_the_model_wrote_it(stage: Stage) -> None:
    say_calls(stage, called("get_weather", zeta="1", city="2", alpha="3"))
    (made,) = function_calls(stage.create(tools=TOOLS))
    assert made["arguments"] == '{"zeta":1,"city":"2","alpha":3}'


def test_one_name_in_two_namespaces(stage: Stage) -> None:
    tools = [{**GROUP, "name": name, "tools": [{"type": "function", "name": "get"}]} for name in ("a", "b")]
    text = stage.prompt(tools=tools)
    names = [word for word in text.replace('"', " ").replace(",", " ").split() if word.endswith("get")]
    assert len(set(names)) == 2
    say_calls(stage, called(names[1]))
    (made,) = function_calls(stage.create(tools=tools))
    assert (made["namespace"], made["name"]) == ("b", "get")


REFUSED: list[tuple[Any, str]] = [
    ({"type": "web_search"}, "tools[0].type"),
    ({"type": "file_search"}, "tools[0].type"),
    ({"type": "code_interpreter"}, "tools[0].type"),
    ({"type": "computer_use_preview"}, "tools[0].type"),
    ({"type": "image_generation"}, "tools[0].type"),
    ({"type": "mcp", "server_label": "s", "server_url": "https://e.example"}, "tools[0].type"),
    ({"type": "custom", "name": "c"}, "tools[0].type"),
    ({**FUNCTION, "defer_loading": True}, "tools[0].defer_loading"),
    ({**FUNCTION, "output_schema": {}}, "tools[0].output_schema"),
    ({**FUNCTION, "allowed_callers": ["programmatic"]}, "tools[0].allowed_callers"),
    ({**FUNCTION, "async": True}, "tools[0].async"),
    ({**FUNCTION, "strict": True}, "tools[0].strict"),
    ({**FUNCTION, "parameters": []}, "tools[0].parameters"),
    ({**FUNCTION, "description": 3}, "tools[0].description"),
    ({"type": "function"}, "tools[0].name"),
    ({**GROUP, "tools": [FUNCTION, {"type": "custom", "name": "c"}]}, "tools[0].tools[1].type"),
    ({**GROUP, "tools": [GROUP]}, "tools[0].tools[0].type"),
    ({"type": "namespace", "name": "n"}, "tools[0].tools"),
    ({**GROUP, "name": "a b"}, "tools[0].name"),
    ({**GROUP, "description": 3}, "tools[0].description"),
    ({**GROUP, "name": "n" * 200, "tools": [{**FUNCTION, "name": "f" * 100}]}, "tools[0].tools[0].name"),
]


@pytest.mark.clause("RESP-001", "RTOOL-002", "RTOOL-013", "RTOOL-014", "RTOOL-016", "RTOOL-017", "RTOOL-018")
@pytest.mark.parametrize(("tool", "param"), REFUSED)
def test_what_is_no_function_of_the_client_is_refused(stage: Stage, tool: Any, param: str) -> None:
    """Case B30 of the field's reports: a clear 400 that names the place; the functions alone still work."""
    error = stage.refused(tools=[tool])
    assert (error["status"], error["param"]) == (400, param)
    assert param in error["message"]
    later = stage.refused(tools=[{**FUNCTION, "name": "other"}, tool])
    assert later["param"] == param.replace("tools[0]", "tools[1]", 1)


@pytest.mark.clause("RTOOL-015")
def test_custom_tools_are_for_chat(stage: Stage) -> None:
    assert stage.refused(tools=[{"type": "custom", "name": "c"}])["status"] == 400
    assert stage.client.chat(tools=[{"type": "custom", "custom": {"name": "c"}}]).status == 200


@pytest.mark.clause("RESP-051", "RESP-052", "RESP-053")
def test_a_wrong_name_is_quoted_in_ascii_and_placed(stage: Stage) -> None:
    error = stage.refused(tools=[{**FUNCTION, "name": "wét x"}])
    assert (error["status"], error["param"]) == (400, "tools[0].name")
    assert r"w\xe9t x" in error["message"]
    assert error["message"].isascii()
    error = stage.refused(tools=[{**FUNCTION, "name": "n" * 10_000}])
    assert "n" * 40 in error["message"]
    assert "10000" in error["message"]
    assert len(error["message"]) < 200
    nested = {"type": "function", "function": {**FUNCTION, "name": "wét x"}}
    chat = stage.client.chat(tools=[nested]).error
    assert chat["param"] == "tools[0].function.name"
    assert "tools[0].function.name" in chat["message"]
    made = {"id": "c", "type": "function", "function": {"name": "wét x", "arguments": "{}"}}
    history = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    history.append({"role": "assistant", "tool_calls": [made]})  # type: ignore[dict-item]
    chat = stage.client.chat(messages=history).error
    assert chat["param"] == "messages[2].tool_calls[0].function.name"
    assert "messages[2].tool_calls[0].function.name" in chat["message"]


@pytest.mark.parametrize(
    "tools",
    [
        [FUNCTION, FUNCTION],
        [GROUP, GROUP],
        [{**FUNCTION, "name": "a--b"}, {**GROUP, "name": "a", "tools": [{**FUNCTION, "name": "b"}]}],
    ],
)
def test_one_name_is_one_function(stage: Stage, tools: list[Any]) -> None:
    assert "already" in stage.refused(tools=tools)["message"]


def test_neutral_members_of_functions_pass(stage: Stage) -> None:
    neutral = {"defer_loading": False, "output_schema": None, "allowed_callers": ["direct", "programmatic"]}
    neutral |= {"strict": False, "parameters": FUNCTION["parameters"]}
    response = stage.create(tools=[FUNCTION | neutral], tool_choice="auto", tool_constraints="auto")
    assert response["tools"] == [FUNCTION | neutral]
    for tools in ([], None):
        assert stage.create(tools=tools, tool_choice="auto")["tools"] == []


CHOICES: list[tuple[Any, str]] = [
    ("maybe", "tool_choice"),
    (3, "tool_choice"),
    ({"type": "web_search"}, "tool_choice.type"),
    ({"type": "custom", "name": "c"}, "tool_choice.type"),
    ({"type": "function", "name": "none_such"}, "tool_choice.name"),
    ({"type": "function", "name": "get_current"}, "tool_choice.name"),
    ({"type": "allowed_tools", "mode": "x", "tools": []}, "tool_choice.mode"),
    (
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]},
        "tool_choice.tools[0].type",
    ),
]


@pytest.mark.parametrize(("choice", "param"), CHOICES)
def test_a_wrong_choice_is_named(stage: Stage, choice: Any, param: str) -> None:
    error = stage.refused(tools=TOOLS, tool_choice=choice)
    assert (error["status"], error["param"]) == (400, param)


@pytest.mark.clause("RTOOL-007")
def test_a_namespaced_call_ends_the_response(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """And opens no connection: the only one that is made while it runs is the test's own."""
    say_calls(stage, called(known(stage, "get_current")))
    opened: list[Any] = []
    connect = socket.socket.connect
    monkeypatch.setattr(socket.socket, "connect", lambda self, to: (opened.append(to), connect(self, to))[1])
    response = stage.create(tools=TOOLS)
    assert response["output"][-1]["type"] == "function_call"
    assert len(opened) == 1
