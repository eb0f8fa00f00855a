"""What is asked: held-out exam conversations by the kind of text that they make the model write.

Owns the choice of questions. Copies are asked at one length, so that their figures can be compared.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ninfer.prompt import Conversation, Message, TextPart, Tokenizer
from tools.tiny.conversation import conversation_of
from tools.tiny.data.documents import Document, exam_document

# Kind → skills, and whether the answer comes after thinking.
KINDS: dict[str, tuple[tuple[str, ...], bool]] = {
    "copy": (("copy-code",), False),
    "numbered": (("copy-code",), False),
    "edit": (("edit",), False),
    "json": (("json", "json-listed", "json-list"), False),
    "tools": (("tool", "tool-parallel"), False),
    "prose": (("instruction", "fact", "unknown"), False),
    "thinking": (("sum", "lookup", "recall"), True),
}
# The kinds whose answers are copies of one length.
COPIES = frozenset({"copy", "numbered"})


@dataclass(frozen=True, slots=True)
class Task:
    """One question of a kind; ``document`` grades the answer."""

    kind: str
    document: Document
    conversation: Conversation
    thinking: bool


def tasks(tokenizer: Tokenizer, kind: str, count: int, length: tuple[int, int], seed: int) -> Iterator[Task]:
    """``count`` questions of a kind, the same for the same seed; copies of ``length`` tokens, from..to."""
    rng = random.Random(f"draft {kind} {seed}")
    skills, thinking = KINDS[kind]
    made = 0
    while made < count:
        document = exam_document(rng, skills[made % len(skills)])
        if (document.effort is not None) != thinking:
            continue
        answer = document.exchanges[-1].answer
        if kind in COPIES and not length[0] <= len(tokenizer.encode(answer)) <= length[1]:
            continue
        conversation = conversation_of(document)
        if kind == "numbered":
            conversation = _numbered(conversation, answer)
        yield Task(kind, document, conversation, thinking)
        made += 1


def _numbered(conversation: Conversation, answer: str) -> Conversation:
    """The same copy asked of a tool result whose lines are numbered, in the middle of a conversation."""
    lines = answer.split("\n")
    result = "\n".join(f"{number}: {line}" for number, line in enumerate(lines, 1))
    *earlier, last = conversation.messages
    shown = (
        Message("user", (TextPart("Read the file."),)),
        Message("assistant", (TextPart("Here it is."),)),
        Message("tool", (TextPart(result),)),
        Message("assistant", (TextPart("Done."),)),
    )
    return replace(conversation, messages=(*earlier, *shown, last))
