"""The recipe's own renderer against the prompt room: the same text and the same tokens."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as RustTokenizer

from ninfer.prompt import ChatTemplate, PromptPreparer, Tokenizer
from tools.tiny import tokenizer
from tools.tiny.conversation import conversation_of
from tools.tiny.data.documents import EXAM_SKILLS, Document, draw_document, exam_document
from tools.tiny.data.pack import ANSWER, FINAL, PROMPT, START, tokenise
from tools.tiny.data.render import prompt_text, segments


@pytest.fixture(scope="module")
def preparer() -> PromptPreparer:
    files = tokenizer.resources()
    config = files["tokenizer_config.json"]
    rust = Tokenizer.from_resources(files["tokenizer.json"], config)
    return PromptPreparer(rust, ChatTemplate(files["chat_template.jinja"], config))


@pytest.fixture(scope="module")
def rust() -> RustTokenizer:
    return tokenizer.load()


def _documents(count: int) -> list[Document]:
    rng = random.Random(5)
    drawn = [draw_document(rng) for _ in range(count)]
    return drawn + [exam_document(rng, skill) for skill in EXAM_SKILLS]


def test_prompts_are_what_the_prompt_room_prepares(preparer: PromptPreparer, rust: RustTokenizer) -> None:
    seen: set[Any] = set()
    for document in _documents(250):
        prepared = preparer.prepare(conversation_of(document))
        assert prepared.text == prompt_text(document)
        ((ids, marks),) = tokenise(rust, [document])
        before = [token for token, mark in zip(ids, marks, strict=True) if not mark & FINAL]
        assert np.array_equal(prepared.tokens, before)
        assert prepared.thinking == (document.effort is not None)
        seen.add((document.effort, bool(document.tools), bool(document.system), document.preserve))
    assert len(seen) >= 16, "the sample must cover efforts, tools, system texts and dropped thoughts"


def test_marks_tell_prompts_from_answers(rust: RustTokenizer) -> None:
    end = rust.token_to_id("<|im_end|>")
    for document in _documents(40):
        ((ids, marks),) = tokenise(rust, [document])
        assert marks[0] & START
        assert not any(mark & START for mark in marks[1:])
        assert all(bool(mark & PROMPT) != bool(mark & ANSWER) for mark in marks)
        assert ids[-1] == end
        assert marks[-1] == ANSWER | FINAL
        answers = "".join(text for text, is_answer in segments(document) if is_answer)
        taught = [token for token, mark in zip(ids, marks, strict=True) if mark & ANSWER]
        assert rust.decode(taught, skip_special_tokens=False) == answers
