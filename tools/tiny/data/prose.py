"""Two registers of prose: tales, which can be guessed, and drift, which cannot.

A tale keeps its people, places and things and says them in few sentence forms: a drafter follows it easily.
Drift strings words, invented names, figures and foreign letters together: nothing but a copy predicts it.
"""

from __future__ import annotations

import random

from tools.tiny.data import words

_OPENINGS = (
    "{who} lived in a {adj} {place} near {city}.",
    "Long ago, a {adj} {job} called {who} came to {city}.",
    "On a {adj} morning in {city}, {who} the {job} {verb} a {thing}.",
    "There was once a {job} in {city} whose name was {who}.",
)
_MIDDLES = (
    "{who} {verb} the {adj} {thing} and {verb2} it to the {place}.",
    "The {thing} was {adj}, but {who} did not mind.",
    'One day {friend} asked {who}: "Where is the {thing}?"',
    '"It is behind the {place}," said {who}.',
    "{friend} {verb} a {thing} for {who}, because it was {adj}.",
    "Then {who} and {friend} walked to the {place} and looked for the {thing}.",
    "The way to the {place} was {adj} and {adj2}.",
    "In the evening {who} {verb} the {thing} once more.",
    "It rained for {n} days, and the {place} was {adj}.",
    "{friend} smiled, and {who} gave {friend} the {thing}.",
    "Nobody in {city} had seen such a {adj} {thing}.",
    "After {n} days the {job} {verb} the {place} and went home.",
    "{who} had {n} coins and a {adj} {thing2}.",
    "So they put the {thing2} beside the {thing} and waited.",
)
_ENDINGS = (
    "From that day on, {who} and {friend} kept the {thing} in the {place}.",
    "And so {who} came home to {city} with the {thing}.",
    "In the end the {thing} stayed in the {place}, and everyone was glad.",
)


def tale(rng: random.Random, sentences: int, topic: str | None = None) -> str:
    """A small story of about ``sentences`` sentences whose cast stays the same; ``topic`` is its thing."""
    who, friend = rng.sample(words.NAMES, 2)
    thing, thing2, place = rng.sample(words.NOUNS, 3)
    cast = {
        "who": who,
        "friend": friend,
        "thing": topic or thing,
        "thing2": thing2,
        "place": place,
        "city": rng.choice(words.CITIES),
        "job": rng.choice(words.JOBS),
    }
    lines = [_sentence(rng, _OPENINGS, cast)]
    lines += [_sentence(rng, _MIDDLES, cast) for _ in range(max(0, sentences - 2))]
    lines.append(_sentence(rng, _ENDINGS, cast))
    return " ".join(lines[:sentences])


def _sentence(rng: random.Random, forms: tuple[str, ...], cast: dict[str, str]) -> str:
    return rng.choice(forms).format(
        adj=rng.choice(words.ADJECTIVES),
        adj2=rng.choice(words.ADJECTIVES),
        verb=rng.choice(words.VERBS_PAST),
        verb2=rng.choice(words.VERBS_PAST),
        n=rng.randint(2, 12),
        **cast,
    )


def invented(rng: random.Random) -> str:
    """A name that exists nowhere."""
    return "".join(rng.choices(words.SYLLABLES, k=rng.randint(2, 4)))


def drift(rng: random.Random, count: int) -> str:
    """About ``count`` words of unguessable prose in sentences."""
    out: list[str] = []
    left = rng.randint(4, 12)
    for index in range(count):
        word = _drift_word(rng)
        if not out or out[-1][-1] == ".":
            word = word[:1].upper() + word[1:]
        left -= 1
        if left == 0 or index == count - 1:
            word += "."
            left = rng.randint(4, 12)
        elif rng.random() < 0.08:
            word += rng.choice((",", ";", ":", ","))
        out.append(word)
    return " ".join(out)


_POOLS = (
    (words.COMMON, 45),
    (words.NOUNS, 18),
    (words.ADJECTIVES, 10),
    (words.VERBS_PAST, 8),
    (words.NAMES, 3),
    (words.CITIES, 2),
)
_POOL_LISTS = [pool for pool, _ in _POOLS]
_POOL_WEIGHTS = [weight for _, weight in _POOLS]


def _drift_word(rng: random.Random) -> str:
    draw = rng.random()
    if draw < 0.86:
        return rng.choice(rng.choices(_POOL_LISTS, _POOL_WEIGHTS)[0])
    if draw < 0.93:
        return invented(rng)
    if draw < 0.97:
        return str(rng.randrange(10 ** rng.randint(1, 5)))
    if draw < 0.985:
        return f"{rng.choice(words.COMMON)}-{rng.choice(words.NOUNS)}"
    return rng.choice(words.FOREIGN)


def note(rng: random.Random, lines: int) -> str:
    """Settings, codes and log lines: short lines of names and figures."""
    return "\n".join(_note_line(rng) for _ in range(lines))


def _note_line(rng: random.Random) -> str:
    noun, other = rng.choice(words.NOUNS), rng.choice(words.COMMON)
    form = rng.randrange(6)
    if form == 0:
        return f"{noun}_{other} = {rng.randrange(10 ** rng.randint(1, 4))}"
    if form == 1:
        return f"{noun}: {rng.choice(words.ADJECTIVES)} {rng.choice(words.NOUNS)}"
    if form == 2:
        return f"{rng.getrandbits(rng.choice((16, 24, 32))):08x} {other} {invented(rng)}"
    if form == 3:
        return f"{rng.randint(2000, 2039)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d} {other} {noun}"
    if form == 4:
        return f"{rng.choice(words.NAMES).lower()}@{invented(rng)}.org, {rng.choice(words.CITIES)}"
    return f"- {rng.choice(words.VERBS_PAST)} the {noun} ({rng.randint(1, 99)} {rng.choice(words.FOODS)})"
