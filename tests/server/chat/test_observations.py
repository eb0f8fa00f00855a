"""Timings and progress over HTTP, over plays whose times a test sets."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.http.client import Client, dechunked, read_until
from conformance.http.schemas import check_schema
from conformance.http.streams import chat_events, check_order, event_data, payloads
from ninfer.engine.interface import SerialEngine
from ninfer.engine.scripted import Play, Script, Step
from tests.server.conftest import MODEL
from tests.server.engines import RecordingEngine
from tests.server.fast_client import eventually
from tests.server.inprocess import serving

PREFILL_S, GAP_S = 0.6, 0.15
GENERATION_S = 3 * GAP_S
# A prompt of some hundred tokens, a few of them reused: progress, the first token, three more with gaps.
TIMED = Play(
    (
        Step(wait_s=PREFILL_S / 2, progress=40),
        Step(wait_s=PREFILL_S / 2, progress=80),
        Step(text="a"),
        *(Step(text="b", wait_s=GAP_S) for _ in range(3)),
    ),
    cached_tokens=8,
)
ONE = Play((Step(wait_s=0.1), Step(text="a"), Step(wait_s=0.3)))
EMOJI = Play(
    (Step(text="x"), *(Step(hex=f"{byte:02x}") for byte in "🦦".encode()), Step(text="S"), Step(text="T"),
     Step(text="U"), Step(text="</think>"), Step(text="\n\n"), Step(text="end"))
)  # fmt: skip
PROGRESS_STEPS = 20_000
FLOOD = Play((*(Step(progress=n) for n in range(1, PROGRESS_STEPS)), Step(text="a")))
LONG = {"messages": [{"role": "user", "content": "1" * 200}]}
USAGE = {"stream_options": {"include_usage": True}}
TEXT = ("reasoning", "content")


@pytest.fixture(scope="module")
def engine() -> RecordingEngine:
    return RecordingEngine(Script(plays={"1": TIMED, "2": ONE, "3": EMOJI, "4": FLOOD}))


@pytest.fixture(scope="module")
def client(nano: Path, engine: RecordingEngine) -> Iterator[Client]:
    with serving(nano, engine, (*MODEL, "--max-context", "32768")) as client:
        yield client


def timings(client: Client, **members: Any) -> dict[str, Any]:
    answer = client.chat(**members)
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json["timings"]
    check_schema("Timings", found)
    return found


def chunks(client: Client, **members: Any) -> tuple[list[str], list[Any]]:
    """The events of a stream by name, and its JSON chunks."""
    stream = payloads(client.chat(stream=True, **members).body)
    events = chat_events(stream)
    check_order("chat", events)
    found = [chunk for chunk in stream if not isinstance(chunk, str)]
    for chunk in found:
        check_schema("ChatChunk", chunk)
    return events, found


@pytest.mark.clause("TIMING-001")
def test_every_answer_has_timings(client: Client) -> None:
    answer = client.chat(seed=1, **LONG).json
    found, usage = answer["timings"], answer["usage"]
    assert found["cache_n"] == 8
    assert found["cache_n"] + found["prompt_n"] == usage["prompt_tokens"]
    assert found["predicted_n"] == usage["completion_tokens"] == 4


@pytest.mark.clause("TIMING-002", "TIMING-013")
@pytest.mark.parametrize("per_token", [None, False, True])
@pytest.mark.parametrize("include_usage", [False, True])
def test_the_last_chunk_carries_them(client: Client, include_usage: bool, per_token: bool | None) -> None:
    events, found = chunks(
        client, seed=3, stream_options={"include_usage": include_usage}, timings_per_token=per_token
    )
    timed = [event for event, chunk in zip(events, found, strict=False) if "timings" in chunk]
    texts = [event for event in events if event in TEXT] if per_token else []
    assert timed == [*texts, "usage" if include_usage else "finish"]
    assert "timings" in found[-1]


@pytest.mark.clause("TIMING-006")
def test_the_prompts_time_ends_with_the_first_token_and_begins_behind_the_queue(client: Client) -> None:
    found: list[dict[str, Any]] = []
    threads = [
        threading.Thread(target=lambda: found.append(timings(client, seed=1, **LONG))) for _ in range(3)
    ]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    passed_ms = 1000 * (time.monotonic() - began)
    assert all(one["prompt_ms"] >= 1000 * PREFILL_S for one in found)
    # One lane: the three came one after the other, so no time of one is a time of another.
    assert sum(one["prompt_ms"] + one["predicted_ms"] for one in found) <= passed_ms


@pytest.mark.clause("TIMING-007", "TIMING-010")
def test_generation_is_timed_from_the_first_to_the_last_token(client: Client) -> None:
    began = time.monotonic()
    several = timings(client, seed=1, **LONG)
    passed_ms = 1000 * (time.monotonic() - began)
    assert 1000 * GENERATION_S <= several["predicted_ms"] <= passed_ms - several["prompt_ms"]
    assert several["predicted_per_token_ms"] == pytest.approx(several["predicted_ms"] / 3)
    one = timings(client, seed=2)
    assert (one["predicted_n"], one["predicted_ms"]) == (1, 0)  # what comes behind it is no generation
    assert one["predicted_per_token_ms"] == one["predicted_per_second"] == 0
    none = timings(client, seed=1, max_tokens=0)
    assert (none["predicted_n"], none["predicted_ms"], none["predicted_per_second"]) == (0, 0, 0)


@pytest.mark.clause("TIMING-010")
@pytest.mark.parametrize("limit", [0, 1, 2])
def test_both_ends_of_a_real_answer_have_finite_rates(reference: Client, limit: int) -> None:
    found = timings(reference, max_tokens=limit, temperature=0)
    assert all(math.isfinite(value) for value in found.values())
    assert found["prompt_ms"] > 0
    assert (found["predicted_per_second"] > 0) == (limit == 2)


@pytest.mark.clause("TIMING-012")
def test_timings_so_far_ride_on_every_chunk_with_text(reference: Client) -> None:
    events, found = chunks(
        reference, timings_per_token=True, temperature=1, seed=5, max_tokens=40, ignore_eos=True
    )
    seen = [
        chunk["timings"]
        for event, chunk in zip(events, found, strict=False)
        if event in ("reasoning", "content")
    ]
    assert len(seen) > 5
    counts = [one["predicted_n"] for one in seen]
    assert counts == sorted(counts)
    assert counts[0] >= 1
    assert [one["predicted_ms"] for one in seen] == sorted(one["predicted_ms"] for one in seen)
    assert len({one["prompt_ms"] for one in seen}) == 1
    assert found[-1]["timings"]["predicted_n"] == 40


@pytest.mark.clause("TIMING-014")
def test_held_commits_count_when_the_next_text_comes(client: Client) -> None:
    """Four tokens make one otter; S and T may be a stop's beginning; the close of thinking is no text."""
    events, found = chunks(client, seed=3, timings_per_token=True, stop="STOP")
    seen = [
        (chunk["choices"][0]["delta"], chunk["timings"]["predicted_n"])
        for event, chunk in zip(events, found, strict=False)
        if event in TEXT
    ]
    assert seen == [
        ({"reasoning_content": "x"}, 1),
        ({"reasoning_content": "🦦"}, 5),
        ({"reasoning_content": "STU"}, 8),
        ({"content": "end"}, 11),
    ]


