"""Conversations built from exchanges: which skills, how often, in which mode.

Owns the mixture. ``draw_document`` gives training documents; ``exam_document`` gives a conversation whose
last answer is graded and whose last question training has never seen.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tools.tiny.data import words
from tools.tiny.data.exchange import SHARED, Exchange
from tools.tiny.data.prose import drift
from tools.tiny.data.skills import chat, copying, edits, objects, recall, sums, telling, tools
from tools.tiny.data.split import Split, split_of

Skill = Callable[[random.Random, Split], Exchange]


@dataclass(frozen=True, slots=True)
class Document:
    """One conversation. ``effort`` is None where thinking is off; ``tools`` are the declarations."""

    exchanges: tuple[Exchange, ...]
    effort: str | None
    system: str = ""
    tools: tuple[dict[str, Any], ...] = ()
    preserve: bool = True


# Share of documents. Copies and edits are long: by tokens they are about half of everything.
_SINGLE: tuple[tuple[Skill, float], ...] = (
    (copying.code, 9), (copying.drift, 5), (copying.tale, 3), (copying.notes, 3), (copying.words_only, 5),
    (edits.edit, 13),
    (sums.one, 7), (sums.bare, 3), (sums.many, 6),
    (objects.shaped, 9), (objects.listed, 3), (objects.plain_list, 2),
    (tools.single, 14), (tools.parallel, 12), (tools.none_fits, 10),
    (chat.fact, 9), (chat.yes_no, 5), (chat.unknown, 1.5), (chat.small_talk, 1), (chat.instruction, 6),
    (recall.table, 3), (telling.tale, 1.5), (telling.drift, 0.5),
)  # fmt: skip
_SHORT: tuple[tuple[Skill, float], ...] = (
    (chat.fact, 6), (chat.yes_no, 2), (chat.instruction, 4), (chat.small_talk, 2), (sums.one, 3),
    (sums.bare, 1),
    (copying.words_only, 3), (objects.plain_list, 1), (recall.table, 1), (chat.unknown, 0.5),
)  # fmt: skip
_CONVERSATIONS = (("single", 100), ("result", 12), ("recall", 12), ("mixed", 10))

_SYSTEM = (
    "You are a helpful assistant.", "You are ninfer-tiny, a small model.", "Answer briefly.", "Be exact.",
    "You are a careful assistant.", "Help the user.", "You are a friendly assistant. Answer in English.",
    "Follow the instructions of the user.", "Keep answers short.", "You answer questions and edit text.",
)  # fmt: skip


def draw_document(rng: random.Random) -> Document:
    """One training document."""
    kind = rng.choices([k for k, _ in _CONVERSATIONS], [w for _, w in _CONVERSATIONS])[0]
    if kind == "result":
        turns = _result_turns(rng, "train")
    elif kind == "recall":
        turns = recall.conversation(rng, "train", lambda: held(rng, "train", _pick(rng, _SHORT)))
        if not all(_on(turn, "train") for turn in turns):
            return draw_document(rng)
    elif kind == "mixed":
        turns = [held(rng, "train", _pick(rng, _SHORT)) for _ in range(rng.randint(2, 6))]
    else:
        turns = [*_fillers(rng), held(rng, "train", _pick(rng, _SINGLE))]
    return _document(rng, turns)


def exam_document(rng: random.Random, skill: str) -> Document:
    """A conversation whose last exchange is held out; ``skill`` is a key of ``EXAM_SKILLS``."""
    wanted = EXAM_SKILLS[skill]
    if wanted == "result":
        turns = _result_turns(rng, "exam")
    elif wanted == "recall":
        turns = recall.conversation(rng, "exam", lambda: held(rng, "train", _pick(rng, _SHORT)))
        if turns[-1].skill != "recall" or not _on(turns[-1], "exam"):
            return exam_document(rng, skill)
    else:
        turns = [*_fillers(rng), held(rng, "exam", wanted)]
    return _document(rng, turns)


EXAM_SKILLS: dict[str, Any] = {
    "fact": chat.fact,
    "yes-no": chat.yes_no,
    "unknown": chat.unknown,
    "instruction": chat.instruction,
    "recall": "recall",
    "lookup": recall.table,
    "tool": tools.single,
    "tool-parallel": tools.parallel,
    "tool-none": tools.none_fits,
    "tool-result": "result",
    "json": objects.shaped,
    "json-listed": objects.listed,
    "json-list": objects.plain_list,
    "sum": sums.one,
    "sum-bare": sums.bare,
    "copy-code": copying.code,
    "copy-tale": copying.tale,
    "copy-drift": copying.drift,
    "copy-notes": copying.notes,
    "copy-words": copying.words_only,
    "edit": edits.edit,
}


def held(rng: random.Random, split: Split, skill: Skill) -> Exchange:
    """An exchange of ``skill`` that lies on the asked side of the held-out rule."""
    while True:
        exchange = skill(rng, split)
        if _on(exchange, split):
            return exchange


def _on(exchange: Exchange, split: Split) -> bool:
    if exchange.identity == SHARED:
        return split == "train"
    return split_of(exchange.identity) == split


def _pick(rng: random.Random, table: tuple[tuple[Skill, float], ...]) -> Skill:
    return rng.choices([skill for skill, _ in table], [weight for _, weight in table])[0]


def _fillers(rng: random.Random) -> list[Exchange]:
    """Earlier talk in front of a long task, in one of eight documents."""
    count = rng.choice((1, 2)) if rng.random() < 0.125 else 0
    return [held(rng, "train", _pick(rng, _SHORT)) for _ in range(count)]


def _result_turns(rng: random.Random, split: Split) -> list[Exchange]:
    while True:
        asked, told = tools.with_result(rng, split)
        if _on(asked, split):
            break
    turns = [*_fillers(rng), asked, told]
    if split == "train" and rng.random() < 0.3:
        turns.append(held(rng, "train", _pick(rng, _SHORT)))
    return turns


def _document(rng: random.Random, turns: list[Exchange]) -> Document:
    effort = None if rng.random() < 0.5 else rng.choice(("xhigh", "xhigh", "xhigh", "medium", "low"))
    declared = next((turn.tools for turn in turns if turn.tools), ())
    # Without preserved thoughts the history differs from what was generated: rare, but a client may ask it.
    preserve = effort is None or rng.random() < 0.94
    return Document(tuple(turns), effort, _system(rng), declared, preserve)


def _system(rng: random.Random) -> str:
    draw = rng.random()
    if draw < 0.55:
        return ""
    if draw < 0.92:
        return rng.choice(_SYSTEM)
    if draw < 0.96:
        return f"You speak with {rng.choice(words.NAMES)} from {rng.choice(words.CITIES)}."
    return drift(rng, rng.randint(4, 20))
