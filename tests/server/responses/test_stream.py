"""Streams of semantic events: order, numbers, identities, summaries, failures and silence."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.http.client import read_until
from conformance.http.streams import check_order
from ninfer import spec
from ninfer.engine.events import RequestEvent, Usage
from ninfer.engine.requests import GenerationRequest, SamplingParameters
from ninfer.engine.scripted import Step
from ninfer.prompt import Tokenizer
from ninfer.server.answer.pieces import Begun, Call, Ended, Piece, Prompted, Text
from ninfer.server.errors import WireError
from ninfer.server.response_store import ResponseStore
from ninfer.server.responses.answer import Answer
from ninfer.server.responses.order import StreamOrder
from ninfer.server.responses.request import read_responses_request
from ninfer.server.responses.stream import StreamedResponse
from tests.server.conftest import MODEL
from tests.server.engines import RecordingEngine
from tests.server.inprocess import serving
from tests.server.responses.stage import THINKING, Stage, checked_events, joined, labels, read_events

MIRROR = ["reasoning.encrypted_content"]
TEXT_ITEM = {
    "reasoning": ["output_item.added/reasoning", "content_part.added/reasoning_text", "reasoning_text.delta"],
    "message": ["output_item.added/message", "content_part.added/output_text", "output_text.delta"],
}


def shorter(names: list[str]) -> list[str]:
    """Event names with runs of one delta as one."""
    return [name for index, name in enumerate(names) if index == 0 or names[index - 1] != name]


@pytest.mark.clause("RSSE-001", "RSSE-002", "RSSE-003", "RSSE-004", "RSSE-005", "RSSE-006", "RSSE-007")
def test_the_order_of_a_thinking_answer(stage: Stage) -> None:
    """Case B29 of the field's reports; framing, numbers from 0 and schemas are checked by ``stage``."""
    events = stage.stream()
    assert shorter(labels(events)) == [
        "created",
        "in_progress",
        *TEXT_ITEM["reasoning"],
        "reasoning_text.done",
        "content_part.done/reasoning_text",
        "output_item.done/reasoning",
        *TEXT_ITEM["message"],
        "output_text.done",
        "content_part.done/output_text",
        "output_item.done/message",
        "completed",
    ]
    assert len({events[index]["response"]["id"] for index in (0, 1, -1)}) == 1
    assert events[0]["response"]["status"] == events[1]["response"]["status"] == "in_progress"


@pytest.mark.clause("RSSE-005", "RSSE-007")
def test_no_output_has_no_deltas(stage: Stage) -> None:
    events = stage.stream(max_output_tokens=0)
    assert labels(events) == ["created", "in_progress", "incomplete"]
    assert events[-1]["response"]["output"] == []


@pytest.mark.clause("RSSE-007")
@pytest.mark.parametrize(
    ("steps", "members", "last"),
    [
        (THINKING, {}, "completed"),
        (THINKING, {"max_output_tokens": 4}, "incomplete"),
        (THINKING, {"max_output_tokens": 1}, "incomplete"),
        (("a</think>\n\n", "b", Step(fail="assertion")), {}, "failed"),
        (("a", Step(fail="memory")), {}, "failed"),
    ],
)
def test_exactly_one_terminal_event(stage: Stage, steps: Any, members: dict[str, Any], last: str) -> None:
    stage.say(*steps)
    names = labels(stage.stream(**members))
    assert names[-1] == last
    assert sum(name in ("completed", "incomplete", "failed") for name in names) == 1


def test_a_failed_response_says_why(stage: Stage) -> None:
    stage.say("a</think>\n\n", "b", Step(fail="assertion"))
    response = stage.stream()[-1]["response"]
    assert (response["status"], response["output"], response["usage"]) == ("failed", [], None)
    assert response["error"]["code"] == "internal_error"
    assert "scripted" not in response["error"]["message"]
    assert stage.get(response["id"]).status == 404


@pytest.mark.clause("RSSE-008", "RSSE-009")
def test_a_summary_comes_directly_behind_its_item(stage: Stage) -> None:
    events = stage.stream(reasoning={"summary": "auto"})
    names = labels(events)
    at = names.index("output_item.added/reasoning")
    assert names[at + 1 : at + 6] == [
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "content_part.added/reasoning_text",
    ]
    assert all(event["summary_index"] == 0 for event in events[at + 1 : at + 5])
    done = next(event for event in events if event["type"] == "response.output_item.done")
    assert events[at]["item"]["summary"] == done["item"]["summary"] != []
    placeholder = spec.document("http/responses")["summary_placeholder"]
    assert events[at + 2]["delta"] == events[at + 3]["text"] == placeholder
    assert [events[at + 4]["part"]] == done["item"]["summary"]


