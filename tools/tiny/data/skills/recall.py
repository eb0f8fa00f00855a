"""Recall: what the user said turns ago, what a text says, what was changed since."""

from __future__ import annotations

import random
from collections.abc import Callable

from tools.tiny.data import prose, words
from tools.tiny.data.exchange import SHARED, Exchange, Thought
from tools.tiny.data.skills.parameters import clock, code, date
from tools.tiny.data.split import Split

Draw = Callable[[random.Random], str]

# statement, question, answer; {v} is the value
_MEMORIES: tuple[tuple[str, str, str, Draw], ...] = (
    ("My name is {v}.", "What is my name?", "Your name is {v}.", lambda r: r.choice(words.NAMES)),
    (
        "My dog is called {v}.",
        "What is my dog called?",
        "Your dog is called {v}.",
        lambda r: r.choice(words.PET_NAMES),
    ),
    (
        "My cat is called {v}.",
        "What is my cat called?",
        "Your cat is called {v}.",
        lambda r: r.choice(words.PET_NAMES),
    ),
    ("I live in {v}.", "Where do I live?", "You live in {v}.", lambda r: r.choice(words.CITIES)),
    ("I was born in {v}.", "Where was I born?", "You were born in {v}.", lambda r: r.choice(words.CITIES)),
    (
        "My favourite colour is {v}.",
        "What is my favourite colour?",
        "Your favourite colour is {v}.",
        lambda r: r.choice(words.COLOURS),
    ),
    (
        "My favourite food is {v}.",
        "What is my favourite food?",
        "Your favourite food is {v}.",
        lambda r: r.choice(words.FOODS),
    ),
    ("My hobby is {v}.", "What is my hobby?", "Your hobby is {v}.", lambda r: r.choice(words.HOBBIES)),
    ("I work as a {v}.", "What is my job?", "You work as a {v}.", lambda r: r.choice(words.JOBS)),
    ("I am {v} years old.", "How old am I?", "You are {v} years old.", lambda r: str(r.randint(8, 98))),
    (
        "My locker code is {v}.",
        "What is my locker code?",
        "Your locker code is {v}.",
        lambda r: str(r.randint(100, 99999)),
    ),
    ("My order number is {v}.", "What is my order number?", "Your order number is {v}.", code),
    ("My train leaves at {v}.", "When does my train leave?", "Your train leaves at {v}.", clock),
    ("My appointment is on {v}.", "When is my appointment?", "Your appointment is on {v}.", date),
    (
        "My sister is called {v}.",
        "What is my sister called?",
        "Your sister is called {v}.",
        lambda r: r.choice(words.NAMES),
    ),
    (
        "My brother lives in {v}.",
        "Where does my brother live?",
        "Your brother lives in {v}.",
        lambda r: r.choice(words.CITIES),
    ),
    ("The password is {v}.", "What is the password?", "The password is {v}.", prose.invented),
    ("I bought a {v}.", "What did I buy?", "You bought a {v}.", lambda r: r.choice(words.NOUNS)),
    ("I lost my {v}.", "What did I lose?", "You lost your {v}.", lambda r: r.choice(words.NOUNS)),
    (
        "The meeting is on {v}.",
        "On which day is the meeting?",
        "The meeting is on {v}.",
        lambda r: r.choice(words.WEEKDAYS),
    ),
)
_REMEMBER = ("Remember this: ", "Please note: ", "", "", "", "By the way, ", "You should know: ")
_ASK = ("", "", "", "Do you remember? ", "Tell me: ", "Now, ")


def conversation(rng: random.Random, split: Split, filler: Callable[[], Exchange]) -> list[Exchange]:
    """Statements, other talk between them, and questions about them; later statements win."""
    topics = rng.sample(_MEMORIES, rng.randint(1, 4))
    memories = [(topic, topic[3](rng)) for topic in topics]
    turns: list[Exchange] = []
    for group in _groups(rng, memories):
        turns.append(_told(rng, group))
        turns += [filler() for _ in range(rng.choice((0, 0, 1, 1, 2)))]
    if rng.random() < 0.2:
        index = rng.randrange(len(memories))
        memories[index] = (memories[index][0], memories[index][0][3](rng))
        turns.append(_told(rng, [memories[index]], "Actually, "))
    asked = rng.sample(memories, rng.randint(1, len(memories)))
    context = " ".join(topic[0].format(v=value) for topic, value in memories)
    for topic, value in asked:
        turns += [filler()] if rng.random() < 0.3 else []
        turns.append(_asked(rng, topic, value, context))
    return turns


def _groups(rng: random.Random, memories: list) -> list[list]:  # type: ignore[type-arg]
    if rng.random() < 0.4:
        return [memories]
    return [[memory] for memory in memories]


def _told(rng: random.Random, memories: list, opening: str | None = None) -> Exchange:  # type: ignore[type-arg]
    said = " ".join(topic[0].format(v=value) for topic, value in memories)
    opening = rng.choice(_REMEMBER) if opening is None else opening
    if opening.endswith(", ") and not said.startswith("I "):
        said = said[0].lower() + said[1:]
    thought = Thought("The user tells me something.", "I keep it in mind.", "No question is asked.")
    return Exchange("told", opening + said, "I will remember that.", thought, key=SHARED)


def _asked(rng: random.Random, topic: tuple[str, str, str, Draw], value: str, context: str) -> Exchange:
    opening = rng.choice(_ASK)
    question = topic[1] if not opening.endswith(", ") else topic[1][0].lower() + topic[1][1:]
    said = topic[0].format(v=value)
    thought = Thought(f'The user said: "{said}"', "I look no further.", "That is the latest word on it.")
    key = f"{context}\n{question}"
    return Exchange("recall", opening + question, topic[2].format(v=value), thought, key=key)


def table(rng: random.Random, split: Split) -> Exchange:
    """A question about one line of a list in the same message."""
    rows = rng.sample(words.NOUNS, rng.randint(3, 12))
    values = [str(rng.randint(1, 999)) if rng.random() < 0.6 else rng.choice(words.COLOURS) for _ in rows]
    kind = rng.choice(("price", "number", "value", "code", "mark"))
    body = "\n".join(f"{row}: {value}" for row, value in zip(rows, values, strict=True))
    pick = rng.randrange(len(rows))
    question = f"What is the {kind} of {rows[pick]}?"
    parts = [f"{rng.choice(('A list:', 'Here is a table:', 'Values:'))}\n{body}", question]
    if rng.random() < 0.3:
        parts.reverse()
    thought = Thought(f"I look for {rows[pick]} in the list.", f"It stands beside {values[pick]}.", "")
    return Exchange("lookup", "\n\n".join(parts), f"The {kind} of {rows[pick]} is {values[pick]}.", thought)
