"""From chat bodies to prompts: what the engine is given, seen through a recording engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
import pytest

from conformance.http.client import Client
from ninfer.artifact import Artifact
from ninfer.prompt import Tokenizer
from tests.server.conftest import MODEL
from tests.server.engines import RecordingEngine
from tests.server.inprocess import serving


@pytest.fixture(scope="module")
def tokenizer(nano: Path) -> Tokenizer:
    with Artifact.open(nano) as artifact:
        names = ("tokenizer.json", "tokenizer_config.json")
        return Tokenizer.from_resources(*(artifact.resource("text", name) for name in names))


@pytest.fixture(scope="module")
def engine() -> RecordingEngine:
    return RecordingEngine()


@pytest.fixture(scope="module")
def client(nano: Path, engine: RecordingEngine) -> Iterator[Client]:
    with serving(nano, engine, MODEL) as client:
        yield client


def said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def prompt(client: Client, engine: RecordingEngine, tokenizer: Tokenizer, **members: Any) -> str:
    """The text of the prompt that a chat body becomes."""
    answer = client.chat(**members)
    assert answer.status == 200, answer.body
    assert answer.json["usage"]["prompt_tokens"] == len(engine.prompt())
    return tokenizer.decode(engine.prompt())


@pytest.mark.clause("TMPL-001")
def test_messages_keep_their_order(client: Client, engine: RecordingEngine, tokenizer: Tokenizer) -> None:
    history = [said("user", "one"), said("assistant", "two"), said("user", "three")]
    text = prompt(client, engine, tokenizer, messages=history)
    assert text.index("one") < text.index("two") < text.index("three")
    permuted = prompt(client, engine, tokenizer, messages=[history[2], history[1], history[0]])
    assert permuted.index("three") < permuted.index("two") < permuted.index("one")
    assert permuted != text


@pytest.mark.clause("TMPL-003")
def test_the_continued_turn_has_one_header(
    client: Client, engine: RecordingEngine, tokenizer: Tokenizer
) -> None:
    messages = [said("user", "a"), said("assistant", "The answer is")]
    text = prompt(client, engine, tokenizer, messages=messages, enable_thinking=False)
    assert text.endswith("The answer is")
    assert text.count("<|im_start|>assistant") == 1


@pytest.mark.clause("TMPL-013")
def test_the_stored_template_makes_the_prompt(
    client: Client, engine: RecordingEngine, tokenizer: Tokenizer, nano: Path
) -> None:
    with Artifact.open(nano) as artifact:
        source = artifact.resource("text", "chat_template.jinja").decode()
    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    messages = [said("system", "Be brief."), said("user", "hello there")]
    wanted = environment.from_string(source).render(messages=messages, add_generation_prompt=True)
    assert prompt(client, engine, tokenizer, messages=messages) == wanted


@pytest.mark.clause("TMPL-012")
def test_another_template_makes_another_prompt(
    client: Client, engine: RecordingEngine, tokenizer: Tokenizer, nano: Path, tmp_path: Path
) -> None:
    with Artifact.open(nano) as artifact:
        source = artifact.resource("text", "chat_template.jinja").decode()
    template = tmp_path / "marked.jinja"
    template.write_text("MARKER" + source)
    plain = prompt(client, engine, tokenizer)
    with serving(nano, engine, (*MODEL, "--chat-template", str(template))) as marked_client:
        assert prompt(marked_client, engine, tokenizer) == "MARKER" + plain


@pytest.mark.clause("TMPL-014")
def test_control_spellings_in_content_are_text(
    client: Client, engine: RecordingEngine, tokenizer: Tokenizer
) -> None:
    end = tokenizer.control_tokens["<|im_end|>"]
    prompt(client, engine, tokenizer, messages=[said("user", "x")])
    ends, length = engine.prompt().count(end), len(engine.prompt())
    text = prompt(client, engine, tokenizer, messages=[said("user", "<|im_end|>")])
    assert engine.prompt().count(end) == ends
    assert len(engine.prompt()) - length >= 2
    assert "<|im_end|><|im_end|>" in text


@pytest.mark.parametrize(
    "members",
    [
        {"enable_thinking": False},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"reasoning_effort": "none"},
    ],
)
def test_thinking_can_be_disabled_in_three_places(
    client: Client, engine: RecordingEngine, tokenizer: Tokenizer, members: dict[str, Any]
) -> None:
    thinking = prompt(client, engine, tokenizer)
    assert engine.last.initial_channel == "reasoning"
    assert prompt(client, engine, tokenizer, **members) != thinking
    assert engine.last.initial_channel == "content"


CONFLICT = "conflicting_template_option"


@pytest.mark.parametrize(
    ("members", "code"),
    [
        ({"enable_thinking": True, "reasoning_effort": "none"}, CONFLICT),
        ({"enable_thinking": False, "reasoning_effort": "low"}, CONFLICT),
        ({"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False}}, CONFLICT),
        ({"chat_template_kwargs": {"messages": []}}, "invalid_value"),
        ({"chat_template_kwargs": {"eos_token": "x"}}, "invalid_value"),
        ({"chat_template_kwargs": {"enable_thinking": "no"}}, "invalid_type"),
    ],
)  # fmt: skip
def test_template_options_that_cannot_be(client: Client, members: dict[str, Any], code: str) -> None:
    answer = client.chat(**members)
    assert (answer.status, answer.error["code"]) == (400, code)


def test_reasoning_history_is_kept_on_request(
    client: Client, engine: RecordingEngine, tokenizer: Tokenizer
) -> None:
    history = [
        said("user", "a"),
        {**said("assistant", "b"), "reasoning_content": "because"},
        said("user", "c"),
    ]
    texts = [
        prompt(client, engine, tokenizer, messages=history, preserve_thinking=keep) for keep in (True, False)
    ]
    assert ["because" in text for text in texts] == [True, False]
