"""Input Items: what each kind takes, how wrong ones are named, and how they are kept."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer import spec
from ninfer.errors import RequestError
from ninfer.server.members import Members
from ninfer.server.responses.history import turns
from ninfer.server.responses.items import read_input, require_unique_ids
from tests.server.responses.stage import Stage, call, message, reasoning, result
from tests.server.test_json_body import JSON_VALUES

USER = message("user", "hi")
TABLES = spec.document("http/responses")


def named(stage: Stage, *items: Any) -> tuple[str, str]:
    """Code and parameter of the refusal of these Items, behind a user's message; the message has the path."""
    error = stage.refused(input=[USER, *items])
    assert error["status"] == 400
    assert error["param"] in error["message"]
    return error["code"], error["param"]


def alike(stage: Stage, one: Any, other: Any, **members: Any) -> bool:
    """Whether two inputs make the same prompt, token by token."""
    prompts = []
    for value in (one, other):
        stage.create(input=value, **members)
        prompts.append(stage.engine.prompt())
    return prompts[0] == prompts[1]


@pytest.mark.clause("RITEM-001")
def test_text_is_one_user_message(stage: Stage) -> None:
    (item,) = stage.items(stage.create(input="hi")["id"])
    assert item.pop("id").startswith("msg_")
    assert item.pop("status") == "completed"
    assert item == {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
    assert stage.count(input="hi") == stage.count(input=[USER])


@pytest.mark.clause("RITEM-002")
def test_roles(stage: Stage) -> None:
    for role in ("user", "assistant", "system", "developer"):
        stage.create(input=[USER, message(role, "x")])
    for role in ("tool", "critic"):
        error = stage.refused(input=[{"type": "message", "role": role, "content": "x"}])
        assert (error["status"], error["param"]) == (400, "input[0].role")


@pytest.mark.clause("RITEM-003")
def test_content_is_text_or_parts(stage: Stage) -> None:
    assert stage.count(input=[{"role": "user", "content": "x"}]) == stage.count(input=[message("user", "x")])
    for content in (5, {}, True, None):
        assert named(stage, {"role": "user", "content": content}) == ("invalid_type", "input[1].content")
    assert named(stage, {"role": "user"}) == ("missing_required_parameter", "input[1].content")


@pytest.mark.clause("RITEM-004")
def test_input_text_needs_text(stage: Stage) -> None:
    part = {"type": "input_text", "text": 3}
    assert named(stage, {"role": "user", "content": [part]}) == ("invalid_type", "input[1].content[0].text")


@pytest.mark.clause("RITEM-005")
def test_output_text_is_the_assistants(stage: Stage) -> None:
    part = {"type": "output_text", "text": "x"}
    stage.create(input=[USER, {"role": "assistant", "content": [part]}])
    for role in ("user", "system", "developer"):
        code = named(stage, {"role": role, "content": [part]})
        assert code == ("invalid_value", "input[1].content[0].type")


@pytest.mark.clause("RITEM-006")
def test_a_refusal_is_assistant_text(stage: Stage) -> None:
    refusal = {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    assert alike(stage, [USER, refusal, USER], [USER, message("assistant", "No."), USER])
    wrong = {"role": "user", "content": [{"type": "refusal", "refusal": "No."}]}
    assert named(stage, wrong) == ("invalid_value", "input[1].content[0].type")


@pytest.mark.clause("START-030")
@pytest.mark.clause_early("RITEM-009")
@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_image", "image_url": "data:image/png;base64,AA=="},
        {"type": "input_image", "image_url": "https://example.com/a.png", "detail": "auto"},
        {"type": "input_video", "video_url": "data:video/mp4;base64,AA=="},
    ],
)
def test_media_need_vision(stage: Stage, part: dict[str, Any]) -> None:
    for path in ("/v1/responses", "/v1/responses/input_tokens"):
        error = stage.refused(path, input=[{"role": "user", "content": [part]}])
        assert (error["status"], error["code"]) == (400, "vision_disabled")
        assert error["param"] == "input[0].content[0]"


@pytest.mark.clause_early("RITEM-008", "RITEM-037")
def test_forms_of_images_that_are_never_taken(stage: Stage) -> None:
    for members, name in [
        ({"file_id": "file_1"}, "file_id"),
        ({"image_url": "data:,", "detail": "low"}, "detail"),
        ({"image_url": "data:,", "detail": "original"}, "detail"),
    ]:
        item = {"role": "user", "content": [{"type": "input_image"} | members]}
        assert named(stage, item)[1] == f"input[1].content[0].{name}"


