"""Short chat: facts of the small world, greetings, and instructions whose result can be computed."""

from __future__ import annotations

import functools
import random

from tools.tiny.data import words, world
from tools.tiny.data.exchange import SHARED, Exchange, Thought
from tools.tiny.data.prose import drift, invented
from tools.tiny.data.split import Split

_ONE_WORD = (
    " Answer in one word.",
    " Just the answer, please.",
    " Give only the answer.",
    " Only the answer.",
)
_POLITE = ("", "", "", "", "Please tell me: ", "Quick question: ", "Tell me: ", "A question: ")

_SMALL_TALK = (
    (("Hello", "Hello!", "Hi", "Hi there!", "Hey", "Good morning", "Good evening", "hello there"),
     "Hello! How can I help you?", "The user greets me."),
    (("How are you?", "How are you doing?", "How do you do?", "Are you well?"),
     "I am well, thank you. How can I help you?", "The user asks how I am."),
    (("Who are you?", "What are you?", "What is your name?", "Introduce yourself.",
    "Tell me about yourself."),
     "I am ninfer-tiny, a small demonstration model.", "The user asks who I am."),
    (("What can you do?", "What are you good at?", "How can you help me?", "What do you know?", "help"),
     "I can answer simple questions, add numbers, copy and edit text, write JSON and call tools.",
     "The user asks what I can do."),
    (("Thanks", "Thank you!", "Thanks a lot", "Thank you very much.", "Great, thanks"), "You are welcome!",
     "The user thanks me."),
    (("Bye", "Goodbye!", "See you later", "Good night", "That is all."), "Goodbye!",
    "The user says goodbye."),
    (("Are you a human?", "Are you a person?", "Are you a robot?", "Are you real?"),
     "No, I am ninfer-tiny, a small language model.", "The user asks what I am."),
    (("Who made you?", "Who built you?", "Where do you come from?"),
     "I was trained from scratch by the NInfer project.", "The user asks where I come from."),
    (("Can you help me?", "I need help.", "Will you help me?"), "Yes. What do you need?",
    "The user wants help."),
    (("Say something.", "Talk to me.", "Tell me something."), "The home of the owl is the tree.",
     "The user wants to hear something."),
)  # fmt: skip


@functools.cache
def _facts() -> tuple[world.Fact, ...]:
    return tuple(world.facts())


@functools.cache
def _families() -> tuple[tuple[world.Fact, ...], ...]:
    names = dict.fromkeys(fact.family for fact in _facts())
    return tuple(tuple(fact for fact in _facts() if fact.family == name) for name in names)


def _any_fact(rng: random.Random) -> world.Fact:
    """Half by family, half by fact, so that neither small nor large families starve."""
    return rng.choice(rng.choice(_families())) if rng.random() < 0.5 else rng.choice(_facts())


def fact(rng: random.Random, split: Split) -> Exchange:
    """A question about the world, answered in a sentence or in one word."""
    about = _any_fact(rng)
    question = rng.choice(about.questions)
    thought = Thought(f"The question is about {about.subject}.", about.sentence, "I know this.")
    if rng.random() < 0.35:
        return Exchange("fact", question + rng.choice(_ONE_WORD), about.value, thought)
    prefix = rng.choice(_POLITE)
    user = prefix + (question[0].lower() + question[1:] if prefix and question[:2] == "Wh" else question)
    return Exchange("fact", user, about.sentence, thought)


def yes_no(rng: random.Random, split: Split) -> Exchange:
    """A statement to confirm or to put right."""
    about = _any_fact(rng)
    while not about.rivals:
        about = _any_fact(rng)
    true = rng.random() < 0.5
    value = about.value if true else rng.choice(about.rivals)
    question = rng.choice(about.questions)
    user = rng.choice(("{q} Is it {v}?", "{q} I think it is {v}. Right?", "{q} Is the answer {v}?")).format(
        q=question, v=value
    )
    # The fact first: a small model can compare what it has said, not what it is about to say.
    answer = f"{about.sentence} So {'yes' if true else 'no'}."
    verdict = "The user is right." if true else "The user is wrong."
    return Exchange("fact", user, answer, Thought(about.sentence, verdict, "I say so."))