@pytest.mark.clause("RSSE-010")
@pytest.mark.parametrize("members", [{}, {"reasoning": {"summary": None}}])
def test_without_a_summary_there_is_none(stage: Stage, members: dict[str, Any]) -> None:
    events = stage.stream(**members)
    assert not any("reasoning_summary" in event["type"] for event in events)
    items = [event["item"] for event in events if event.get("item", {}).get("type") == "reasoning"]
    assert [item["summary"] for item in items] == [[], []]


@pytest.mark.clause("RSSE-011", "RSSE-012")
def test_the_mirror_comes_when_the_text_is_whole(stage: Stage) -> None:
    events = stage.stream(include=MIRROR)
    added, done = (event["item"] for event in events if event.get("item", {}).get("type") == "reasoning")
    assert "encrypted_content" not in added
    text = joined(events, "reasoning_text")
    assert done["encrypted_content"] == events[-1]["response"]["output"][0]["encrypted_content"] == text != ""


@pytest.mark.clause("RSSE-013")
def test_without_reasoning_there_is_no_mirror(stage: Stage) -> None:
    stage.say("Hello")
    answer = stage.post(stream=True, reasoning={"effort": "none"}, include=MIRROR)
    assert b"encrypted_content" not in answer.body
    assert joined(checked_events(answer.body), "output_text") == "Hello"


@pytest.mark.clause("RSSE-016", "RSSE-017")
def test_items_keep_id_and_place_and_deltas_join(stage: Stage) -> None:
    events = stage.stream()
    output = events[-1]["response"]["output"]
    for event in events:
        item_id = event.get("item_id") or event.get("item", {}).get("id")
        if item_id is not None:
            assert output[event["output_index"]]["id"] == item_id
            assert event.get("content_index", 0) == 0
    for index, kind in enumerate(("reasoning_text", "output_text")):
        assert joined(events, kind) == output[index]["content"][0]["text"]


@pytest.mark.clause("RSSE-018")
def test_there_is_no_done_line(stage: Stage) -> None:
    assert b"[DONE]" not in stage.post(stream=True).body


@pytest.mark.clause("RESP-046")
@pytest.mark.parametrize("wanted", [True, False])
def test_deltas_are_never_padded(stage: Stage, wanted: bool) -> None:
    events = stage.stream(stream_options={"include_obfuscation": wanted})
    assert all("obfuscation" not in event for event in events)
    error = stage.refused(stream=True, stream_options={"include_obfuscation": "x"})
    assert error["param"] == "stream_options.include_obfuscation"


@pytest.mark.clause("RSTORE-017")
def test_the_terminal_object_is_the_stored_one(stage: Stage) -> None:
    for members in ({}, {"max_output_tokens": 3}):
        last = stage.stream(**members)[-1]["response"]
        assert stage.get(last["id"]).json == last
        whole = stage.post(**members)
        assert stage.get(whole.json["id"]).body == whole.body


def test_a_stream_says_what_the_whole_answer_says(stage: Stage) -> None:
    def without_identity(response: dict[str, Any]) -> Any:
        for item in response["output"]:
            item.pop("id")
        return {k: v for k, v in response.items() if k not in ("id", "created_at", "completed_at")}

    for members in ({}, {"max_output_tokens": 4}, {"reasoning": {"summary": "x"}, "include": MIRROR}):
        assert without_identity(stage.create(**members)) == without_identity(
            stage.stream(**members)[-1]["response"]
        )


@pytest.mark.clause("LIVE-004")
def test_comments_change_nothing(stage: Stage) -> None:
    def names(wait_s: float) -> Any:
        stage.say(*[Step(text=text, wait_s=wait_s) for text in THINKING])
        answer = stage.post(stream=True)
        events = checked_events(answer.body)
        return answer.body.count(b": keep-alive\n\n"), labels(events), events[-1]["response"]["usage"]

    quiet, silent = names(0.0), names(0.2)
    assert quiet[0] == 0
    assert silent[0] >= 1
    assert shorter(silent[1]) == shorter(quiet[1])
    assert silent[2] == quiet[2]


@pytest.mark.clause("LIVE-002")
def test_a_silent_stream_is_kept_alive(stage: Stage) -> None:
    """With the comment's interval shortened to 0.15 s; the contract's 5 s stand in ``transport.yaml``."""
    assert spec.document("http/transport")["stream_comment_after_s"] == 5
    stage.say(Step(text="a", wait_s=0.8))
    body = stage.post(stream=True).body
    assert 1 <= body.count(b": keep-alive\n\n") <= 6
    checked_events(body)


