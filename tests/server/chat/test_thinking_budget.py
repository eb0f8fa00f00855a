"""Thinking budgets over HTTP: the cap, its close in the stream and in the usage, and what has no room."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from conformance.http.client import Answer, Client
from conformance.http.streams import chat_events, check_order, payloads, text_of
from ninfer.artifact import Artifact
from ninfer.engine.events import Delta, Finished, RequestEvent
from ninfer.engine.interface import SerialEngine
from ninfer.engine.requests import GenerationRequest, ThinkingBudget
from ninfer.output.early_close import early_close_text, early_close_tokens
from ninfer.prompt import Tokenizer
from ninfer.server.main import main
from tests.server.conftest import MODEL
from tests.server.engines import RecordingEngine, saying
from tests.server.inprocess import serving

BUDGET = 12
# A greedy answer that never ends by itself: random weights think on and on.
LONG: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
GUIDANCE = early_close_text().partition("\n</think>")[0]


@pytest.fixture(scope="module")
def suffix(nano: Path) -> tuple[int, ...]:
    with Artifact.open(nano) as artifact:
        names = ("tokenizer.json", "tokenizer_config.json")
        return early_close_tokens(Tokenizer.from_resources(*(artifact.resource("text", n) for n in names)))


@pytest.fixture(scope="module")
def capped(nano: Path, reference_engine: SerialEngine) -> Iterator[Client]:
    with serving(nano, reference_engine, (*MODEL, "--default-thinking-budget", str(BUDGET))) as client:
        yield client


def reasoning(answer: Answer) -> str:
    assert answer.status == 200, answer.body
    return str(answer.json["choices"][0]["message"].get("reasoning_content", ""))


@pytest.mark.clause("THINK-003", "THINK-008", "THINK-011", "OPT-059")
def test_a_long_thinker_is_closed(capped: Client, reference: Client, suffix: tuple[int, ...]) -> None:
    thought = reasoning(reference.chat(**LONG, max_tokens=BUDGET))
    limit = BUDGET + len(suffix) + 10
    answer = capped.chat(**LONG, max_tokens=limit)
    assert reasoning(answer) == thought + GUIDANCE
    usage = answer.json["usage"]
    # The close is billed like any token: of the limit, ten tokens are left for the answer.
    assert usage["completion_tokens"] == limit
    assert answer.json["choices"][0]["finish_reason"] == "length"
    details = usage["completion_tokens_details"]["reasoning_tokens"]
    assert BUDGET < details <= BUDGET + len(suffix)


@pytest.mark.clause("THINK-009")
def test_the_guidance_is_a_reasoning_delta(capped: Client, suffix: tuple[int, ...]) -> None:
    body = capped.chat(**LONG, max_tokens=BUDGET + len(suffix) + 40, stream=True).body
    stream = payloads(body)
    events = chat_events(stream)
    check_order("chat", events)
    assert text_of(stream, "reasoning_content").endswith(GUIDANCE)
    assert text_of(stream) != ""
    assert "reasoning" not in events[events.index("content") :]


@pytest.mark.clause("THINK-004")
def test_answers_without_thinking_have_no_cap(capped: Client, reference: Client) -> None:
    asked = {**LONG, "enable_thinking": False, "max_tokens": 200}
    capped_answer, plain = capped.chat(**asked), reference.chat(**asked)
    assert capped_answer.json["choices"] == plain.json["choices"]
    assert capped_answer.json["usage"]["completion_tokens"] == 200


@pytest.mark.clause("THINK-005")
def test_the_cap_stands_beside_no_thinking(
    nano: Path, reference_engine: SerialEngine, suffix: tuple[int, ...]
) -> None:
    arguments = (*MODEL, "--default-thinking-budget", str(BUDGET), "--no-thinking")
    with serving(nano, reference_engine, arguments) as client:
        asked = {**LONG, "max_tokens": BUDGET + len(suffix) + 10}
        assert reasoning(client.chat(**asked)) == ""
        assert reasoning(client.chat(**asked, enable_thinking=True)).endswith(GUIDANCE)


@pytest.mark.clause("THINK-012", "THINK-013")
def test_the_close_and_one_token_must_fit(nano: Path, suffix: tuple[int, ...]) -> None:
    engine = RecordingEngine(saying("x"))
    with serving(nano, engine, (*MODEL, "--default-thinking-budget", "512")) as client:
        for limit in (0, 1, 100, 512):
            assert client.chat(max_tokens=limit).status == 200
            assert engine.last.thinking_budget is None  # it could not take effect
        for limit in (513, 512 + len(suffix)):
            answer = client.chat(max_tokens=limit)
            assert (answer.status, answer.error["code"]) == (400, "thinking_budget_capacity_insufficient")
            assert str(limit) in answer.error["message"]
        assert client.chat(max_tokens=512 + len(suffix) + 1).status == 200
        assert engine.last.thinking_budget == ThinkingBudget(512, suffix)
        # Without thinking there is nothing to close.
        assert client.chat(max_tokens=513, enable_thinking=False).status == 200


@pytest.mark.clause("THINK-012")
def test_the_rest_of_the_context_is_capacity_too(nano: Path, suffix: tuple[int, ...]) -> None:
    engine = RecordingEngine(saying("x"))
    probe_arguments = (*MODEL, "--default-thinking-budget", "64", "--max-context")
    with serving(nano, engine, (*probe_arguments, "256")) as client:
        prompt = int(client.chat(max_tokens=0).json["usage"]["prompt_tokens"])
    for rest, status in ((64, 200), (65, 400), (64 + len(suffix), 400), (64 + len(suffix) + 1, 200)):
        with serving(nano, engine, (*probe_arguments, str(prompt + rest))) as client:
            assert client.chat().status == status


@pytest.mark.clause("THINK-010", "OPT-060")
@pytest.mark.parametrize(
    ("message", "ends"),
    [("Stop.", "Stop."), ("Stop.</think>", "Stop."), ("Stop.\n</think>\n\n", "Stop."), ("", "")],
)
def test_the_operators_own_words(
    nano: Path, reference_engine: SerialEngine, reference: Client, message: str, ends: str
) -> None:
    thought = reasoning(reference.chat(**LONG, max_tokens=8))
    arguments = (*MODEL, "--default-thinking-budget", "8", "--thinking-budget-message", message)
    with serving(nano, reference_engine, arguments) as client:
        answer = client.chat(**LONG, max_tokens=60)
    assert reasoning(answer) == thought + ends
    assert "</think>" not in answer.json["choices"][0]["message"]["content"]


def ids_of(engine: SerialEngine, request: GenerationRequest) -> tuple[list[int], list[RequestEvent]]:
    events = list(engine.generate(request, lambda: False, 0.0))
    return [token for event in events if isinstance(event, Delta) for token in event.token_ids], events


@pytest.fixture(scope="module")
def asked(nano: Path, reference_engine: SerialEngine) -> Callable[..., GenerationRequest]:
    """Engine requests as the server makes them, each under its own seed."""
    recording = RecordingEngine(saying("x"))
    with serving(nano, recording, (*MODEL, "--default-thinking-budget", "8")) as client:

        def ask(**members: Any) -> GenerationRequest:
            assert client.chat(ignore_eos=True, **members).status == 200
            return recording.last

        yield ask  # type: ignore[misc]


@pytest.mark.clause("THINK-008", "THINK-014")
@pytest.mark.parametrize("seed", range(6))
def test_the_engine_commits_exactly_the_suffix(
    reference_engine: SerialEngine,
    asked: Callable[..., GenerationRequest],
    suffix: tuple[int, ...],
    seed: int,
) -> None:
    """Seeded, with penalties: the draws before the close are those of the answer without a budget."""
    request = asked(seed=seed, temperature=1, presence_penalty=1.5, max_tokens=8 + len(suffix) + 20)
    closed, events = ids_of(reference_engine, request)
    free, _ = ids_of(reference_engine, msgspec.structs.replace(request, thinking_budget=None))
    assert closed[:8] == free[:8]
    assert tuple(closed[8 : 8 + len(suffix)]) == suffix
    assert len(closed) == request.max_tokens
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert not finished.in_thinking


@pytest.mark.clause("THINK-015")
def test_an_answer_may_be_empty_behind_the_close(
    nano: Path, reference_engine: SerialEngine, suffix: tuple[int, ...]
) -> None:
    """Here by a stop string that is the first text behind the close."""
    arguments = (*MODEL, "--default-thinking-budget", "1", "--thinking-budget-message", "")
    with serving(nano, reference_engine, arguments) as client:
        first = client.chat(**LONG, max_tokens=40).json["choices"][0]["message"]["content"]
        answer = client.chat(**LONG, max_tokens=40, stop=first[:1])
    assert answer.status == 200
    assert answer.json["choices"][0]["message"]["content"] == ""


@pytest.mark.clause("THINK-003")
@pytest.mark.parametrize("value", ["0", "-1", "x"])
def test_a_budget_is_positive(nano: Path, capsys: pytest.CaptureFixture[str], value: str) -> None:
    assert main([str(nano), "--port", "0", f"--default-thinking-budget={value}"]) == 2
    assert "--default-thinking-budget" in capsys.readouterr().err