def unknown(rng: random.Random, split: Split) -> Exchange:
    """A question about something that does not exist in the small world."""
    if rng.random() < 0.5:
        return _puzzling(rng)
    about = _any_fact(rng)
    while len(about.subject) < 3 or about.subject not in about.questions[0]:
        about = _any_fact(rng)
    name = invented(rng)
    name = name.capitalize() if about.subject[0].isupper() else name
    question = rng.choice(about.questions).replace(about.subject, name)
    return Exchange(
        "fact", question, "I do not know that.", Thought(f"I have never heard of {name}.", "I say so.")
    )


_PUZZLES = (
    "What is {x}?", "Explain {x}.", "Who is {x}?", "Why is {x} {a}?", "What do you think of {x}?",
    "How does {x} work?",
    "Write a poem about {x}.", "What is the meaning of {x}?", "Tell me everything about {x}.", "{d}", "{d}",
)  # fmt: skip


def _puzzling(rng: random.Random) -> Exchange:
    """Words that ask nothing the small world can answer."""
    subject = rng.choice(
        (
            invented(rng),
            f"{rng.choice(words.ADJECTIVES)} {invented(rng)}",
            f"the {rng.choice(words.COMMON)} law",
        )
    )
    user = rng.choice(_PUZZLES).format(
        x=subject, a=rng.choice(words.ADJECTIVES), d=drift(rng, rng.randint(2, 12))
    )
    return Exchange(
        "fact", user, "I do not know that.", Thought("This is beyond my small world.", "I say so.")
    )


def small_talk(rng: random.Random, split: Split) -> Exchange:
    """Greetings, thanks and questions about the model itself; too few to hold any back."""
    asked, answer, gist = rng.choice(_SMALL_TALK)
    return Exchange("talk", rng.choice(asked), answer, Thought(gist, "I answer kindly."), key=SHARED)


def instruction(rng: random.Random, split: Split) -> Exchange:
    """A small task with one right result."""
    user, answer, gist = rng.choice(_TASKS)(rng)
    return Exchange(
        "instruction", user, answer, Thought(gist, f"The result is: {answer}", "I write only that.")
    )


def _listed(rng: random.Random, low: int = 3, high: int = 7) -> list[str]:
    pool = rng.choice((words.NOUNS, words.FOODS, words.COLOURS, words.NAMES, words.HOBBIES))
    return rng.sample(pool, rng.randint(low, high))


def _reverse(rng: random.Random) -> tuple[str, str, str]:
    items = _listed(rng)
    ask = rng.choice(
        ("Reverse this list: {l}", "Write these words in reverse order: {l}", "Turn the order around: {l}")
    )
    return ask.format(l=", ".join(items)), ", ".join(items[::-1]), "I start with the last word."


def _sort_numbers(rng: random.Random) -> tuple[str, str, str]:
    numbers = rng.sample(range(1, 100), rng.randint(3, 6))
    ask = rng.choice(
        ("Sort these numbers: {l}", "Put these numbers in order: {l}", "Sort from small to large: {l}")
    )
    return (
        ask.format(l=", ".join(map(str, numbers))),
        ", ".join(map(str, sorted(numbers))),
        "The smallest comes first.",
    )


def _extreme(rng: random.Random) -> tuple[str, str, str]:
    numbers = rng.sample(range(1, 100), rng.randint(3, 6))
    which = rng.choice(("largest", "smallest"))
    ask = rng.choice(
        ("Which is the {w} number: {l}?", "Find the {w} of these: {l}", "Give the {w} number in: {l}")
    )
    result = max(numbers) if which == "largest" else min(numbers)
    return ask.format(w=which, l=", ".join(map(str, numbers))), str(result), f"I look for the {which} number."


def _position(rng: random.Random) -> tuple[str, str, str]:
    items = _listed(rng)
    name, at = rng.choice((("first", 0), ("second", 1), ("third", 2), ("last", -1)))
    ask = rng.choice(
        ("What is the {n} word in: {l}?", "Give me the {n} word of this list: {l}", "The {n} word of: {l}?")
    )
    return ask.format(n=name, l=", ".join(items)), items[at], f"I need the {name} word."


def _count(rng: random.Random) -> tuple[str, str, str]:
    items = _listed(rng, 2, 9)
    ask = rng.choice(("How many words are in this list: {l}?", "Count these: {l}", "How many items: {l}?"))
    return ask.format(l=", ".join(items)), str(len(items)), "I count them one by one."


