"""The Response object: output Items, status, usage, and what it repeats of the request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.http.client import Client
from conformance.http.schemas import check_schema
from ninfer import bundled
from ninfer.engine.scripted import Step
from ninfer.prompt import Tokenizer
from tests.server.conftest import MODEL
from tests.server.inprocess import serving
from tests.server.responses.stage import THINKING, PlayingEngine, Stage, labels
from tests.support.nano import nano_artifact

MIRROR = ["reasoning.encrypted_content"]


@pytest.mark.clause("HTTP-006", "RESP-054", "RESP-055", "RESP-057", "RESP-060", "RESP-064")
def test_a_whole_answer(stage: Stage) -> None:
    response = stage.create()
    assert (response["object"], response["status"]) == ("response", "completed")
    reasoning, message = response["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "I think"}]
    assert (message["type"], message["role"]) == ("message", "assistant")
    (part,) = message["content"]
    assert (part["type"], part["text"]) == ("output_text", "Hello")
    assert [item["status"] for item in response["output"]] == ["completed", "completed"]
    assert response["incomplete_details"] is None
    assert response["completed_at"] >= response["created_at"]


@pytest.mark.clause("RESP-004")
def test_the_object_has_no_output_text(stage: Stage) -> None:
    assert "output_text" not in stage.create()


@pytest.mark.clause("RESP-012")
def test_no_output_is_asked_for(stage: Stage) -> None:
    response = stage.create(max_output_tokens=0)
    assert response["output"] == []
    assert response["usage"]["output_tokens"] == 0
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}


@pytest.mark.clause("RESP-061", "RESP-064")
def test_the_output_limit_makes_it_incomplete(stage: Stage) -> None:
    """Case B31 of the field's reports: the cut Item is incomplete too."""
    response = stage.create(max_output_tokens=4)
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["completed_at"] is None
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]
    assert response["usage"]["output_tokens"] == 4


@pytest.mark.clause("RESP-065")
def test_a_cut_in_reasoning_invents_no_message(stage: Stage) -> None:
    for limit in (1, 2):
        response = stage.create(max_output_tokens=limit)
        (item,) = response["output"]
        assert (item["type"], item["status"]) == ("reasoning", "incomplete")
        assert response["status"] == "incomplete"


def test_an_answer_without_text_has_no_items(stage: Stage) -> None:
    stage.say()
    response = stage.create()
    assert (response["status"], response["output"]) == ("completed", [])


@pytest.mark.clause("RESP-059")
def test_the_mirror_is_the_reasoning_in_the_clear(stage: Stage) -> None:
    item = stage.create(include=MIRROR)["output"][0]
    assert item["encrypted_content"] == item["content"][0]["text"] == "I think"
    assert "encrypted_content" not in stage.create()["output"][0]


@pytest.mark.clause("RESP-066")
def test_usage_has_these_members(stage: Stage) -> None:
    stage.say(*THINKING, cached=3)
    usage = stage.create()["usage"]
    assert set(usage) == {
        "input_tokens",
        "input_tokens_details",
        "output_tokens",
        "output_tokens_details",
        "total_tokens",
    }
    assert usage["input_tokens_details"] == {"cached_tokens": 3}
    assert usage["output_tokens_details"] == {"reasoning_tokens": 3}
    assert usage["output_tokens"] == 5
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


@pytest.mark.clause("RESP-067")
def test_input_tokens_count_the_template(stage: Stage) -> None:
    tokens = stage.create()["usage"]["input_tokens"]
    assert tokens > len(stage.tokenizer.encode_ordinary(["hi"])[0])
    assert tokens == stage.count()


@pytest.fixture(scope="module")
def small(nano: Path, tokenizer: Tokenizer) -> Iterator[Stage]:
    engine = PlayingEngine()
    options = (*MODEL, "--default-max-tokens", "16", "--max-context", "128")
    with serving(nano, engine, options) as client:
        yield Stage(client, engine, tokenizer)


@pytest.mark.clause("RESP-013")
def test_the_servers_limit_is_not_the_requests(small: Stage) -> None:
    small.say("</think>\n\n", *["word "] * 50)
    response = small.create()
    assert (response["status"], response["usage"]["output_tokens"]) == ("incomplete", 16)
    assert response["max_output_tokens"] is None


@pytest.mark.clause("RESP-062")
def test_a_full_context_is_an_output_limit(small: Stage) -> None:
    small.say("</think>\n\n", *["word "] * 200)
    text = "a"
    while (tokens := small.count(input=text)) < 118:
        text += " a" * (118 - tokens)
    response = small.create(input=text, max_output_tokens=100)
    assert small.count(input=text) == 118
    assert response["usage"]["output_tokens"] == 10
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}


@pytest.mark.clause("RESP-026")
def test_a_summary_changes_no_execution(reference: Client) -> None:
    """On a real model: greedy answers are equal in all but the placeholder."""
    bodies = [
        {"model": "nano", "input": "hi", "temperature": 0, "max_output_tokens": 12, "reasoning": reasoning}
        for reasoning in ({}, {"summary": "auto"})
    ]
    plain, summarised = (reference.request("POST", "/v1/responses", body).json for body in bodies)
    check_schema("Response", plain)
    assert plain["usage"] == summarised["usage"]
    contents = [[item["content"] for item in answer["output"]] for answer in (plain, summarised)]
    assert contents[0] == contents[1]
    assert contents[0]


@pytest.mark.clause("RESP-063")
def test_failures_before_the_stream_are_statuses(stage: Stage) -> None:
    answer = stage.post(stream=True, temperature=3)
    assert (answer.status, answer.headers["content-type"]) == (400, "application/json")
    stage.say(Step(fail="memory"))
    answer = stage.post()
    assert (answer.status, answer.error["code"]) == (503, "insufficient_memory")
    stage.say("a</think>\n\n", "b", Step(fail="assertion"))
    events = stage.stream()
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"]["code"] == "internal_error"


def test_each_answer_has_its_own_ids(stage: Stage) -> None:
    answers = [stage.create() for _ in range(3)]
    ids = [item["id"] for answer in answers for item in (answer, *answer["output"])]
    assert len(set(ids)) == 9


@pytest.mark.clause("RESP-002")
def test_every_model_has_the_same_adapter(nano: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Dense, mixture of experts and bundled: one shape, one set of events."""
    shapes = set()
    for artifact in (nano, nano_artifact(tmp_path, "moe"), bundled.path()):
        engine = PlayingEngine()
        with serving(artifact, engine, MODEL) as client:
            stage = Stage(client, engine, tokenizer)
            stage.say(*THINKING)
            response, names = stage.create(), tuple(labels(stage.stream()))
        items = [(item["type"], *item) for item in response["output"]]
        shapes.add((tuple(response), tuple(items), names))
    assert len(shapes) == 1
