"""What a skill writes: one question with its answer, its thoughts and the rule that grades it.

Owns plain values. A skill knows nothing of templates or tokens; a document is built of exchanges by
``documents.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# How an answer is graded: "exact" text, "json" equal values, "calls" equal calls, "stop" only that it ends.
Rule = str

# Key of exchanges too few to hold any back (greetings): training keeps them all, the exam asks none.
SHARED = "*"


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call; ``arguments`` in the order in which they are written."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Thought:
    """The reasoning of one answer: ``gist`` alone at low effort, the ``plan`` from medium, the ``check``
    at xhigh.
    """

    gist: str
    plan: str = ""
    check: str = ""

    def text(self, effort: str) -> str:
        parts = {"low": (self.gist,), "medium": (self.gist, self.plan)}.get(
            effort, (self.gist, self.plan, self.check)
        )
        return " ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class Exchange:
    """One user message (or tool results) and the answer to it.

    ``key`` names the content for the held-out rule; ``results`` are tool results that stand in place of a
    user message. ``tools`` are needed declarations.
    """

    skill: str
    user: str
    answer: str
    thought: Thought
    key: str = ""
    calls: tuple[Call, ...] = ()
    results: tuple[str, ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    rule: Rule = "exact"

    @property
    def identity(self) -> str:
        return self.key or f"{self.skill}\n{self.user}"