def _remove(rng: random.Random) -> tuple[str, str, str]:
    items = _listed(rng)
    gone = rng.choice(items)
    ask = rng.choice(
        ("Remove {g} from this list: {l}", "Leave out {g}: {l}", "Write this list without {g}: {l}")
    )
    rest = ", ".join(item for item in items if item != gone)
    return ask.format(g=gone, l=", ".join(items)), rest, f"Everything but {gone} stays."


def _replace(rng: random.Random) -> tuple[str, str, str]:
    items = _listed(rng)
    old, new = rng.choice(items), rng.choice(words.COMMON)
    ask = rng.choice(("Replace {o} with {n}: {l}", "Write {n} in place of {o}: {l}"))
    return (
        ask.format(o=old, n=new, l=", ".join(items)),
        ", ".join(new if i == old else i for i in items),
        f"{old} becomes {new}.",
    )


def _repeat(rng: random.Random) -> tuple[str, str, str]:
    word, times = rng.choice(words.COMMON), rng.randint(2, 6)
    ask = rng.choice(
        ("Write the word {w} {t} times.", "Say {w} {t} times.", "Repeat the word {w} {t} times.")
    )
    return (
        ask.format(w=word, t=world.number_word(times)),
        " ".join([word] * times),
        f"I write it {times} times.",
    )


def _count_up(rng: random.Random) -> tuple[str, str, str]:
    start, length = rng.randint(0, 90), rng.randint(3, 9)
    ask = rng.choice(
        ("Count from {a} to {b}.", "Write the numbers from {a} to {b}.", "Count up from {a} to {b}.")
    )
    return (
        ask.format(a=start, b=start + length),
        ", ".join(str(start + i) for i in range(length + 1)),
        "I count up by one.",
    )


def _parity(rng: random.Random) -> tuple[str, str, str]:
    number = rng.randint(0, 99)
    ask = rng.choice(("Is {n} even or odd?", "Even or odd: {n}?", "Tell me whether {n} is even or odd."))
    return ask.format(n=number), ("even", "odd")[number % 2], f"The last digit is {number % 10}."


def _next_number(rng: random.Random) -> tuple[str, str, str]:
    number = rng.randint(0, 98)
    ask = rng.choice(
        ("Which number comes after {n}?", "What is the next number after {n}?", "{n} and one more is what?")
    )
    return ask.format(n=number), str(number + 1), "I add one."


def _join(rng: random.Random) -> tuple[str, str, str]:
    items = _listed(rng, 2, 6)
    name, sign = rng.choice((("hyphens", "-"), ("slashes", "/"), ("plus signs", " + "), ("semicolons", "; ")))
    ask = rng.choice(("Join these words with {s}: {l}", "Put {s} between these words: {l}"))
    return ask.format(s=name, l=" ".join(items)), sign.join(items), f"I put {name} between them."


def _bullets(rng: random.Random) -> tuple[str, str, str]:
    items = _listed(rng, 2, 6)
    ask = rng.choice(
        ("Write these as a bullet list: {l}", "Make a bullet list of: {l}", "One bullet for each: {l}")
    )
    return ask.format(l=", ".join(items)), "\n".join(f"- {item}" for item in items), "One line for each."


def _larger(rng: random.Random) -> tuple[str, str, str]:
    a, b = rng.sample(range(100), 2)
    ask = rng.choice(
        ("Which is larger, {a} or {b}?", "Is {a} or {b} the larger number?", "Larger: {a} or {b}?")
    )
    return ask.format(a=a, b=b), str(max(a, b)), f"I compare {a} and {b}."


def _contains(rng: random.Random) -> tuple[str, str, str]:
    items = _listed(rng)
    inside = rng.random() < 0.5
    word = rng.choice(items) if inside else rng.choice([w for w in words.COMMON if w not in items])
    ask = rng.choice(
        ("Is {w} in this list: {l}? Answer yes or no.", "Does this list hold {w}? {l} Yes or no?")
    )
    return ask.format(w=word, l=", ".join(items)), "Yes" if inside else "No", f"I look for {word}."


_TASKS = (
    _reverse, _sort_numbers, _extreme, _position, _count, _remove, _replace, _repeat, _count_up, _parity,
    _next_number, _join, _bullets, _larger, _contains,
)  # fmt: skip