@pytest.mark.clause("RITEM-011")
def test_reasoning_is_replayed(stage: Stage) -> None:
    turn = [message("assistant", "b"), message("user", "c")]
    with_it = [USER, reasoning("because of this"), *turn]
    assert stage.count(input=with_it, preserve_thinking=True) > stage.count(
        input=[USER, *turn], preserve_thinking=True
    )
    assert "<think>\nbecause of this\n</think>" in stage.prompt(input=with_it, preserve_thinking=True)


@pytest.mark.clause("RITEM-012")
def test_metadata_of_reasoning_never_stands_for_it(stage: Stage) -> None:
    metadata = {"summary": [{"type": "summary_text", "text": "s"}], "encrypted_content": "e"}
    assert alike(stage, [USER, reasoning("T", **metadata), USER], [USER, reasoning("T"), USER])
    kept = stage.items(stage.create(input=[USER, reasoning("T", **metadata)])["id"])[1]
    assert {name: kept[name] for name in metadata} == metadata
    for members in (
        {"summary": metadata["summary"]},
        {"encrypted_content": "e"},
        {},
        {"content": [], **metadata},
    ):
        code = named(stage, {"type": "reasoning"} | members)
        assert code == ("invalid_value", "input[1].content")


@pytest.mark.clause("RITEM-013")
def test_a_call_needs_its_members(stage: Stage) -> None:
    stage.create(input=[USER, call("c1"), result("c1")])
    stage.create(input=[USER, call("c1", id="fc_x", namespace="n"), result("c1")])
    for name in ("call_id", "name", "arguments"):
        item = {key: value for key, value in call("c1").items() if key != name}
        assert named(stage, item, result("c1")) == ("missing_required_parameter", f"input[1].{name}")


@pytest.mark.clause("RITEM-014")
def test_arguments_are_an_object_in_a_string(stage: Stage) -> None:
    stage.create(input=[USER, call("c1", arguments='{"b": 1, "a": [2]}'), result("c1")])
    for arguments in ("[1]", "nope", {"a": 1}, '{"a": 1, "a": 2}', '{"a": 1e999}', "3"):
        assert named(stage, call("c1", arguments=arguments), result("c1"))[1] == "input[1].arguments"


@pytest.mark.clause("RITEM-015")
def test_unfinished_calls_and_results_are_refused(stage: Stage) -> None:
    stage.create(input=[USER, call("c1", status="completed"), result("c1", status="completed")])
    for status in ("in_progress", "incomplete"):
        assert named(stage, call("c1", status=status), result("c1"))[1] == "input[1].status"
        assert named(stage, call("c1"), result("c1", status=status))[1] == "input[2].status"


@pytest.mark.clause("RITEM-016")
def test_a_result_may_repeat_the_name_of_its_call(stage: Stage) -> None:
    made = call("c1", name="f", namespace="n")
    stage.create(input=[USER, made, result("c1", name="f", namespace="n")])
    stage.create(input=[USER, made, result("c1")])
    for members, param in [({"name": "g"}, "name"), ({"namespace": "m"}, "namespace")]:
        code = named(stage, made, result("c1", **members))
        assert code == ("invalid_tool_history", f"input[2].{param}")
    assert named(stage, call("c1"), result("c1", namespace="n"))[1] == "input[2].namespace"
    assert named(stage, call("c1"), {"type": "function_call_output", "output": "x"})[1] == "input[2].call_id"


@pytest.mark.clause("RITEM-017")
def test_a_result_is_text_or_parts(stage: Stage) -> None:
    parts = [{"type": "input_text", "text": "x"}]
    assert alike(stage, [USER, call("c1"), result("c1", "x")], [USER, call("c1"), result("c1", parts)])
    for output, param in [
        ([], "output"),
        (5, "output"),
        ([{"type": "output_text", "text": "x"}], "output[0].type"),
        ([{"type": "input_image", "image_url": "data:,"}], "output[0]"),
    ]:
        assert named(stage, call("c1"), result("c1", output))[1] == f"input[2].{param}"


@pytest.mark.clause("RITEM-029")
def test_ids_are_kept_or_made(stage: Stage) -> None:
    parent = stage.create(input=[{**USER, "id": "msg_me"}, USER, call("c"), result("c"), reasoning("r")])
    ids = [item["id"] for item in stage.items(parent["id"])]
    assert ids[0] == "msg_me"
    assert [name.split("_")[0] for name in ids[1:]] == ["msg", "fc", "fco", "rs"]
    assert len(set(ids)) == 5