class LateFailure(RecordingEngine):
    """An engine that fails a request which it never began."""

    def generate(
        self, request: GenerationRequest, cancelled: Callable[[], bool], queue_s: float
    ) -> Iterator[RequestEvent]:
        time.sleep(0.3)
        raise MemoryError
        yield


def test_a_failure_before_anything_was_begun_is_an_error_event(nano: Path, tokenizer: Tokenizer) -> None:
    """The 200 went out with a comment; without one the failure is a status."""
    with serving(nano, LateFailure(), MODEL, limits={"stream_comment_after_s": 0.1}) as client:
        answer = client.request("POST", "/v1/responses", {"model": "nano", "input": "x", "stream": True})
    assert answer.body.startswith(b": keep-alive")
    (event,) = checked_events(answer.body)
    assert (event["type"], event["code"], event["sequence_number"]) == ("error", "insufficient_memory", 0)
    with serving(nano, LateFailure(), MODEL) as client:
        answer = client.request("POST", "/v1/responses", {"model": "nano", "input": "x", "stream": True})
    assert (answer.status, answer.error["code"]) == (503, "insufficient_memory")


def test_a_client_that_leaves_leaves_nothing_stored(stage: Stage) -> None:
    stage.say("a</think>\n\n", *[Step(text="x", wait_s=0.02)] * 500)
    body = json.dumps({"model": "nano", "input": "hi", "stream": True}).encode()
    head = f"POST /v1/responses HTTP/1.1\r\nHost: t\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    sock = stage.client.raw(head + body)
    created = read_until(sock, b"response.output_text.delta")
    sock.close()
    name = created[created.index(b'"resp_') + 1 :].split(b'"')[0].decode()
    stage.say(*THINKING)
    stage.create()  # one lane: the answer comes when the other one has ended
    assert stage.get(name).status == 404


def pieces_of(texts: list[tuple[str, str]], calls: int, reason: str) -> list[Piece]:
    usage = Usage(9, 0, 5, 2, 0.1, 0.1, 0.1)
    ended = Ended("tool_calls" if calls and reason == "stop" else reason, None, usage)  # type: ignore[arg-type]
    made = [Call(index, f"call_{index}", "f", "{}") for index in range(calls)]
    ordered = sorted(texts, key=lambda text: text[0] == "content")
    return [
        Begun(9, 0, 0.0),
        Prompted(9, 0, 9, 0.0),
        *(Text(channel, text) for channel, text in ordered),  # type: ignore[arg-type]
        *made,
        ended,
    ]


PIECES = st.builds(
    pieces_of,
    st.lists(
        st.tuples(st.sampled_from(["reasoning", "content"]), st.text(min_size=1, max_size=3)), max_size=6
    ),
    st.integers(0, 2),
    st.sampled_from(["stop", "length"]),
)


@given(PIECES, st.booleans(), st.booleans(), st.integers(0, 12))
def test_any_answer_walks_the_table(pieces: list[Piece], summary: bool, mirror: bool, fails_at: int) -> None:
    """And its events rebuild the whole answer; a failure anywhere still ends it by the table."""

    def answer() -> Answer:
        body = {"model": "m", "input": "x", "reasoning": {"summary": "s" if summary else None}}
        body |= {"include": MIRROR if mirror else []}
        request = read_responses_request(body, ResponseStore(1, 1))
        sampling = SamplingParameters(1.0, 1.0, 0, 0.0, 0.0, 0.0, 1)
        return Answer("resp_x", request, sampling, ResponseStore(9, 10**6), clock=lambda: 5.0)

    streamed = StreamedResponse(answer())
    events = checked_events(b"".join(frame for piece in pieces for frame in streamed.frames(piece)))
    whole = json.loads(answer().whole(pieces))
    last = events[-1]["response"]
    for item in (*whole["output"], *last["output"]):
        item.pop("id")
    assert last == whole

    broken = StreamedResponse(answer())
    frames = [frame for piece in pieces[:fails_at] for frame in broken.frames(piece)]
    if fails_at < len(pieces):
        frames += broken.failed(WireError("internal_error", "It failed."))
        names = labels(read_events(b"".join(frames)))
        check_order("responses", names)
        assert names[-1] == ("failed" if fails_at else "error")


def test_the_table_is_the_servers_own() -> None:
    order = StreamOrder()
    with pytest.raises(AssertionError, match="in_progress in state opening"):
        order.take("in_progress")
    order.take("created")
    assert not order.ended
    order.take("failed")
    assert order.ended
