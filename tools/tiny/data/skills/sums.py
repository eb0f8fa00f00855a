"""One- and two-digit sums: asked in words, signs or lists; thoughts add digit by digit."""

from __future__ import annotations

import random

from tools.tiny.data.exchange import Exchange, Thought
from tools.tiny.data.split import Split, split_of

_QUESTIONS = (
    "What is {a} + {b}?", "{a} + {b}", "{a}+{b}=?", "Add {a} and {b}.", "What is {a} plus {b}?",
    "How much is {a} + {b}?", "Compute {a} + {b}.", "Sum of {a} and {b}?", "Please add {a} and {b}.",
    "{a} plus {b} is what?", "Calculate {a} plus {b}.", "What do {a} and {b} make?",
)  # fmt: skip
_STORIES = (
    "I have {a} {thing} and get {b} more. How many do I have?",
    "{a} {thing} and {b} {thing}: how many in all?",
    "There are {a} {thing} in one box and {b} in another. How many together?",
)
_THINGS = ["apples", "books", "coins", "eggs", "lemons", "letters", "plates", "stamps", "stones", "tickets"]


def one(rng: random.Random, split: Split) -> Exchange:
    """A single sum."""
    a, b = _pair(rng, split)
    if rng.random() < 0.2:
        user = rng.choice(_STORIES).format(a=a, b=b, thing=rng.choice(_THINGS))
    else:
        user = rng.choice(_QUESTIONS).format(a=a, b=b)
    thought = Thought(
        f"{_steps(a, b)}", f"So {a} + {b} = {a + b}.", f"Check: {b} + {a} = {a + b}, which fits."
    )
    return Exchange("sum", user, f"{a} + {b} = {a + b}", thought, key=f"sum {min(a, b)} {max(a, b)}")


def bare(rng: random.Random, split: Split) -> Exchange:
    """A single sum whose answer is the number alone."""
    a, b = _pair(rng, split)
    user = rng.choice(_QUESTIONS).format(a=a, b=b) + rng.choice(
        (" Answer with the number only.", " Only the number.", " Reply with just the number.")
    )
    thought = Thought(_steps(a, b), f"So {a} + {b} = {a + b}.", "Only the number is wanted.")
    return Exchange("sum", user, str(a + b), thought, key=f"sum {min(a, b)} {max(a, b)}")


def many(rng: random.Random, split: Split) -> Exchange:
    """A list of sums, answered line by line: dense practice."""
    pairs = [_pair(rng, split) for _ in range(rng.randint(3, 12))]
    lines = "\n".join(f"{a} + {b}" for a, b in pairs)
    user = (
        rng.choice(("Solve each line:\n", "Add these:\n", "Write the sums:\n", "Work these out:\n")) + lines
    )
    answer = "\n".join(f"{a} + {b} = {a + b}" for a, b in pairs)
    thought = Thought(f"There are {len(pairs)} sums to write, one on each line.")
    return Exchange("sum-list", user, answer, thought, key=user)


def _pair(rng: random.Random, split: Split) -> tuple[int, int]:
    while True:
        limits = (10, 100) if rng.random() < 0.8 else (10, 10)
        a, b = rng.randrange(limits[rng.random() < 0.85]), rng.randrange(limits[rng.random() < 0.85])
        if split_of(f"sum {min(a, b)} {max(a, b)}") == split:
            return a, b


def _steps(a: int, b: int) -> str:
    """Column addition: ones, carry, tens."""
    ones = a % 10 + b % 10
    carry = ones // 10
    text = f"Ones: {a % 10} + {b % 10} = {ones}."
    if a >= 10 or b >= 10:
        tens = a // 10 + b // 10 + carry
        text += f" Tens: {a // 10} + {b // 10}{' + 1' if carry else ''} = {tens}."
    return text
