"""Exact copies of code and prose, 20 to 620 tokens long."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from tools.tiny.data import corpus, prose, words
from tools.tiny.data.exchange import Exchange, Thought
from tools.tiny.data.split import Split, split_of

_ASK = (
    "Repeat the following {what} exactly", "Copy this {what} exactly",
    "Write the {what} below again, unchanged",
    "Echo this {what} without any change", "Return this {what} as it is", "Reproduce the {what} exactly",
    "Copy the {what} character by character", "Give me the same {what} back", "Please repeat this {what}",
    "Copy", "Repeat after me", "Say this {what} again, word for word",
)  # fmt: skip
_AFTER = (
    "Repeat the {what} above exactly.", "Copy the {what} above.", "Give the {what} above back unchanged.",
    "Write that {what} again, exactly.", "Now copy it exactly.",
)  # fmt: skip

SHORTEST, LONGEST = 16, 620  # tokens; the exam asks 20 to 600
# Characters a token, measured with the committed tokenizer.
_CODE, _TALE, _DRIFT, _NOTE = 3.3, 4.1, 3.4, 2.2


def code(rng: random.Random, split: Split) -> Exchange:
    """A copy of consecutive source lines."""
    return _copy(rng, "copy-code", "code", corpus.excerpt(rng, split, _characters(rng, _CODE)))


def tale(rng: random.Random, split: Split) -> Exchange:
    """A copy of a story."""
    return _copy(
        rng, "copy-tale", "text", _held(rng, split, _TALE, lambda n: prose.tale(rng, max(1, n // 45)))
    )


def drift(rng: random.Random, split: Split) -> Exchange:
    """A copy of unguessable prose."""
    return _copy(
        rng, "copy-drift", "text", _held(rng, split, _DRIFT, lambda n: prose.drift(rng, max(5, n // 7)))
    )


def notes(rng: random.Random, split: Split) -> Exchange:
    """A copy of short lines of names, figures and codes."""
    return _copy(
        rng, "copy-notes", "text", _held(rng, split, _NOTE, lambda n: prose.note(rng, max(1, n // 26)))
    )


def words_only(rng: random.Random, split: Split) -> Exchange:
    """A short copy of a few words or a phrase: what people type first."""
    pools = (words.COMMON, words.NOUNS, words.ADJECTIVES, words.NAMES, words.FOREIGN)
    text = _held(
        rng,
        split,
        _DRIFT,
        lambda _: " ".join(rng.choice(rng.choice(pools)) for _ in range(rng.randint(1, 14))),
    )
    user = rng.choice(
        ('Say "{t}".', "Say: {t}", "Repeat: {t}", 'Repeat "{t}".', "Echo {t}", "Write {t}")
    ).format(t=text)
    return Exchange("copy-words", user, text, _thought("words"), key=text)


def _characters(rng: random.Random, per_token: float) -> int:
    """Log-uniform lengths, so that copying forms early on short texts, mixed with uniform ones for the
    long.
    """
    if rng.random() < 0.65:
        tokens = math.exp(rng.uniform(math.log(SHORTEST), math.log(LONGEST)))
    else:
        tokens = rng.uniform(SHORTEST, LONGEST)
    return int(tokens * per_token)


def _held(rng: random.Random, split: Split, per_token: float, write: Callable[[int], str]) -> str:
    while True:
        text = write(_characters(rng, per_token))
        if split_of(text) == split:
            return text


def _copy(rng: random.Random, skill: str, what: str, text: str) -> Exchange:
    if rng.random() < 0.3:
        user = f"{_framed(rng, text)}\n\n{rng.choice(_AFTER).format(what=what)}"
    else:
        ask = rng.choice(_ASK).format(what=what)
        user = f"{ask}{rng.choice((':', '.', ''))}{rng.choice((chr(10), chr(10) * 2))}{_framed(rng, text)}"
    return Exchange(skill, user, text, _thought(what), key=text)


def _framed(rng: random.Random, text: str) -> str:
    return rng.choice(("{t}", "{t}", "```\n{t}\n```", "---\n{t}\n---", "<text>\n{t}\n</text>")).format(t=text)


def _thought(what: str) -> Thought:
    return Thought(
        f"I must copy the {what}.",
        "Nothing may be changed or left out.",
        "I begin at its first word and stop at its last.",
    )
