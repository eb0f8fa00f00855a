"""What Messages bodies become: held against each other by the count of their prompts' tokens."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.http.client import Client
from ninfer.engine.scripted import Script
from tests.server.conftest import MODEL
from tests.server.engines import RecordingEngine
from tests.server.inprocess import serving
from tests.server.messages.asking import (
    ask,
    assistant,
    body,
    count,
    refused,
    text,
    thinking,
    tool,
    tool_result,
    tool_use,
    user,
)

OFF = {"thinking": {"type": "disabled"}}
BILLING = "x-anthropic-billing-header: cc_version=1; cch=aaaaa;"


@pytest.fixture(scope="module")
def engine() -> RecordingEngine:
    return RecordingEngine(Script())


@pytest.fixture(scope="module")
def client(nano: Path, engine: RecordingEngine) -> Iterator[Client]:
    with serving(nano, engine, MODEL) as client:
        yield client


def prompt(client: Client, engine: RecordingEngine, *messages: Any, **members: Any) -> list[int]:
    """The prompt that an asked body becomes; its count is the same."""
    assert ask(client, *messages, **members).status == 200
    tokens = engine.prompt()
    assert count(client, *messages, **members) == len(tokens)
    return tokens


@pytest.mark.clause("MSG-004")
def test_system_as_text_or_blocks(client: Client, engine: RecordingEngine) -> None:
    whole = prompt(client, engine, system="S and more")
    assert prompt(client, engine, system=[text("S and more")]) == whole
    assert prompt(client, engine, system=[text("S and"), text(" more")]) == whole
    assert len(whole) > count(client)


@pytest.mark.clause("MSG-005")
def test_a_system_message_keeps_its_place(client: Client, engine: RecordingEngine) -> None:
    before = [user("a"), assistant("b")]
    after = prompt(client, engine, *before, {"role": "system", "content": "X"}, user("c"))
    without = prompt(client, engine, *before, user("c"))
    shared = next(i for i, (one, other) in enumerate(zip(after, without, strict=False)) if one != other)
    assert shared >= count(client, user("a")) - 4  # everything up to the system message is unchanged
    assert len(after) > len(without)


@pytest.mark.clause("MSG-006", "MSG-007")
def test_neighbours_of_one_role_join(client: Client, engine: RecordingEngine) -> None:
    assert prompt(client, engine, user("ab"), user("cd")) == prompt(client, engine, user("abcd"))
    joined = prompt(client, engine, user("q"), assistant("abcd"), user("r"))
    assert prompt(client, engine, user("q"), assistant("ab"), assistant("cd"), user("r")) == joined


@pytest.mark.clause("MSG-009")
def test_history_of_every_kind(client: Client) -> None:
    turn = [thinking("why"), text("I look."), tool_use("toolu_1", x=1)]
    assert (
        ask(client, user("q"), assistant(turn), user([tool_result("toolu_1"), text("go on")])).status == 200
    )


@pytest.mark.clause("MSG-010", "MSG-012")
def test_a_last_assistant_message_is_continued(client: Client, engine: RecordingEngine) -> None:
    opened = prompt(client, engine, user("q"), **OFF)
    continued = prompt(client, engine, user("q"), assistant("The answer is"), **OFF)
    assert continued[: len(opened)] == opened
    assert len(continued) > len(opened)
    on = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
    for members in (on, {"thinking": {"type": "adaptive"}}, {}):
        refused(client, user("q"), assistant("The answer is"), **members)


@pytest.mark.clause("MSG-013")
def test_a_cut_turn_is_continued_with_its_reasoning(client: Client) -> None:
    cut = assistant([thinking("so far"), text("The ans")])
    assert ask(client, user("q"), cut, **OFF).status == 200


@pytest.mark.clause("MSG-014", "COUNT-012")
def test_a_last_message_cannot_hold_calls(client: Client) -> None:
    history = [user("q"), assistant([text("a"), tool_use("t1")])]
    assert refused(client, *history, **OFF)["code"] == "invalid_tool_history"
    counted = client.request("POST", "/v1/messages/count_tokens", body(*history, **OFF))
    assert (counted.status, counted.error["code"]) == (400, "invalid_tool_history")
    prefill = client.request("POST", "/v1/messages/count_tokens", body(user("q"), assistant("a")))
    assert (prefill.status, prefill.error) == (400, refused(client, user("q"), assistant("a")))
    assert count(client, tools=[tool()]) > count(client)


@pytest.mark.clause("MSG-015", "COUNT-016")
def test_a_billing_header_is_consumed(client: Client, engine: RecordingEngine) -> None:
    """Case [anthropic]: two bodies that differ only in it are one prompt."""
    plain = prompt(client, engine, system=[text("S")])
    for header in (BILLING, "x-anthropic-billing-header:", BILLING.replace("aaaaa", "bbbbb")):
        assert prompt(client, engine, system=[text(header), text("S")]) == plain
    marked = text(BILLING, cache_control={"type": "ephemeral"})
    assert prompt(client, engine, system=[marked, text("S")]) == plain
    assert prompt(client, engine, system=[text(BILLING)]) == prompt(client, engine)


@pytest.mark.clause("MSG-017", "MSG-018")
def test_the_same_text_elsewhere_stays(client: Client) -> None:
    plain = count(client, system=[text("S")])
    assert count(client, system=BILLING) > count(client)
    assert count(client, system=[text("S"), text(BILLING)]) > plain
    assert count(client, {"role": "system", "content": [text(BILLING)]}, user("hi")) > count(client)
    for other in (" " + BILLING, BILLING.replace("x-a", "X-A")):
        assert count(client, system=[text(other), text("S")]) > plain


@pytest.mark.clause("MSG-028", "MSG-032", "MSG-033")
def test_the_text_of_thinking_counts_and_not_its_signature(client: Client, engine: RecordingEngine) -> None:
    def replay(block: Any) -> list[int]:
        return prompt(
            client, engine, user("q"), assistant([block, text("a")]), user("r"), preserve_thinking=True
        )

    without = prompt(client, engine, user("q"), assistant("a"), user("r"), preserve_thinking=True)
    other = "ninfer-reasoning.v1:" + base64.b64encode(b"B").decode()
    told = replay(thinking("A", "garbage"))
    assert told == replay(thinking("A", "")) == replay(thinking("A", other))
    assert told != without
    assert replay(thinking("", "abc")) == replay(thinking("", ""))
    assert len(replay(thinking("", "abc"))) <= len(told)


@pytest.mark.clause("MSG-030")
def test_omitted_reasoning_comes_back(client: Client, engine: RecordingEngine) -> None:
    carried = "ninfer-reasoning.v1:" + base64.b64encode("Grüße, so".encode()).decode()
    kept = {"preserve_thinking": True}
    history = [user("q"), assistant([thinking("", carried), text("a")]), user("r")]
    restored = prompt(client, engine, *history, **kept)
    visible = [user("q"), assistant([thinking("Grüße, so"), text("a")]), user("r")]
    assert restored == prompt(client, engine, *visible, **kept)
    assert len(restored) > count(client, user("q"), assistant("a"), user("r"), **kept)


@pytest.mark.clause("MSG-034")
@pytest.mark.parametrize("tail", ["%%%", "AA=A", "////", "YQ"])
def test_a_broken_signature_of_ours(client: Client, tail: str) -> None:
    block = thinking("", "ninfer-reasoning.v1:" + tail)
    error = refused(client, user("q"), assistant([block, text("a")]), user("r"))
    assert error["code"] == "invalid_thinking_signature"
    assert "messages[1].content[0].signature" in error["message"]


@pytest.mark.clause("MSG-035")
def test_reasoning_of_closed_turns(client: Client) -> None:
    history = [user("q"), assistant([thinking("much to think about"), text("a")]), user("r")]
    assert count(client, *history, preserve_thinking=True) > count(client, *history, preserve_thinking=False)


@pytest.mark.clause("MSG-036")
def test_efforts(client: Client, engine: RecordingEngine) -> None:
    xhigh = prompt(client, engine, output_config={"effort": "xhigh"})
    for effort in ("high", "max"):
        assert prompt(client, engine, output_config={"effort": effort}) == xhigh
    assert "output_config.effort" in refused(client, output_config={"effort": "banana"})["message"]


@pytest.mark.clause("MSG-045")
def test_result_parts_keep_their_order(client: Client, engine: RecordingEngine) -> None:
    def after(*parts: str) -> list[int]:
        result = tool_result("t1", [text(part) for part in parts])
        return prompt(client, engine, user("q"), assistant([tool_use("t1")]), user([result]))

    assert after("one", "two") != after("two", "one")
    assert after("one", "two") == after("onetwo")


@pytest.mark.clause("MSG-047")
def test_failed_results_are_shown(client: Client, engine: RecordingEngine) -> None:
    def after(**members: Any) -> list[int]:
        result = tool_result("t1", "boom", **members)
        return prompt(client, engine, user("q"), assistant([tool_use("t1")]), user([result]))

    assert after(is_error=False) == after() == after(is_error=None)
    assert len(after(is_error=True)) > len(after())


@pytest.mark.clause("MSG-048")
@pytest.mark.parametrize(
    "reply",
    [
        [tool_result("t1")],
        [tool_result("t1"), tool_result("t1"), tool_result("t2")],
        [tool_result("t1"), tool_result("t2"), tool_result("t3")],
        [text("well"), tool_result("t1"), tool_result("t2")],
        [tool_result("t1"), text("well"), tool_result("t2")],
        "no result at all",
    ],
)
def test_results_must_match_their_calls(client: Client, reply: Any) -> None:
    error = refused(client, user("q"), assistant([tool_use("t1"), tool_use("t2")]), user(reply))
    assert error["code"] == "invalid_tool_history"
    assert "messages[" in error["message"]


def test_results_need_a_call_before_them(client: Client) -> None:
    error = refused(client, user("q"), assistant("a"), user([tool_result("t9")]))
    assert error["code"] == "invalid_tool_history"
    error = refused(client, user("q"), assistant([tool_use("t1")]), assistant([tool_use("t1")]), user("r"))
    assert error["code"] == "invalid_tool_history"


@pytest.mark.clause("MSG-049")
def test_results_stand_in_call_order(client: Client, engine: RecordingEngine) -> None:
    calls = assistant([tool_use("a"), tool_use("b")])
    one, other = tool_result("a", "first"), tool_result("b", "second")
    straight = prompt(client, engine, user("q"), calls, user([one, other]))
    assert prompt(client, engine, user("q"), calls, user([other, one])) == straight


@pytest.mark.clause("MSG-050")
def test_a_history_may_begin_with_results(client: Client) -> None:
    assert ask(client, user([tool_result("unseen"), text("go on")])).status == 200


def test_blocks_out_of_order(client: Client) -> None:
    for turn in ([text("a"), thinking("late")], [tool_use("t1"), text("late")]):
        error = refused(client, user("q"), assistant(turn), user([tool_result("t1")]))
        assert error["code"] == "invalid_assistant_history"
        assert "messages[1].content[1]" in error["message"]


@pytest.mark.clause("MSG-061")
@pytest.mark.parametrize(
    ("kind", "lacking"),
    [
        ("document", "documents"),
        ("search_result", "search results"),
        ("web_search_tool_result", "server tools"),
        ("container_upload", "containers"),
        ("mcp_tool_use", "MCP servers"),
    ],
)
def test_blocks_that_need_something_else(client: Client, kind: str, lacking: str) -> None:
    assert lacking in refused(client, user([{"type": kind}]))["message"]
    assert lacking in refused(client, assistant([{"type": kind}]), user("r"))["message"]


@pytest.mark.clause_early("MSG-008", "COUNT-014")
def test_images_need_vision(client: Client) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
    by_file = {"type": "image", "source": {"type": "file", "file_id": "f"}}
    for content in ([image], [by_file], [tool_result("t", [image])]):
        assert refused(client, user(content))["code"] == "vision_disabled"
        counted = client.request("POST", "/v1/messages/count_tokens", body(user(content)))
        assert (counted.status, counted.error["code"]) == (400, "vision_disabled")


@pytest.mark.clause("COUNT-010")
def test_counts_are_what_messages_charges(client: Client) -> None:
    history = [user("q"), assistant([thinking("t"), text("a"), tool_use("t1")]), user([tool_result("t1")])]
    members = {"system": "S", "tools": [tool()], "thinking": {"type": "adaptive"}}
    usage = ask(client, *history, **members).json["usage"]
    charged = usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert count(client, *history, **members) == charged


@pytest.mark.clause("COUNT-011", "COUNT-015")
def test_output_fields_do_not_count(client: Client) -> None:
    plain = count(client)
    output = {"temperature": 1, "top_p": 0.5, "top_k": 3, "stop_sequences": ["x"], "max_tokens": 1}
    assert count(client, **output, stream=True) == plain
    assert count(client, max_tokens=0, temperature=9) == plain
    kinds = ({"type": "adaptive", "display": display} for display in ("omitted", "summarized"))
    assert len({count(client, thinking=kind) for kind in kinds}) == 1


@pytest.mark.clause_early("COUNT-009")
def test_counting_asks_no_engine(client: Client, engine: RecordingEngine) -> None:
    asked = len(engine.requests)
    answer = client.request(
        "POST", "/v1/messages/count_tokens", {"model": "m", "messages": [user("Count this prompt.")]}
    )
    assert (answer.status, list(answer.json)) == (200, ["input_tokens"])
    assert len(engine.requests) == asked


MARK = {"cache_control": {"type": "ephemeral"}}


def marked(number: int) -> list[Any]:
    return [text(f"block {index}", **MARK) for index in range(number)]


@pytest.mark.clause("MSG-052", "COUNT-013")
def test_four_markers(client: Client) -> None:
    blocks = [text(f"block {index}") for index in range(4)]
    assert count(client, user(marked(4))) == count(client, user(blocks))
    for members in (
        {"system": marked(2)},
        {"tools": [tool(**MARK), tool("g", **MARK)]},
    ):
        assert ask(client, user(marked(2)), **members).status == 200
        assert "cache_control" in refused(client, user(marked(3)), **members)["message"]
    counted = client.request("POST", "/v1/messages/count_tokens", body(user(marked(5))))
    assert (counted.status, counted.error) == (400, refused(client, user(marked(5))))


@pytest.mark.clause("MSG-054", "MSG-055", "MSG-056", "MSG-057")
def test_a_marker_of_the_whole_request(client: Client) -> None:
    def lasting(ttl: str) -> dict[str, Any]:
        return {"cache_control": {"type": "ephemeral", "ttl": ttl}}

    assert ask(client, user(marked(4)), **MARK).status == 200
    assert ask(client, user(marked(4)), **lasting("5m")).status == 200
    conflict = user([*marked(3), text("last", **lasting("1h"))])
    assert "ttl" in refused(client, conflict, **lasting("5m"))["message"]
    refused(client, user([*marked(4), text("last")]), **MARK)
    for ttl in ("5m", "1h"):
        assert ask(client, user([text("a", **lasting(ttl))])).status == 200
    assert "10m" in refused(client, user([text("a", **lasting("10m"))]))["message"]
    refused(client, user([text("a", cache_control={"type": "forever"})]))


@pytest.mark.clause("MSG-043", "MSG-044")
@pytest.mark.parametrize(
    ("members", "named"),
    [
        ({"tools": [tool(defer_loading=True)]}, "tools[0].defer_loading"),
        ({"tools": [tool(allowed_callers=["code_execution_20250825"])]}, "tools[0].allowed_callers"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "server tools"),
        ({"tools": [tool(), {"type": "bash_20250124", "name": "bash"}]}, "tools[1].type"),
        ({"mcp_servers": [{"url": "x"}]}, "MCP servers"),
        ({"container": "c"}, "containers"),
        ({"thread": {"type": "create"}}, "threads"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {}}}}, "output_config.format"),
        ({"tools": [tool(strict=True)]}, "tools[0].strict"),
        ({"tools": [tool()], "tool_choice": {"type": "any"}}, "tool_choice.type"),
        ({"tools": [tool()], "tool_choice": {"type": "tool", "name": "f"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "x"}}, "tool_choice.type"),
        ({"tools": [tool()], "tool_constraints": "basic"}, "tool_constraints"),
        ({"tools": [tool(), tool()]}, "tools[1].name"),
        ({"tools": [tool(input_schema={"type": "array"})]}, "tools[0].input_schema.type"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
    ],
)
def test_what_is_missing_is_named(client: Client, members: dict[str, Any], named: str) -> None:
    assert named in refused(client, **members)["message"]


@pytest.mark.clause("MSG-062")
def test_advice_never_blocks(client: Client) -> None:
    advice = {
        "metadata": {"user_id": "u"},
        "service_tier": "auto",
        "inference_geo": "us",
        "context_management": {"edits": []},
        "foo": 1,
        "mcp_servers": [],
    }
    answer = client.request("POST", "/v1/messages?beta=true", body(**advice), {"anthropic-beta": "x"})
    assert answer.status == 200


@pytest.mark.clause("MSG-063")
def test_models_are_labels(client: Client) -> None:
    assert ask(client, model="claude-x").json["model"] == "claude-x"
    refused(client, model="")
    for wrong in ({"model": 3}, {"messages": []}, {"messages": [{"role": "tool", "content": "x"}]}):
        refused(client, **wrong)
