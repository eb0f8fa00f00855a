"""Free writing in both registers: tales about a thing, and drift that no drafter can guess."""

from __future__ import annotations

import random

from tools.tiny.data import prose, words
from tools.tiny.data.exchange import SHARED, Exchange, Thought
from tools.tiny.data.split import Split

_TALE = ("Tell me a story about a {t}.", "Write a short tale about a {t}.", "A story about a {t}, please.")
_DRIFT = ("Write something random.", "Improvise.", "Let your words drift.", "Write without a plan.")


def tale(rng: random.Random, split: Split) -> Exchange:
    """A story around one thing; only its end is graded."""
    topic = rng.choice(words.NOUNS)
    thought = Thought(f"A story about a {topic}.", "It needs a beginning, a middle and an end.")
    text = prose.tale(rng, rng.randint(4, 9), topic)
    return Exchange("tale", rng.choice(_TALE).format(t=topic), text, thought, rule="stop", key=SHARED)


def drift(rng: random.Random, split: Split) -> Exchange:
    """Words that follow no rule; only their end is graded."""
    thought = Thought("No rule here.", "Any words will do.")
    return Exchange(
        "drift", rng.choice(_DRIFT), prose.drift(rng, rng.randint(15, 60)), thought, rule="stop", key=SHARED
    )
