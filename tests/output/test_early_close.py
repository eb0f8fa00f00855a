"""The text that ends thinking at a budget always ends it, and once."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer import bundled
from ninfer.artifact import Artifact
from ninfer.output import OutputSession
from ninfer.output.early_close import early_close_text, early_close_tokens
from ninfer.prompt import Tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    with Artifact.open(Path(bundled.path())) as artifact:
        names = ("tokenizer.json", "tokenizer_config.json")
        return Tokenizer.from_resources(*(artifact.resource("text", name) for name in names))


def test_qwens_guidance_is_the_default() -> None:
    assert early_close_text() == (
        "\n\nConsidering the limited time by the user, I have to give the solution based on the thinking "
        "directly now.\n</think>\n\n"
    )


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("Stop.", "Stop.\n</think>\n\n"),
        ("", "\n</think>\n\n"),
        ("Stop.\n</think>", "Stop.\n</think>\n\n"),
        ("Stop.</think>\n", "Stop.</think>\n"),
        ("no </think> here", "no </think> here\n</think>\n\n"),
    ],
)
def test_a_close_is_added_where_there_is_none(message: str, text: str) -> None:
    assert early_close_text(message) == text


@given(st.lists(st.sampled_from(["a", " ", "\n", "</think>", "</think", "<|im_end|>", "é"])).map("".join))
def test_any_message_closes_thinking_once(tokenizer: Tokenizer, message: str) -> None:
    ids = early_close_tokens(tokenizer, message)
    control = set(tokenizer.control_tokens.values())
    assert [i for i in ids if i in control] == [tokenizer.control_tokens["</think>"]]
    session = OutputSession(tokenizer.token_bytes, "reasoning")
    session.push(ids)
    assert session.channel == "content"
    assert tokenizer.decode(ids) == early_close_text(message)
