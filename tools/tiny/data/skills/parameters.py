"""Typed parameters of invented tools: schema, a value, and how a user says it.

Owns the pool from which tool calls and JSON tasks draw; every value is said in full, so that the right
argument is decidable.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tools.tiny.data import words
from tools.tiny.data.prose import invented


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter: its JSON schema, a generator of values and the phrases that say a value (``{v}``)."""

    name: str
    schema: dict[str, Any]
    draw: Callable[[random.Random], Any]
    phrases: tuple[str, ...]

    def say(self, rng: random.Random, value: Any) -> str:
        return rng.choice(self.phrases).format(v=spoken(value))


def spoken(value: Any) -> str:
    """A value as a sentence holds it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        items = [spoken(item) for item in value]
        return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {spoken(item)}" for key, item in value.items())
    return str(value)


def _string(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def _kind(name: str, description: str, **more: Any) -> dict[str, Any]:
    return {"type": name, "description": description, **more}


def date(rng: random.Random) -> str:
    return f"20{rng.randint(20, 39)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"


def clock(rng: random.Random) -> str:
    return f"{rng.randint(0, 23):02d}:{rng.choice(('00', '05', '10', '15', '20', '30', '40', '45', '50'))}"


def email(rng: random.Random) -> str:
    host = rng.choice((invented(rng), rng.choice(words.NOUNS)))
    return f"{rng.choice(words.NAMES).lower()}@{host}.{rng.choice(('org', 'com', 'net'))}"


def path(rng: random.Random) -> str:
    parts = [
        rng.choice((rng.choice(words.NOUNS), rng.choice(words.COMMON), invented(rng)))
        for _ in range(rng.randint(1, 3))
    ]
    return "/".join(parts) + rng.choice((".txt", ".py", ".md", ".json", ".csv"))


def title(rng: random.Random) -> str:
    return " ".join(
        rng.choice((words.COMMON, words.NOUNS, words.ADJECTIVES)[rng.randrange(3)])
        for _ in range(rng.randint(1, 4))
    )


def code(rng: random.Random) -> str:
    return f"{rng.choice('ABCDEFGHKLMNPRSTVWXZ')}{rng.choice('ABCDEFGHKLMNPRSTVWXZ')}{rng.randint(10, 99999)}"


def price(rng: random.Random) -> float:
    return round(rng.randint(1, 499) + rng.choice((0.25, 0.5, 0.75, 0.95, 0.99, 0.1, 0.4)), 2)


def several(pool: list[str]) -> Callable[[random.Random], list[str]]:
    return lambda rng: rng.sample(pool, rng.randint(1, 3))


def _one_of(*pool: str) -> Callable[[random.Random], str]:
    return lambda rng: rng.choice(pool)


def _enum(description: str, *values: str) -> dict[str, Any]:
    return {"type": "string", "description": description, "enum": list(values)}


_ARRAY = {"type": "array", "items": {"type": "string"}}

POOL: tuple[Parameter, ...] = (
    Parameter(
        "city",
        _string("Name of a city."),
        lambda r: r.choice(words.CITIES),
        ("in {v}", "for {v}", "with city {v}"),
    ),
    Parameter(
        "name",
        _string("Name of a person."),
        lambda r: r.choice(words.NAMES),
        ("for {v}", "under the name {v}", "with name {v}"),
    ),
    Parameter("date", _string("Date as YYYY-MM-DD."), date, ("on {v}", "for the date {v}", "dated {v}")),
    Parameter("time", _string("Time as HH:MM."), clock, ("at {v}", "for the time {v}")),
    Parameter(
        "count",
        _kind("integer", "How many."),
        lambda r: r.randint(1, 60),
        ("with a count of {v}", "count {v}", "{v} of them"),
    ),
    Parameter(
        "minutes",
        _kind("integer", "Length in minutes."),
        lambda r: r.randint(1, 180),
        ("for {v} minutes", "lasting {v} minutes"),
    ),
    Parameter(
        "price",
        _kind("number", "Price in euros."),
        price,
        ("for {v} euros", "at a price of {v}", "costing {v} euros"),
    ),
    Parameter(
        "weight",
        _kind("number", "Weight in kilograms."),
        lambda r: r.randint(1, 99) / 2,
        ("weighing {v} kilograms", "with weight {v}"),
    ),
    Parameter(
        "urgent",
        _kind("boolean", "Whether it is urgent."),
        lambda r: r.random() < 0.5,
        ("urgent: {v}", "with urgent set to {v}"),
    ),
    Parameter(
        "public",
        _kind("boolean", "Whether everyone may see it."),
        lambda r: r.random() < 0.5,
        ("public: {v}", "with public set to {v}"),
    ),
    Parameter(
        "tags",
        {**_ARRAY, "description": "Tags to attach."},
        several(words.COLOURS + words.NOUNS),
        ("tagged {v}", "with the tags {v}"),
    ),
    Parameter(
        "guests",
        {**_ARRAY, "description": "Names of the guests."},
        several(words.NAMES),
        ("with the guests {v}", "inviting {v}"),
    ),
    Parameter(
        "unit",
        _enum("Unit of the result.", "celsius", "fahrenheit"),
        _one_of("celsius", "fahrenheit"),
        ("in {v}", "using {v}"),
    ),
    Parameter(
        "priority",
        _enum("Priority.", "low", "normal", "high"),
        _one_of("low", "normal", "high"),
        ("with {v} priority", "priority {v}"),
    ),
    Parameter(
        "size",
        _enum("Size.", "small", "medium", "large"),
        _one_of("small", "medium", "large"),
        ("in size {v}", "size {v}"),
    ),
    Parameter(
        "colour", _string("A colour."), lambda r: r.choice(words.COLOURS), ("in {v}", "with the colour {v}")
    ),
    Parameter("email", _string("An email address."), email, ("to {v}", "using the address {v}")),
    Parameter("path", _string("Path of a file."), path, ("at {v}", "with the path {v}")),
    Parameter("title", _string("A short title."), title, ('called "{v}"', 'with the title "{v}"')),
    Parameter(
        "text",
        _string("The text."),
        lambda r: title(r) + " " + title(r),
        ('saying "{v}"', 'with the text "{v}"'),
    ),
    Parameter("code", _string("A reference code."), code, ("with code {v}", "for the code {v}")),
    Parameter(
        "item",
        _string("Name of an item."),
        lambda r: r.choice(words.NOUNS),
        ("of the item {v}", "with item {v}"),
    ),
    Parameter("food", _string("A food."), lambda r: r.choice(words.FOODS), ("with {v}", "of {v}")),
    Parameter(
        "day",
        _enum("Day of the week.", *words.WEEKDAYS),
        lambda r: r.choice(words.WEEKDAYS),
        ("on {v}", "for {v}"),
    ),
    Parameter(
        "box",
        {
            "type": "object",
            "description": "Width and height.",
            "properties": {"width": {"type": "integer"}, "height": {"type": "integer"}},
        },
        lambda r: {"width": r.randint(1, 99), "height": r.randint(1, 99)},
        ("with box {v}", "and the box {v}"),
    ),
    Parameter(
        "numbers",
        {"type": "array", "items": {"type": "integer"}, "description": "Numbers."},
        lambda r: [r.randint(0, 99) for _ in range(r.randint(2, 4))],
        ("with the numbers {v}", "for {v}"),
    ),
)


def generic(rng: random.Random) -> Parameter:
    """A parameter with an unseen name, said by its name."""
    noun, other = rng.choice(words.NOUNS), rng.choice(words.ADJECTIVES + words.COMMON)
    name = rng.choice((noun, f"{other}_{noun}", f"{noun}_id", f"max_{noun}", f"{noun}_name", f"is_{other}"))
    said = name.replace("_", " ")
    kind = rng.randrange(4)
    if name.startswith("is_") or kind == 0:
        draw, schema = (lambda r: r.random() < 0.5), _kind("boolean", f"The {said} setting.")
    elif name.startswith("max_") or kind == 1:
        draw, schema = (lambda r: r.randint(0, 999)), _kind("integer", f"The {said}.")
    else:
        draw = rng.choice((title, code, lambda r: r.choice(words.NAMES), lambda r: invented(r)))
        schema = _string(f"The {said}.")
    return Parameter(
        name, schema, draw, (f"with {said} {{v}}", f"and {said} {{v}}", f"{name} {{v}}", f"{said}: {{v}}")
    )
