"""The exam: grading by rule, the paper, and one artifact from checkpoint to marks."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ninfer.engine.settings import EngineSettings
from ninfer.prompt import Message, TextPart
from ninfer.reference.engine import open_engine
from ninfer.server.chat.request import read_chat_request
from tests.server.inprocess import serving
from tools.tiny import drafts, exam, tokenizer
from tools.tiny.acceptance import Acceptance
from tools.tiny.attend import Layout
from tools.tiny.conversation import conversation_of
from tools.tiny.data.documents import EXAM_SKILLS, exam_document
from tools.tiny.data.exchange import Call, Exchange, Thought
from tools.tiny.data.render import content
from tools.tiny.export import write_artifact, write_directory
from tools.tiny.grade import calls_in, is_right, is_right_answer
from tools.tiny.model import TinyModel, init_parameters
from tools.tiny.questions import paper
from tools.tiny.shape import Shape
from tools.tiny.wire import chat_body

_TOOL = {
    "type": "function",
    "function": {
        "name": "go",
        "parameters": {
            "properties": {"to": {"type": "string"}, "n": {"type": "integer"}, "ok": {"type": "boolean"}}
        },
    },
}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("skill", EXAM_SKILLS)
def test_right_answers_are_graded_right_and_changed_ones_wrong(skill: str) -> None:
    rng = random.Random(1)
    for _ in range(5):
        exchange = exam_document(rng, skill).exchanges[-1]
        text = content(exchange)
        assert is_right(exchange, text, True)
        assert not is_right(exchange, text, False), "an answer without an end is wrong"
        assert not is_right(exchange, text[:-1], True)
        assert not is_right(exchange, text + "!", True)


def test_json_is_compared_by_value() -> None:
    exchange = Exchange("json", "", '{"a": 1, "b": [true]}', Thought(""), rule="json")
    assert is_right(exchange, '{ "b":[true],"a":1 }', True)
    for wrong in (
        '{"a": 1.0, "b": [true]}',
        '{"a": 1, "b": [1]}',
        '{"a": 1}',
        "no",
        '{"a": 1, "b": [true]} x',
    ):
        assert not is_right(exchange, wrong, True)


def test_calls_are_read_strictly() -> None:
    to, n = (f"<parameter={name}>\n12\n</parameter>\n" for name in ("to", "n"))
    text = f"<tool_call>\n<function=go>\n{to}{n}</function>\n</tool_call>"
    assert calls_in(text, (_TOOL,)) == [Call("go", {"to": "12", "n": 12})]
    assert calls_in(f"{text}\n{text}", (_TOOL,)) == 2 * [Call("go", {"to": "12", "n": 12})]
    changes = {"go>": "stay>", "</function>\n": "", "=n>": "=m>", "n>\n12": "n>\ntwelve"}
    wrongs = [text + " and more", text.replace("=n>", "=ok>"), text.replace("=n>", "=to>")]
    for wrong in wrongs + [text.replace(old, new) for old, new in changes.items()]:
        assert calls_in(wrong, (_TOOL,)) is None
    assert calls_in("", (_TOOL,)) == []


def test_paper_is_long_and_repeatable() -> None:
    rust = tokenizer.load()
    questions = paper(rust)
    assert len(questions) >= 600
    assert questions == paper(rust)
    prompts = [json.dumps([e.user for e in q.document.exchanges]) for q in questions]
    assert len(set(prompts)) > 0.98 * len(prompts)
    assert min(Counter(q.bucket for q in questions if q.bucket).values()) >= 30


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TinyModel]:
    """An untrained model of few parameters, exported as the real one is."""
    shape = Shape(hidden=64, mlp=64, layers=4, query_heads=2, kv_heads=1, gdn_heads=2, gdn_dim=32)
    directory = tmp_path_factory.mktemp("exported")
    parameters = {name: p.detach().bfloat16().float() for name, p in init_parameters(shape, 5).items()}
    write_directory(directory / "hf", parameters, shape)
    path = write_artifact(directory / "hf", directory / "tiny.ninfer", {"demonstration": "true"})
    return path, TinyModel(shape, parameters)


def test_exported_artifact_drafts_what_the_trained_head_drafts(artifact: tuple[Path, TinyModel]) -> None:
    """Names, alignment and formulas of the MTP head survive export, conversion and the reference engine."""
    path, model = artifact
    acceptance = Acceptance.open(path)
    assert acceptance is not None
    tokens = torch.randint(3000, (1, 64), generator=torch.Generator().manual_seed(1))
    starts = torch.zeros(1, 64, dtype=torch.bool)
    starts[0, 0] = True
    forward = model.forward(tokens, starts)
    assert Layout.of(starts, "dense").mask is not None
    text, head = acceptance._model, acceptance._head
    positions = torch.arange(64).expand(3, 64)
    hidden = text.forward(tokens[0], positions, text.new_state())
    torch.testing.assert_close(hidden, forward.hidden[0], rtol=0, atol=1e-4)
    drafted = head.forward(tokens[0, 1:], hidden[:-1], positions[:, :-1], head.new_cache())
    assert forward.draft is not None
    torch.testing.assert_close(drafted, forward.draft[0, :-1], rtol=0, atol=1e-4)


def test_acceptance_counts_by_position(
    artifact: tuple[Path, TinyModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    acceptance = Acceptance.open(artifact[0])
    assert acceptance is not None
    answer = [10, 11, 12, 13, 14, 15, 16, 17, 18]
    drafts = iter([[11, 12, 99, 14, 15], [14, 15, 16, 17, 18]])
    monkeypatch.setattr(
        acceptance._head, "draft", lambda hidden, position, count, cache: next(drafts)[:count]
    )
    accepted, offered = acceptance.measure([1, 2, 3], answer)
    assert accepted == (2, 2, 1, 1, 1)
    assert offered == (2, 2, 2, 1, 1)


@pytest.mark.parametrize("skill", EXAM_SKILLS)
def test_what_a_server_makes_of_a_right_answer_is_right(skill: str) -> None:
    rng = random.Random(2)
    for _ in range(5):
        exchange = exam_document(rng, skill).exchanges[-1]
        called = exchange.rule == "calls"
        text, calls = ("", exchange.calls) if called else (content(exchange), ())
        assert is_right_answer(exchange, text, calls, True)
        assert not is_right_answer(exchange, text, calls, False)
        assert not is_right_answer(exchange, text + "!", calls, True)
        assert not is_right_answer(exchange, text, (*calls, Call("x", {})), True)


def test_numbers_and_booleans_in_calls_are_apart() -> None:
    exchange = Exchange("tool", "", "", Thought(""), calls=(Call("go", {"n": 1, "m": 2}),), rule="calls")
    assert is_right_answer(exchange, "", (Call("go", {"m": 2, "n": 1}),), True)
    for wrong in (1.0, True, "1"):
        assert not is_right_answer(exchange, "", (Call("go", {"n": wrong, "m": 2}),), True)


@pytest.mark.parametrize("skill", EXAM_SKILLS)
def test_a_question_over_http_is_the_conversation_itself(skill: str) -> None:
    """Roles, reasoning, calls, results, tools and options arrive as the recipe has them, ids aside."""
    rng = random.Random(3)
    for _ in range(5):
        document = exam_document(rng, skill)
        asked = read_chat_request({"model": "m", **chat_body(document)}).ask
        wanted = conversation_of(document)
        assert [_bare(message) for message in asked.conversation.messages] == list(wanted.messages)
        assert asked.conversation.tools == asked.callable_tools == wanted.tools
        assert asked.conversation.options == wanted.options


def _bare(message: Message) -> Message:
    calls = tuple(replace(call, id=None) for call in message.tool_calls)
    parts = message.parts if any(part.text for part in message.parts if isinstance(part, TextPart)) else ()
    return replace(message, tool_calls=calls, tool_call_id=None, parts=parts)


def test_a_server_is_examined(artifact: tuple[Path, TinyModel]) -> None:
    engine = open_engine(EngineSettings("reference", str(artifact[0]), exam.MAX_CONTEXT))
    with serving(artifact[0], engine, ("--max-context", str(exam.MAX_CONTEXT))) as client:
        marks = exam.examine(client.base_url, limit=2, clients=2)
    assert len(marks) == 2
    assert not any(mark.right for mark in marks), "an untrained model knows nothing"
    table = exam.report([*marks, replace(marks[0], skill="json", right=True)])
    assert "stopping" in table
    assert "100.0%" in table


def test_drafts_are_reported_by_position() -> None:
    measured = [drafts.Drafted("json", (1,) * 5, (2,) * 5), drafts.Drafted("tool", (3,) * 5, (4,) * 5)]
    assert "50.0%" in drafts.report(measured)
    assert "75.0%" in drafts.report(measured)
