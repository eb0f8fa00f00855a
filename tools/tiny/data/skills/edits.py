"""Edits of numbered files: change, insert or delete lines and give the whole file back, numbered anew."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tools.tiny.data import corpus, prose
from tools.tiny.data.exchange import Exchange, Thought
from tools.tiny.data.split import Split

_GIVE = (
    "Give the whole file back, numbered.", "Return the complete file with line numbers.",
    "Write the new file with its line numbers.", "Show the whole numbered file.",
)  # fmt: skip
_HEAD = ("Here is a file:", "File:", "This is the file:", "Edit this file:", "The file:")


@dataclass(frozen=True, slots=True)
class _Edit:
    ask: str
    lines: list[str]
    gist: str
    plan: str


def edit(rng: random.Random, split: Split) -> Exchange:
    """One edit of one file of 3 to 26 lines."""
    lines = _file(rng, split)
    change = rng.choice((_change, _change, _insert, _delete))(rng, lines, split)
    parts = [f"{rng.choice(_HEAD)}\n{numbered(lines)}", change.ask + rng.choice(_GIVE)]
    if rng.random() < 0.25:
        parts.reverse()
    check = f"The new file has {len(change.lines)} lines."
    return Exchange(
        "edit", "\n\n".join(parts), numbered(change.lines), Thought(change.gist, change.plan, check),
        key="\n".join(lines),
    )  # fmt: skip


def numbered(lines: list[str]) -> str:
    """The lines behind their numbers, from 1."""
    return "\n".join(f"{number}: {line}" for number, line in enumerate(lines, 1))


def _file(rng: random.Random, split: Split) -> list[str]:
    count = rng.randint(3, 26) if rng.random() < 0.5 else rng.randint(3, 12)
    kind = rng.random()
    if kind < 0.6:
        text = corpus.excerpt(rng, split, count * 40)
    elif kind < 0.85:
        text = prose.note(rng, count)
    else:
        text = prose.tale(rng, count).replace(". ", ".\n")
    lines = [line for line in text.split("\n")[:count] if line.strip()]
    return lines if len(lines) >= 3 else _file(rng, split)


def _new_line(rng: random.Random, split: Split) -> str:
    kind = rng.random()
    if kind < 0.5:
        return rng.choice(corpus.excerpt(rng, split, 120).split("\n")).strip() or "pass"
    if kind < 0.8:
        return prose.note(rng, 1)
    return prose.drift(rng, rng.randint(2, 8))


def _change(rng: random.Random, lines: list[str], split: Split) -> _Edit:
    at, new = rng.randint(1, len(lines)), _new_line(rng, split)
    ask = rng.choice(
        (
            "Change line {n} to: {t}",
            "Replace line {n} with: {t}",
            "Line {n} should read: {t}",
            "Set line {n} to: {t}",
        )
    ).format(n=at, t=new)
    edited = [*lines[: at - 1], new, *lines[at:]]
    return _Edit(ask + "\n", edited, f"Line {at} gets a new text.", "All other lines stay as they are.")


def _insert(rng: random.Random, lines: list[str], split: Split) -> _Edit:
    new = _new_line(rng, split)
    after = rng.randint(0, len(lines))
    if after == 0 or (after < len(lines) and rng.random() < 0.4):
        ask = f"{rng.choice(('Insert before', 'Add before'))} line {after + 1}: {new}"
    else:
        ask = f"{rng.choice(('Insert after', 'Add after'))} line {after}: {new}"
    edited = [*lines[:after], new, *lines[after:]]
    return _Edit(
        ask + "\n", edited, f"The new line becomes line {after + 1}.", "The lines after it move down by one."
    )


def _delete(rng: random.Random, lines: list[str], split: Split) -> _Edit:
    first = rng.randint(1, len(lines))
    last = min(len(lines), first + rng.choice((0, 0, 0, 1, 2)))
    if last - first + 1 == len(lines):
        first = last
    if first == last:
        ask, gist = f"{rng.choice(('Delete', 'Remove', 'Drop'))} line {first}.", f"Line {first} goes."
    else:
        ask = f"{rng.choice(('Delete', 'Remove', 'Drop'))} lines {first} to {last}."
        gist = f"Lines {first} to {last} go."
    edited = lines[: first - 1] + lines[last:]
    return _Edit(ask + " ", edited, gist, f"The lines after it move up by {last - first + 1}.")
