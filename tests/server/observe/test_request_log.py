"""The request log of a serving process: which events, in which order, and what requests come to."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from conformance.http.client import read_until
from ninfer.artifact import Artifact
from ninfer.engine.interface import SerialEngine
from ninfer.engine.scripted import Script
from ninfer.prompt import Tokenizer
from ninfer.server.main import main
from tests.server.conftest import MODEL
from tests.server.engines import RecordingEngine, saying
from tests.server.inprocess import serving
from tests.server.observe.asking import FAILS, FOREVER, SLOW, messages, responses
from tests.server.observe.lines import Log


@pytest.mark.clause("OPT-037", "JLOG-002", "JLOG-011")
def test_events_stand_in_the_file_as_they_happen(nano: Path, log: Log) -> None:
    engine = RecordingEngine(Script(default=SLOW))
    with serving(nano, engine, (*MODEL, *log.arguments)) as client:
        with client.open_chat(stream=True, max_tokens=FOREVER) as sock:
            read_until(sock, b"reasoning_content")
            log.wait("request_start")
            assert log.lines("request_done") == []
        log.wait("request_done")
        client.chat(max_tokens=2)
        log.done(2)
    assert log.events[:3] == ["server_start", "request_start", "request_done"]
    assert all(line["artifact_type"] == "ninfer_serve_request_log" for line in log.lines())
    assert {line["schema_version"] for line in log.lines()} == {26}


def test_without_the_option_there_is_no_file(
    nano: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with serving(nano, RecordingEngine(), MODEL) as client:
        assert client.chat().status == 200
    assert list(tmp_path.iterdir()) == []


@pytest.mark.clause("JLOG-001", "JLOG-012", "JLOG-013")
def test_two_servers_share_a_file(nano: Path, log: Log) -> None:
    first = b""
    for _ in range(2):
        with serving(nano, RecordingEngine(), (*MODEL, *log.arguments)) as client:
            for _ in range(5):
                client.chat()
        assert log.path.read_bytes().startswith(first)
        first = log.path.read_bytes()
    lines = log.lines()
    instances = list(dict.fromkeys(line["server_instance_id"] for line in lines))
    assert len(instances) == len(log.lines("server_start")) == 2
    for instance in instances:
        own = [line for line in lines if line["server_instance_id"] == instance]
        times = [line["timestamp_unix_ms"] for line in own]
        assert times == sorted(times)
        assert abs(times[-1] / 1000 - time.time()) < 600
        numbers = [line["request"]["request_id"] for line in own if line["event"] == "request_start"]
        assert numbers == [1, 2, 3, 4, 5]


@pytest.mark.clause("JLOG-031", "JLOG-039")
def test_every_protocol_is_told_with_its_shape(nano: Path, log: Log) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    turns = [("user", "a"), ("assistant", "b"), ("user", "c")]
    with serving(nano, RecordingEngine(), (*MODEL, *log.arguments)) as client:
        chat = client.chat(
            messages=[{"role": role, "content": text} for role, text in turns],
            tools=[tool],
            tool_constraints="auto",
            seed=7,
            temperature=0.5,
            max_tokens=3,
        )
        response = responses(client, max_output_tokens=4)
        message = messages(client, max_tokens=5)
        assert (chat.status, response.status, message.status) == (200, 200, 200), chat.body
        starts = [line["request"] for line in log.wait("request_start", 3)]
    assert [start["request_id"] for start in starts] == [1, 2, 3]
    protocols = ["openai_chat", "openai_responses", "anthropic_messages"]
    assert [start["protocol"] for start in starts] == protocols
    assert [start["response_id"] for start in starts] == [a.json["id"] for a in (chat, response, message)]
    names = [
        answer.headers[name]
        for answer, name in ((chat, "x-request-id"), (response, "x-request-id"), (message, "request-id"))
    ]
    assert [start["http_request_id"] for start in starts] == names
    assert [start["requested_output_tokens"] for start in starts] == [3, 4, 5]
    assert (starts[0]["message_count"], starts[0]["tool_count"], starts[0]["stream"]) == (3, 1, False)
    assert (starts[0]["sampling"]["temperature"], starts[0]["sampling"]["seed"]) == (0.5, 7)
    assert starts[2]["model"] == "any label"


def test_the_origin_of_the_budget(nano: Path, log: Log) -> None:
    with serving(nano, RecordingEngine(), (*MODEL, *log.arguments)) as client:
        client.chat(max_tokens=3)
        with client.open_chat(stream=True) as sock:
            read_until(sock, b"[DONE]")
        first, second = (line["request"] for line in log.wait("request_start", 2))
    assert (first["requested_output_tokens"], first["requested_output_tokens_source"]) == (3, "client")
    assert second["requested_output_tokens_source"] == "server_default"
    assert second["requested_output_tokens"] == 8192 - second["prompt_tokens"]
    assert second["stream"]


@pytest.mark.clause("JLOG-033")
def test_thinking_is_the_channel_an_answer_opens_in(nano: Path, log: Log) -> None:
    engine = RecordingEngine(saying("why", "</think>\n\n", "ok"))
    with serving(nano, engine, (*MODEL, "--no-thinking", *log.arguments)) as client:
        client.chat()
        messages(client, thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=2000)
        plain, thinking = (line["request"] for line in log.wait("request_start", 2))
    assert (plain["enable_thinking"], plain["thinking_budget"]) == (False, None)
    assert (thinking["enable_thinking"], thinking["thinking_budget"]) == (True, 1024)


@pytest.mark.clause("OPT-059")
def test_the_default_thinking_budget(nano: Path, log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (*MODEL, "--default-thinking-budget", "512", *log.arguments)
    with serving(nano, RecordingEngine(saying("why", "</think>\n\n", "ok")), arguments) as client:
        client.chat()
        client.chat(enable_thinking=False)
        budgets = [line["request"]["thinking_budget"] for line in log.wait("request_start", 2)]
    assert budgets == [512, None]
    for value in ("0", "-1"):
        assert main([str(nano), f"--default-thinking-budget={value}"]) == 2
        assert "--default-thinking-budget" in capsys.readouterr().err


@pytest.mark.clause("JLOG-032")
def test_explicit_options_or_null(nano: Path, log: Log) -> None:
    with serving(nano, RecordingEngine(), (*MODEL, *log.arguments)) as client:
        client.chat()
        client.chat(reasoning_effort="high")
        client.chat(preserve_thinking=False)
        starts = [line["request"] for line in log.wait("request_start", 3)]
    found = [(start["requested_reasoning_effort"], start["preserve_thinking"]) for start in starts]
    assert found == [(None, None), ("high", None), (None, False)]


@pytest.mark.clause("JLOG-037", "JLOG-038")
def test_a_prompt_that_is_refused(nano: Path, log: Log) -> None:
    long = "a b c " * 200
    turns = [{"role": "user", "content": long}]
    with serving(nano, RecordingEngine(), (*MODEL, "--max-context", "64", *log.arguments)) as client:
        chat = client.chat(messages=turns)
        message = messages(client, messages=turns)
        response = responses(client, input=long)
        rejected = log.wait("request_rejected", 3)
    for answer, line in zip((chat, message, response), rejected, strict=True):
        error = answer.json["error"]
        assert (answer.status, line["phase"]) == (400, "prepare")
        assert line["error"]["code"] == "context_length_exceeded"
        assert line["error"]["message"] == error["message"]
        assert line["error"]["type"] == error["type"]
        assert (line["error"]["status"], line["error"]["param"]) == (answer.status, error.get("param"))
    assert rejected[0]["request"]["message_count"] == 1
    assert rejected[0]["request"]["media_item_count"] == 0
    assert rejected[0]["request"]["requested_reasoning_effort"] is None
    assert log.events == ["server_start", *["request_rejected"] * 3]


@pytest.mark.clause("JLOG-040")
def test_what_never_reaches_preparation_leaves_no_line(nano: Path, log: Log) -> None:
    turns = [{"role": "user", "content": "hi"}]
    with serving(nano, RecordingEngine(), (*MODEL, *log.arguments)) as client:
        answers = [
            client.chat(model="wrong"),
            client.request("POST", "/v1/chat/completions", b"{"),
            client.chat(messages="no"),
            messages(client, messages=[]),
            client.request("POST", "/v1/messages/count_tokens", {"model": "m", "messages": turns}),
            client.request("POST", "/v1/responses/input_tokens", {"model": "nano", "input": "hi"}),
        ]
        assert client.chat().status == 200
        assert log.done()[0]["request"]["request_id"] == 1
    for answer in answers:
        assert "x-request-id" in answer.headers or "request-id" in answer.headers
    assert log.events == ["server_start", "request_start", "request_done"]


@pytest.mark.clause("JLOG-056", "JLOG-065", "JLOG-068", "JLOG-069")
@pytest.mark.clause_early("JLOG-044")
def test_what_a_finished_request_came_to(nano: Path, log: Log, reference_engine: SerialEngine) -> None:
    with serving(nano, reference_engine, (*MODEL, *log.arguments)) as client:
        answer = client.chat(max_tokens=5, temperature=0, ignore_eos=True).json
        (line,) = log.done()
    usage, result = answer["usage"], line["result"]
    assert result["prompt_tokens"] == usage["prompt_tokens"]
    assert result["completion_tokens"] == usage["completion_tokens"] == 5
    assert result["prefix_cache_hit_tokens"] == 0
    assert result["computed_prefill_tokens"] == usage["prompt_tokens"]
    assert (result["finish_reason"], result["prefix_reuse_path"]) == ("output_limit", "root")
    times = line["timings_seconds"]
    assert set(times) == {"prepare", "ttft", "vision", "prefill", "decode", "total"}
    assert times["vision"] == 0
    assert 0 < times["prefill"] + times["decode"] <= times["total"]
    assert times["prepare"] < times["ttft"] < times["total"]
    assert all(len(repr(times[name]).partition(".")[2]) > 3 for name in ("prepare", "prefill", "total"))
    host = line["engine_timing"]["host_exposed_seconds"]
    assert host["total"] == sum(value for name, value in host.items() if name != "total")
    assert line["engine_timing"]["decode"]["rounds"] == 4
    assert line["engine_timing"]["queue_wait_seconds"] >= 0
    assert line["generation"]["admission"] == {
        "preferred_reused_tokens": 0,
        "source_wait_seconds": 0,
        "revoked_checkpoints": 0,
        "fallback_reason": "none",
    }


@pytest.mark.clause("JLOG-045")
def test_the_committed_ids_are_those_of_the_answer(
    nano: Path, log: Log, reference_engine: SerialEngine
) -> None:
    with Artifact.open(nano) as artifact:
        resources = [artifact.resource("text", name) for name in ("tokenizer.json", "tokenizer_config.json")]
    tokenizer = Tokenizer.from_resources(*resources)
    with serving(nano, reference_engine, (*MODEL, *log.arguments)) as client:
        asked = {"enable_thinking": False, "max_tokens": 40, "temperature": 1}
        answers = [client.chat(**asked, seed=seed).json for seed in range(6)]
        lines = log.done(6)
    for answer, line in zip(answers, lines, strict=True):
        ids = line["result"]["generated_token_ids"]
        assert len(ids) == answer["usage"]["completion_tokens"]
        stopped = answer["choices"][0]["finish_reason"] == "stop"
        said = b"".join(tokenizer.token_bytes(token) for token in ids[: -1 if stopped else None])
        assert said.decode(errors="replace") == answer["choices"][0]["message"]["content"]


@pytest.mark.clause("JLOG-043")
@pytest.mark.clause_early("JLOG-041")
def test_each_started_request_has_one_terminal(nano: Path, log: Log) -> None:
    script = Script(plays={"1": SLOW, "2": FAILS})
    with serving(nano, RecordingEngine(script), (*MODEL, *log.arguments)) as client:
        client.chat(seed=3)
        client.chat(seed=2, temperature=0.25)
        with client.open_chat(seed=1, stream=True, max_tokens=FOREVER) as running:
            read_until(running, b"reasoning_content")
            with client.open_chat(seed=1):
                log.wait("request_start", 4)
            log.wait("request_error", 2)
        log.done(2)
    lines = log.lines()
    ends = [line for line in lines if line["event"] in ("request_done", "request_error")]
    by_id = {line["request"]["request_id"]: line for line in ends}
    assert sorted(line["request"]["request_id"] for line in ends) == [1, 2, 3, 4]
    assert by_id[2]["event"] == "request_error"
    assert by_id[2]["request"]["sampling"]["temperature"] == 0.25
    assert by_id[2]["error"] == {"code": "internal_error", "message": "The engine failed on this request."}
    assert (by_id[3]["event"], by_id[3]["result"]["finish_reason"]) == ("request_done", "cancelled")
    assert (by_id[4]["event"], by_id[4]["error"]["code"]) == ("request_error", "cancelled")


def test_a_stop_ends_every_request_in_the_log(nano: Path, log: Log) -> None:
    with serving(nano, RecordingEngine(Script(default=SLOW)), (*MODEL, *log.arguments)) as client:
        running = client.open_chat(stream=True)
        read_until(running, b"reasoning_content")
        queued = client.open_chat()
        log.wait("request_start", 2)
    running.close()
    queued.close()
    assert [line["error"]["code"] for line in log.lines("request_error")] == ["service_unavailable"] * 2


@pytest.mark.clause("JLOG-042")
def test_a_client_gone_at_the_last_chunk_adds_no_terminal(nano: Path, log: Log) -> None:
    """It leaves when it has read all of the text; what ends the stream finds nobody."""
    with serving(nano, RecordingEngine(saying("all")), (*MODEL, *log.arguments)) as client:
        for _ in range(20):
            with client.open_chat(stream=True, enable_thinking=False) as leaving:
                read_until(leaving, b'"content":"all"')
        lines = log.done(20)
        assert client.chat(enable_thinking=False).status == 200
        log.done(21)
    assert {line["result"]["finish_reason"] for line in lines} <= {"stop_token", "cancelled"}
    assert "request_error" not in log.events


@pytest.mark.clause("JLOG-042", "METRIC-033")
def test_a_failure_after_the_outcome_adds_no_terminal(nano: Path, log: Log) -> None:
    """A Response larger than the store: generated, but not given."""
    engine = RecordingEngine(saying(*["word " * 2000] * 150))
    arguments = (*MODEL, "--response-store-max-mib", "1", *log.arguments)
    with serving(nano, engine, arguments) as client:
        assert responses(client).error["code"] == "response_store_capacity_exceeded"
        log.done()
        text = client.get("/metrics").body.decode()
    assert log.events == ["server_start", "request_start", "request_done"]
    assert "ninfer_response_failures_total 1.0" in text
    assert 'ninfer_requests_total{outcome="completed"} 1.0' in text


@pytest.mark.clause("JLOG-034")
def test_a_childs_new_preserve_thinking_is_a_semantic_change(nano: Path, log: Log) -> None:
    with serving(nano, RecordingEngine(), (*MODEL, *log.arguments)) as client:
        parent = responses(client, preserve_thinking=True).json["id"]
        responses(client, previous_response_id=parent, preserve_thinking=False)
        responses(client, previous_response_id=parent)
        responses(client, previous_response_id=parent, preserve_thinking=True)
        starts = log.wait("request_start", 4)
    flags = [line["request"]["preserve_thinking_semantic_change"] for line in starts]
    assert flags == [False, True, False, False]
