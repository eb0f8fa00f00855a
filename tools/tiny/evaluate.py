"""Quick held-out measures while training: loss, and answers exactly right under teacher forcing.

A whole answer whose every token is the argmax of the true prefix is what greedy decoding writes. The same
holds for drafts: a first draft is accepted where it equals the next token.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from tools.tiny.data.documents import EXAM_SKILLS, exam_document
from tools.tiny.data.pack import ANSWER, FINAL, PROMPT, START, Rows, pack, tokenise
from tools.tiny.model import TinyModel

PROMPT_WEIGHT = 0.1
_SEED = 20_261_130


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Packed exam conversations; ``skills`` and ``lengths`` (tokens of the last answer) by document
    number.
    """

    rows: Rows
    skills: list[str]
    lengths: list[int]

    @classmethod
    def make(cls, tokenizer: Tokenizer, per_skill: int, length: int) -> HeldOut:
        """The same conversations in every run."""
        rng = random.Random(_SEED)
        names = [skill for skill in EXAM_SKILLS for _ in range(per_skill)]
        made = [tokenise(tokenizer, [exam_document(rng, name)])[0] for name in names]
        lengths = [sum(1 for bits in marks if bits & FINAL) for _, marks in made]
        rows = -(-sum(len(ids) for ids, _ in made) // length) + per_skill // 4 + 2
        return cls(_trim(pack(iter(made), rows, length)), names, lengths)


def _trim(rows: Rows) -> Rows:
    used = (rows.documents >= 0).any(1)
    return Rows(rows.tokens[used], rows.marks[used], rows.documents[used])


@dataclass(frozen=True, slots=True)
class Measures:
    """Held-out losses (as trained, answers only), and per skill: exact answers, accepted first drafts."""

    loss: float
    answer_loss: float
    exact: dict[str, float]
    drafted: dict[str, float]

    def line(self) -> str:
        skills = " ".join(f"{name}={share:.2f}" for name, share in self.exact.items())
        return f"held_out_loss={self.loss:.4f} held_out_answer_loss={self.answer_loss:.4f} {skills}"

    def draft_line(self) -> str:
        return "first_draft " + " ".join(f"{name}={share:.2f}" for name, share in self.drafted.items())


def label_weights(marks: Tensor, ahead: int = 1) -> Tensor:
    """Loss weight of predicting the token ``ahead`` places on [R, T]; zero across documents and past the
    row.
    """
    shifted = functional.pad(marks, (0, ahead))[:, ahead:]
    weight = ((shifted & ANSWER) > 0).float() + PROMPT_WEIGHT * ((shifted & PROMPT) > 0).float()
    for step in range(1, ahead + 1):
        weight = weight * ((functional.pad(marks, (0, step))[:, step:] & START) == 0)
    return weight


def shift_labels(tokens: Tensor, ahead: int = 1) -> Tensor:
    return functional.pad(tokens, (0, ahead))[:, ahead:].contiguous()


@torch.no_grad()
def measure(model: TinyModel, held_out: HeldOut, device: torch.device, batch: int = 16) -> Measures:
    """Run the held-out rows through ``model``."""
    sums = np.zeros(4)
    count = len(held_out.skills)
    wrong, drafts, hits = np.zeros(count, np.int64), np.zeros(count, np.int64), np.zeros(count, np.int64)
    for tokens, marks, documents in _batches(held_out.rows, batch):
        tokens, marks = tokens.to(device), marks.to(device)
        forward = model.forward(tokens, (marks & START) > 0)
        logits = model.logits(forward.hidden).float()
        losses = functional.cross_entropy(
            logits.flatten(0, 1), shift_labels(tokens).flatten(), reduction="none"
        )
        losses = losses.view(tokens.shape)
        weight = label_weights(marks)
        answers = weight == 1
        sums += [
            (losses * weight).sum().item(),
            weight.sum().item(),
            losses[answers].sum().item(),
            answers.sum().item(),
        ]
        right = (logits.argmax(-1) == shift_labels(tokens)).cpu().numpy()
        final = _final(marks, 1)
        np.add.at(wrong, documents[:, 1:][final[:, :-1]], ~right[:, :-1][final[:, :-1]])
        guess = model.logits(forward.draft).argmax(-1) == shift_labels(tokens, 2)
        final = _final(marks, 2) & _final(marks, 1)
        numbers = documents[:, 2:][final[:, :-2]]
        np.add.at(drafts, numbers, 1)
        np.add.at(hits, numbers, guess.cpu().numpy()[:, :-2][final[:, :-2]])
    groups = _groups(held_out)
    exact = {name: float(np.mean(wrong[numbers] == 0)) for name, numbers in groups.items()}
    drafted = {name: float(hits[n].sum() / max(1, drafts[n].sum())) for name, n in groups.items()}
    return Measures(sums[0] / sums[1], sums[2] / sums[3], exact, drafted)


def _batches(rows: Rows, batch: int) -> Iterator[tuple[Tensor, Tensor, np.ndarray]]:
    for begin in range(0, len(rows.tokens), batch):
        part = slice(begin, begin + batch)
        yield (
            torch.from_numpy(rows.tokens[part].astype(np.int64)),
            torch.from_numpy(rows.marks[part]),
            rows.documents[part],
        )


def _final(marks: Tensor, ahead: int) -> np.ndarray:
    """Where the token ``ahead`` places on belongs to the last answer (of the same document)."""
    shifted: np.ndarray = ((functional.pad(marks, (0, ahead))[:, ahead:] & FINAL) > 0).cpu().numpy()
    return shifted


def _groups(held_out: HeldOut) -> dict[str, list[int]]:
    """Documents by skill; long copies also by length. A document longer than a row has no place in any."""
    groups: dict[str, list[int]] = defaultdict(list)
    placed = set(held_out.rows.documents.flat)
    for number, (skill, length) in enumerate(zip(held_out.skills, held_out.lengths, strict=True)):
        if number not in placed:
            continue
        groups[skill].append(number)
        if skill.startswith("copy") and skill != "copy-words":
            groups["copy<=200" if length <= 200 else "copy<=600" if length <= 600 else "copy>600"].append(
                number
            )
    return dict(groups)