@pytest.mark.clause("TIMING-015", "TIMING-018", "TIMING-020", "TIMING-021")
def test_progress_is_reported_before_the_answer(client: Client, engine: RecordingEngine) -> None:
    """Also behind another request: the time it waited does not count."""
    began, asked = time.monotonic(), len(engine.requests)
    running = client.open_chat(seed=1, **LONG)
    eventually(lambda: len(engine.requests) > asked)
    events, found = chunks(client, seed=1, return_progress=True, **LONG, **USAGE)
    passed_ms = 1000 * (time.monotonic() - began)
    running.close()
    reports = [chunk["prompt_progress"] for chunk in found if "prompt_progress" in chunk]
    assert all(set(report) == {"total", "cache", "processed", "time_ms"} for report in reports)
    total = found[-1]["usage"]["prompt_tokens"]
    assert {(report["total"], report["cache"]) for report in reports} == {(total, 8)}
    assert [report["processed"] for report in reports] == [8, 40, 80, total]
    assert events[: len(reports) + 2] == ["role", *["progress"] * len(reports), "reasoning"]
    times = [report["time_ms"] for report in reports]
    assert times == sorted(times)
    # One lane: the other answer and the rest of this one passed outside of the prompt's time.
    assert 1000 * PREFILL_S <= times[2] <= passed_ms - 1000 * (PREFILL_S + 2 * GENERATION_S)
    shares = [(r["processed"] - r["cache"]) / (r["total"] - r["cache"]) for r in reports]
    assert all(0 <= share <= 1 for share in shares)
    assert shares[-1] == 1


@pytest.mark.clause("TIMING-017")
def test_a_slow_reader_gets_fewer_reports_that_never_go_back(client: Client) -> None:
    prompt = {"messages": [{"role": "user", "content": "1" * (PROGRESS_STEPS + 10)}]}
    with client.open_chat(seed=4, stream=True, return_progress=True, **prompt) as sock:
        received = read_until(sock, b"prompt_progress")
        time.sleep(2)
        received += read_until(sock, b"0\r\n\r\n")
    events = [json.loads(event) for event in event_data(dechunked(received)) if event != "[DONE]"]
    processed = [event["prompt_progress"]["processed"] for event in events if "prompt_progress" in event]
    assert 2 < len(processed) < PROGRESS_STEPS
    assert processed == sorted(set(processed))
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"


@pytest.mark.clause("TIMING-017", "TIMING-018")
def test_real_prefill_reports_its_units(nano: Path, reference_engine: SerialEngine) -> None:
    """The reference takes a prompt in pieces of 512 tokens."""
    with serving(nano, reference_engine, MODEL) as client:
        prompt = {"messages": [{"role": "user", "content": "1" * 1500}]}
        events, found = chunks(client, return_progress=True, max_tokens=2, temperature=0, **prompt)
    reports = [chunk["prompt_progress"] for chunk in found if "prompt_progress" in chunk]
    total = reports[0]["total"]
    assert [report["processed"] for report in reports][:3] == [0, 512, 1024]
    assert reports[-1]["processed"] == total
    assert events.index("progress") == 1


def test_without_a_stream_progress_and_timings_per_token_change_nothing(client: Client) -> None:
    answer = client.chat(seed=3, return_progress=True, timings_per_token=True)
    assert answer.status == 200
    check_schema("ChatCompletion", answer.json)


@pytest.mark.clause("STREAM-006", "OPT-084")
def test_the_usage_chunk_for_strict_parsers(nano: Path, client: Client) -> None:
    with serving(
        nano, RecordingEngine(Script(plays={"3": EMOJI})), (*MODEL, "--usage-chunk-choice")
    ) as strict:
        found = [chunks(one, seed=3, **USAGE)[1][-1] for one in (client, strict)]
    assert found[0]["choices"] == []
    assert found[1]["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": None}]
    assert found[0]["usage"] == found[1]["usage"]
