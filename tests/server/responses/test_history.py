"""Items as turns: which stand together, which orders cannot be, and how results find their calls."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.prompt.conversation import Message
from ninfer.server.members import Members
from ninfer.server.responses.history import turns
from ninfer.server.responses.items import read_input
from ninfer.server.responses.namespaces import identity
from tests.server.responses.stage import Stage, call, message, reasoning, result
from tests.server.responses.test_items import USER, alike
from tests.server.responses.test_tools import TOOLS, called, say_calls


def history(*items: Any) -> tuple[Message, ...]:
    return turns(read_input(Members({"input": list(items)})))


def refusal(stage: Stage, *items: Any) -> tuple[str, str]:
    error = stage.refused(input=list(items))
    assert error["status"] == 400
    return error["code"], error["param"]


@pytest.mark.clause("RITEM-018")
def test_one_turn_is_what_the_server_wrote(stage: Stage) -> None:
    """A replay of the three Items is the prompt that continues the Response which made them."""
    stage.say("Let me see.", "</think>\n\n", "I look.")
    first = stage.create(input="where?")
    told = [message("user", "where?"), *first["output"], message("user", "and?")]
    stage.create(input="and?", previous_response_id=first["id"])
    continued = stage.engine.prompt()
    stage.create(input=told)
    assert stage.engine.prompt() == continued
    turn = [reasoning("R"), message("assistant", "M"), call("c", arguments='{"x": 1}')]
    (_, made, _) = history(USER, *turn, result("c"))
    assert (made.reasoning, made.parts[0].text, made.tool_calls[0].name) == ("R", "M", "f")  # type: ignore[union-attr]


@pytest.mark.clause("RITEM-019")
def test_messages_of_one_turn_join(stage: Stage) -> None:
    apart = [USER, message("assistant", "a"), message("assistant", "b"), USER]
    assert alike(stage, apart, [USER, message("assistant", "a", "b"), USER])


@pytest.mark.clause("RITEM-020")
def test_calls_keep_their_order(stage: Stage) -> None:
    def calls(*names: str) -> list[Any]:
        return [USER, *(call(name, name) for name in names), *(result(name) for name in names)]

    assert not alike(stage, calls("f", "g"), calls("g", "f"))
    text = stage.prompt(input=calls("g", "f"))
    assert text.index("<function=g>") < text.index("<function=f>")


@pytest.mark.clause("RITEM-021")
def test_a_turn_of_reasoning_alone_stays(stage: Stage) -> None:
    text = stage.prompt(input=[USER, reasoning("only this"), USER], preserve_thinking=True)
    assert "<|im_start|>assistant\n<think>\nonly this\n</think>" in text


@pytest.mark.clause("RITEM-022")
def test_what_ends_a_turn(stage: Stage) -> None:
    for between in (USER, message("system", "s"), message("developer", "d")):
        text = stage.prompt(
            input=[USER, message("assistant", "one"), between, message("assistant", "two"), USER]
        )
        assert text.count("<|im_start|>assistant") == 3  # the last one is the answer's
    text = stage.prompt(input=[USER, call("c"), result("c"), message("assistant", "two"), USER])
    assert text.count("<|im_start|>assistant") == 3


@pytest.mark.clause("RITEM-023")
@pytest.mark.parametrize(
    "items",
    [
        [call("c"), message("assistant", "m")],
        [message("assistant", "m"), reasoning("r")],
        [call("c"), reasoning("r")],
    ],
)
def test_an_order_that_would_be_rearranged(stage: Stage, items: list[Any]) -> None:
    assert refusal(stage, USER, *items) == ("invalid_assistant_history", "input[2]")


def test_the_stored_turn_goes_on_in_the_next_request(stage: Stage) -> None:
    """An assistant Item right behind a stored answer is of the same turn, and keeps its order."""
    parent = stage.create()["id"]
    error = stage.refused(input=[reasoning("r")], previous_response_id=parent)
    assert (error["code"], error["param"]) == ("invalid_assistant_history", "input[0]")
    stage.create(input=[message("assistant", "more"), USER], previous_response_id=parent)


@pytest.mark.clause("RITEM-024")
def test_results_are_put_in_the_order_of_calls(stage: Stage) -> None:
    calls = [USER, call("c1"), call("c2", "g")]
    one, two = result("c1", "first"), result("c2", "second")
    assert alike(stage, [*calls, one, two], [*calls, two, one])
    text = stage.prompt(input=[*calls, two, one])
    assert text.index("first") < text.index("second")


@pytest.mark.clause("RITEM-025")
def test_a_result_without_call(stage: Stage) -> None:
    assert refusal(stage, USER, call("c1"), result("zzz")) == ("invalid_tool_history", "input[2].call_id")
    assert refusal(stage, result("zzz"), USER) == ("invalid_tool_history", "input[0].call_id")
    late = (USER, call("c1"), result("c1"), USER, result("c1"))
    assert refusal(stage, *late) == ("invalid_tool_history", "input[4].call_id")


@pytest.mark.clause("RITEM-026")
def test_two_results_for_one_call(stage: Stage) -> None:
    twice = (USER, call("c1"), result("c1"), result("c1"))
    assert refusal(stage, *twice) == ("invalid_tool_history", "input[3].call_id")


def test_two_calls_of_one_turn_have_two_ids(stage: Stage) -> None:
    assert refusal(stage, USER, call("c1"), call("c1", "g"), result("c1"))[0] == "invalid_tool_history"
    again = [USER, call("c1"), result("c1"), call("c1"), result("c1")]
    assert len(stage.prompt(input=again).split("<tool_call>")) == 3  # another turn may use the id again


@pytest.mark.clause("RITEM-027")
@pytest.mark.parametrize("rest", [[USER], [message("assistant", "m")], [call("c3"), result("c3")], []])
def test_a_partial_set_of_results(stage: Stage, rest: list[Any]) -> None:
    assert refusal(stage, USER, call("c1"), call("c2"), result("c1"), *rest)[0] == "invalid_tool_history"


@pytest.mark.parametrize("rest", [[USER], []])
def test_calls_that_nobody_answered(stage: Stage, rest: list[Any]) -> None:
    assert refusal(stage, USER, call("c1"), *rest)[0] == "invalid_tool_history"


def test_a_stored_call_needs_its_result_first(stage: Stage) -> None:
    say_calls(stage, called("get_weather", city="Bonn"))
    parent = stage.create(tools=TOOLS)["id"]
    for members in ({}, {"input": ...}):
        error = stage.refused(previous_response_id=parent, **members)
        assert (error["status"], error["code"]) == (400, "invalid_tool_history")
        assert error["param"] in ("previous_response_id", "input")
        assert error["param"] in error["message"]


@pytest.mark.clause("RITEM-028")
def test_kept_items_have_the_clients_order(stage: Stage) -> None:
    items = [USER, call("c1"), call("c2"), result("c2"), result("c1")]
    kept = stage.items(stage.create(input=items)["id"])
    assert [item.get("call_id") for item in kept] == [None, "c1", "c2", "c2", "c1"]
    parent = stage.create(input=items)["id"]
    stage.create(input="go on", previous_response_id=parent)


@pytest.mark.clause("RITEM-031")
def test_system_items_stay_where_they_are(stage: Stage) -> None:
    for role in ("system", "developer"):
        text = stage.prompt(input=[message("user", "AAA"), message(role, "XXX"), message("user", "BBB")])
        assert text.index("AAA") < text.index("XXX") < text.index("BBB")
        alone = stage.prompt(input=[message("user", "AAA")])
        shared = alone[: alone.index("AAA") + 3]
        assert text.startswith(shared)


@pytest.mark.clause("RITEM-032")
def test_instructions_are_one_leading_developer_turn(stage: Stage) -> None:
    stage.create(instructions="X", input="Y")
    with_field = stage.engine.prompt()
    stage.create(input=[message("developer", "X"), message("user", "Y")])
    assert stage.engine.prompt() == with_field


def test_instructions_beside_developer_items_reach_the_prompt_once_each(stage: Stage) -> None:
    """Case B34 of the field's reports: late system and developer messages never break the template."""
    items = [message("developer", "AAA"), message("user", "BBB"), message("developer", "CCC")]
    text = stage.prompt(instructions="III", input=items)
    places = [text.index(word) for word in ("III", "AAA", "BBB", "CCC")]
    assert places == sorted(places)
    assert all(text.count(word) == 1 for word in ("III", "AAA", "BBB", "CCC"))


NAMES = st.text("ab-_", min_size=1, max_size=6)


@given(st.tuples(st.none() | NAMES, NAMES), st.tuples(st.none() | NAMES, NAMES))
def test_different_functions_have_different_names(
    one: tuple[str | None, str], other: tuple[str | None, str]
) -> None:
    """Within namespaces; a function without one keeps its name, and a clash with it is refused elsewhere."""
    if one != other and None not in (one[0], other[0]):
        assert identity(*one) != identity(*other)
    if one[0] is None:
        assert identity(*one) == one[1]
