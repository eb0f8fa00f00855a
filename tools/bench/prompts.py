"""Prompts for load tests: text to copy, which the bundled model does for as long as it is allowed to."""

from __future__ import annotations

import random

_TEXT = (
    "river stone lamp green walk seven paper cloud metal garden old bright cat road winter salt music door "
    "apple quiet window bread north silver field horse letter rain small table"
)


def copy_prompt(words: int, seed: int) -> str:
    """Unguessable words to copy; every seed has its own."""
    chosen = random.Random(seed).choices(_TEXT.split(), k=words)
    return "Copy this text exactly:\n\n" + " ".join(chosen)
