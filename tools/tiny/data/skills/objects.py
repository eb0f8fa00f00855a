"""JSON answers to a described shape: values stand in a text, keys and types in a description or a schema."""

from __future__ import annotations

import json
import random
from typing import Any

from tools.tiny.data import words
from tools.tiny.data.exchange import Exchange, Thought
from tools.tiny.data.skills.parameters import POOL, Parameter, generic, spoken
from tools.tiny.data.split import Split

_TYPE_NAMES = {
    "string": "string",
    "integer": "integer",
    "number": "number",
    "boolean": "boolean",
    "object": "object",
}
_ASK = (
    "Answer with a JSON object.", "Reply in JSON.", "Give the answer as a JSON object.",
    "Write this as JSON.",
    "Return only JSON.",
)  # fmt: skip
_INTRO = ("Here is a record.", "Facts:", "Data:", "Read this:", "A note says:", "")


def shaped(rng: random.Random, split: Split) -> Exchange:
    """Fields given as a list, a sentence or a record; keys and types described in words or by a schema."""
    fields = _fields(rng)
    value: dict[str, Any] = {p.name: p.draw(rng) for p in fields}
    if rng.random() < 0.25:
        value = _nest(rng, value)
    facts, shape = _facts(rng, value), _shape(rng, fields, value)
    ask = rng.choice(_ASK)
    indented = rng.random() < 0.15
    if indented:
        ask += " Indent it by two spaces."
    user = "\n\n".join(
        rng.sample([facts, f"{ask} {shape}"], 2) if rng.random() < 0.3 else [facts, f"{ask} {shape}"]
    )
    return _exchange(user, value, indented)


def listed(rng: random.Random, split: Split) -> Exchange:
    """Several records as an array of equal objects."""
    kinds = rng.sample(
        (("name", words.NAMES), ("city", words.CITIES), ("food", words.FOODS), ("job", words.JOBS)), 2
    )
    count_key = rng.choice(("age", "count", "year"))
    rows = [
        {**{key: rng.choice(pool) for key, pool in kinds}, count_key: rng.randint(1, 99)}
        for _ in range(rng.randint(2, 5))
    ]
    lines = "\n".join(rng.choice(("- ", "* ", "")) + ", ".join(map(spoken, row.values())) for row in rows)
    keys = ", ".join(rows[0])
    ask = rng.choice(
        ("Write these as a JSON array of objects with the keys {k}.", "As JSON, a list of objects with {k}:")
    )
    return _exchange(f"{ask.format(k=keys)}\n{lines}", rows, False)


def plain_list(rng: random.Random, split: Split) -> Exchange:
    """Words or numbers as one array, or under one key."""
    items: list[Any] = rng.choice(
        (rng.sample(words.NOUNS, 4), rng.sample(words.FOODS, 5), [rng.randint(0, 99) for _ in range(5)])
    )[: rng.randint(2, 5)]
    if rng.random() < 0.5:
        return _exchange(f"Write these as a JSON array: {spoken(items)}", items, False)
    key = rng.choice(words.NOUNS) + "s"
    return _exchange(
        f'Write a JSON object whose key "{key}" holds this list: {spoken(items)}', {key: items}, False
    )


def _exchange(user: str, value: Any, indented: bool) -> Exchange:
    answer = json.dumps(value, ensure_ascii=False, indent=2 if indented else None)
    keys = ", ".join(
        value if isinstance(value, dict) else value[0] if isinstance(value[0], dict) else ["no keys"]
    )
    thought = Thought(
        "The answer is JSON.", f"The keys: {keys}.", "I take the values from the text and add nothing."
    )
    return Exchange("json", user, answer, thought, rule="json")


def _fields(rng: random.Random) -> list[Parameter]:
    wanted, chosen = rng.randint(1, 6), {}
    while len(chosen) < wanted:
        parameter = rng.choice(POOL) if rng.random() < 0.6 else generic(rng)
        chosen.setdefault(parameter.name, parameter)
    return list(chosen.values())


def _nest(rng: random.Random, value: dict[str, Any]) -> dict[str, Any]:
    """Put the last fields under one inner key."""
    keys = list(value)
    if len(keys) < 3:
        return value
    cut = rng.randint(1, len(keys) - 2)
    inner = rng.choice(("details", "info", "data", rng.choice(words.NOUNS)))
    if inner in value:
        return value
    return {**{k: value[k] for k in keys[:cut]}, inner: {k: value[k] for k in keys[cut:]}}


def _facts(rng: random.Random, value: dict[str, Any]) -> str:
    flat = [(k, v) for key, item in value.items() for k, v in (_inner(key, item))]
    style = rng.randrange(3)
    said = [(key.replace("_", " ") if style else key, spoken(item)) for key, item in flat]
    if style == 0:
        body = "\n".join(f"{key}: {item}" for key, item in said)
    elif style == 1:
        body = " ".join(f"The {key} is {item}." for key, item in said)
    else:
        body = "; ".join(f"{key} = {item}" for key, item in said)
    intro = rng.choice(_INTRO)
    return f"{intro}\n{body}" if intro else body


def _inner(key: str, item: Any) -> list[tuple[str, Any]]:
    """Nested fields are told one by one; a box keeps its two sides together."""
    if isinstance(item, dict) and set(item) != {"width", "height"}:
        return list(item.items())
    return [(key, item)]


def _shape(rng: random.Random, fields: list[Parameter], value: dict[str, Any]) -> str:
    schemas = {p.name: p.schema for p in fields}
    if rng.random() < 0.3:
        return "Schema: " + json.dumps(_schema(value, schemas), ensure_ascii=False)
    described = []
    for key, item in value.items():
        if key not in schemas:
            inner = ", ".join(_named(k, schemas[k]) for k in item)
            described.append(f"{key} (object with {inner})")
        else:
            described.append(_named(key, schemas[key]))
    return rng.choice(("Keys: {k}.", "Use the keys {k}.", "The keys are {k}.")).format(k=", ".join(described))


def _named(key: str, schema: dict[str, Any]) -> str:
    kind = schema["type"]
    if kind == "array":
        return f"{key} (array of {schema['items']['type']}s)"
    return f"{key} ({_TYPE_NAMES[kind]})"


def _schema(value: dict[str, Any], schemas: dict[str, dict[str, Any]]) -> dict[str, Any]:
    properties = {}
    for key, item in value.items():
        schema = schemas.get(key) or _schema(item, schemas)
        properties[key] = {name: part for name, part in schema.items() if name != "description"}
    return {"type": "object", "properties": properties, "required": list(value)}
