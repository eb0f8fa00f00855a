"""The exam paper: which held-out conversations are asked, how many of each skill and length."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tokenizers import Tokenizer

from tools.tiny.data.documents import Document, exam_document

# Copies are asked evenly by length of the copied text, in tokens.
LENGTHS = ((20, 100), (101, 200), (201, 400), (401, 600))
_COPIES = {"copy-code": 12, "copy-tale": 6, "copy-drift": 8, "copy-notes": 6}  # per length
_OTHERS = {
    "fact": 50,
    "yes-no": 20,
    "unknown": 10,
    "instruction": 40,
    "recall": 40,
    "lookup": 20,
    "tool": 50,
    "tool-parallel": 30,
    "tool-none": 30,
    "tool-result": 30,
    "json": 60,
    "json-listed": 20,
    "json-list": 20,
    "sum": 60,
    "sum-bare": 30,
    "copy-words": 20,
    "edit": 70,
}


@dataclass(frozen=True, slots=True)
class Question:
    """One conversation; ``length`` counts the tokens of the right answer without thoughts."""

    skill: str
    document: Document
    length: int

    @property
    def bucket(self) -> str:
        """Length class of a copy, else nothing."""
        if self.skill not in _COPIES:
            return ""
        return next(f"{low}-{high}" for low, high in LENGTHS if low <= self.length <= high)


def paper(tokenizer: Tokenizer, seed: int = 1) -> list[Question]:
    """Every question, shuffled, the same for the same seed."""
    rng = random.Random(f"exam {seed}")
    questions = [_question(tokenizer, rng, skill) for skill, count in _OTHERS.items() for _ in range(count)]
    for skill, count in _COPIES.items():
        for low, high in LENGTHS:
            questions += [_copy(tokenizer, rng, skill, low, high) for _ in range(count)]
    rng.shuffle(questions)
    return questions


def _question(tokenizer: Tokenizer, rng: random.Random, skill: str) -> Question:
    document = exam_document(rng, skill)
    answer = document.exchanges[-1].answer
    return Question(skill, document, len(tokenizer.encode(answer, add_special_tokens=False).ids))


def _copy(tokenizer: Tokenizer, rng: random.Random, skill: str, low: int, high: int) -> Question:
    while True:
        question = _question(tokenizer, rng, skill)
        if low <= question.length <= high:
            return question