@pytest.mark.clause("RITEM-030")
def test_one_id_is_one_item(stage: Stage) -> None:
    item = {**USER, "id": "msg_me"}
    error = stage.refused(input=[item, item])
    assert (error["status"], error["param"]) == (400, "input[1].id")
    assert "msg_me" in error["message"]
    parent = stage.create(input=[item])
    assert stage.refused(input=[item], previous_response_id=parent["id"])["param"] == "input[0].id"
    assert stage.refused(input=[{**USER, "id": ""}])["param"] == "input[0].id"


@pytest.mark.clause("RITEM-035")
def test_status_and_phase_are_not_rendered(stage: Stage) -> None:
    marked = {**USER, "status": "completed", "phase": "final_answer"}
    assert stage.count(input=[marked]) == stage.count(input=[USER])
    assert stage.items(stage.create(input=[marked])["id"])[0]["phase"] == "final_answer"
    for name in ("status", "phase"):
        assert named(stage, {**USER, name: 5}) == ("invalid_type", f"input[1].{name}")


@pytest.mark.clause("RITEM-036")
@pytest.mark.parametrize("kind", ["input_file", "input_audio", "made_up"])
def test_other_parts_are_refused(stage: Stage, kind: str) -> None:
    error = stage.refused(input=[{"role": "user", "content": [{"type": kind}]}])
    assert (error["status"], error["param"]) == (400, "input[0].content[0].type")
    assert kind in error["message"]
    assert "input[0].content[0].type" in error["message"]


@pytest.mark.clause("RITEM-038")
@pytest.mark.parametrize("kind", [*TABLES["refused_items"], "made_up", "", "wét x"])
def test_other_items_are_refused(stage: Stage, kind: str) -> None:
    error = stage.refused(input=[USER, {"type": kind, "id": "x", "content": "y"}])
    assert (error["status"], error["param"]) == (400, "input[1].type")
    assert error["message"].isascii()


@pytest.mark.clause_early("RITEM-033", "RITEM-034")
def test_cache_marks_change_no_prompt(stage: Stage) -> None:
    mark = {"prompt_cache_breakpoint": {"mode": "explicit"}}
    part = {"type": "input_text", "text": "hi"}
    plain = [message("user", "hi"), call("c"), result("c", [part])]
    marked = [{"role": "user", "content": [part | mark]}, call("c"), result("c", [part | mark])]
    assert alike(stage, plain, marked)
    wrong = {"role": "user", "content": [part | {"prompt_cache_breakpoint": {"mode": "auto"}}]}
    assert named(stage, wrong)[1] == "input[1].content[0].prompt_cache_breakpoint.mode"


ITEM_MEMBERS = {
    "type": st.sampled_from([*TABLES["items"], "item_reference", 3]),
    "role": st.sampled_from([*TABLES["roles"], "tool", None]),
    "id": st.sampled_from(["a", "b", "", None, 1]),
    "call_id": st.sampled_from(["c1", "c2", "", 2]),
    "name": st.sampled_from(["f", "g", None]),
    "namespace": st.sampled_from(["n", None, ""]),
    "arguments": st.sampled_from(["{}", '{"a": 1}', "[]", "x", 4]),
    "status": st.sampled_from(["completed", "incomplete", None, 0]),
    "summary": JSON_VALUES,
    "output": st.sampled_from(["x", [], [{"type": "input_text", "text": "y"}], 5]),
    "content": st.one_of(
        st.text(max_size=4),
        JSON_VALUES,
        st.lists(
            st.fixed_dictionaries(
                {
                    "type": st.sampled_from(
                        ["input_text", "output_text", "refusal", "reasoning_text", "summary_text"]
                    )
                },
                optional={"text": st.text(max_size=3), "refusal": st.text(max_size=3)},
            ),
            max_size=2,
        ),
    ),
}
ITEMS = st.lists(st.fixed_dictionaries({}, optional=ITEM_MEMBERS), max_size=5)


def outcome(items: list[dict[str, Any]]) -> RequestError | None:
    """What is wrong with these Items; good ones make a history that accounts for each of them."""
    try:
        read = read_input(Members({"input": items}))
        require_unique_ids(read)
        messages = turns(read)
    except RequestError as error:
        return error
    kinds = [item.wire["type"] for item in read]
    assert sum(len(made.tool_calls) for made in messages) == kinds.count("function_call")
    assert sum(made.role == "tool" for made in messages) == kinds.count("function_call_output")
    spoken = [item for item in read if item.wire.get("role") in ("user", "system", "developer")]
    assert sum(made.role in ("user", "system", "developer") for made in messages) == len(spoken)
    return None


@given(ITEMS)
def test_any_items_are_read_or_refused(items: list[dict[str, Any]]) -> None:
    error = outcome(items)
    assert error is None or (error.param is not None and error.param in error.message)
    assert error is None or error.message.isascii()
