"""What preparing prompts costs: 1 MB of text, and a follow-up turn after a short and a long history.

    python -m tools.bench.prepare            # trains a 32,000-entry BPE on Python's own library first
    python -m tools.bench.prepare --turn 500 # longer messages

Prints one line a fact; times are medians. A follow-up is a chat whose history has been prepared before, with
one new assistant answer and one new user message, every string a fresh object.
"""

from __future__ import annotations

import argparse
import functools
import random
import statistics
import sysconfig
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ninfer.prompt import (
    ChatTemplate,
    Conversation,
    Message,
    PromptPreparer,
    TemplateOptions,
    TextPart,
    Tokenizer,
)
from tests.support.tokenizer import resources, train

VOCABULARY = 32_033
HISTORIES = (4_096, 65_536)
CORPUS_CHARACTERS = 12_000_000


def library_text() -> str:
    """The sources of Python's standard library, in a fixed order."""
    root = Path(sysconfig.get_paths()["stdlib"])
    texts, total = [], 0
    for path in sorted(root.rglob("*.py")):
        if "site-packages" in path.parts or total > CORPUS_CHARACTERS:
            continue
        texts.append(path.read_text(encoding="utf-8", errors="replace"))
        total += len(texts[-1])
    return "".join(texts)


class Times(NamedTuple):
    """Wall-clock and processor seconds of one call, or their medians; the latter leave out other load."""

    wall_s: float
    cpu_s: float

    def in_ms(self) -> str:
        """Both for printing."""
        return f"wall_ms={self.wall_s * 1e3:.3f} cpu_ms={self.cpu_s * 1e3:.3f}"


def measured(action: Callable[[], object]) -> Times:
    """How long one call takes."""
    wall, cpu = time.perf_counter(), time.process_time()
    action()
    return Times(time.perf_counter() - wall, time.process_time() - cpu)


def median(times: Iterable[Times]) -> Times:
    """The median of each column."""
    wall, cpu = zip(*times, strict=True)
    return Times(statistics.median(wall), statistics.median(cpu))


@dataclass(slots=True)
class Figures:
    """Times of the prompt prepared for the first time and of the follow-up turn."""

    first: list[Times] = field(default_factory=list)
    follow_up: list[Times] = field(default_factory=list)
    prompt_tokens: int = 0


class Chats:
    """Conversations of random excerpts, with about ``turn`` tokens a message."""

    def __init__(self, corpus: str, turn: int, seed: int) -> None:
        self._corpus = corpus
        self._characters = 4 * turn
        self._random = random.Random(seed)

    def text(self) -> str:
        """An excerpt, never seen before."""
        start = self._random.randrange(len(self._corpus) - self._characters)
        return f"{self._random.random()} {self._corpus[start : start + self._characters]}"

    def exchange(self) -> list[Message]:
        """A user message and its answer."""
        return [Message("user", (TextPart(self.text()),)), self.answer()]

    def answer(self) -> Message:
        """An answer with as much reasoning as text."""
        half = self.text()[: self._characters // 2]
        return Message("assistant", (TextPart(half),), reasoning=self.text()[: self._characters // 2])

    def history(self, preparer: PromptPreparer, tokens: int) -> list[Message]:
        """Exchanges of at least ``tokens`` tokens in all, as ``preparer`` counts them."""
        messages = self.exchange()
        while (count := preparer.prepare(_asked([*messages, messages[0]])).token_count) < tokens:
            each = count / len(messages)
            for _ in range(max(int((tokens - count) / (2 * each)), 1)):
                messages += self.exchange()
        return messages


def _asked(messages: Iterable[Message]) -> Conversation:
    return Conversation(tuple(messages), options=TemplateOptions(preserve_thinking=True))


def _received_again(messages: Iterable[Message]) -> list[Message]:
    """Equal messages of new objects, as the next request brings them."""
    return [
        Message(
            entry.role,
            tuple(TextPart("".join([part.text, ""])) for part in entry.parts if isinstance(part, TextPart)),
            reasoning=None
            if entry.reasoning is None
            else "".join([entry.reasoning[:1], entry.reasoning[1:]]),
        )
        for entry in messages
    ]


def follow_ups(make: Callable[[], PromptPreparer], chats: Chats, repeats: int) -> Mapping[int, Figures]:
    """Both history lengths in turn, with the same new messages and a preparer each.

    Load, text and what the processor's caches hold weigh on both alike: both chats are prepared first, then
    both are followed up, each length first in every other repeat.
    """
    preparers = {tokens: make() for tokens in HISTORIES}
    counting = make()  # of its own, so that nothing measured has been seen before
    figures = {tokens: Figures() for tokens in HISTORIES}
    for repeat in range(repeats):
        question = Message("user", (TextPart(chats.text()),))
        new = [chats.answer(), Message("user", (TextPart(chats.text()),))]
        seconds: dict[int, Conversation] = {}
        for tokens, preparer in preparers.items():
            history = [*chats.history(counting, tokens), question]
            first = _asked(history)
            seconds[tokens] = _asked([*_received_again(history), *_received_again(new)])
            figures[tokens].first.append(measured(functools.partial(preparer.prepare, first)))
        for tokens in HISTORIES if repeat % 2 else reversed(HISTORIES):
            prepare = functools.partial(preparers[tokens].prepare, seconds[tokens])
            figures[tokens].follow_up.append(measured(prepare))
            figures[tokens].prompt_tokens = prepare().token_count
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turn", type=int, default=250, help="tokens a message, about")
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    corpus = library_text()
    files = resources(train([corpus[:CORPUS_CHARACTERS]], VOCABULARY))
    tokenizer = Tokenizer.from_resources(files["tokenizer.json"], files["tokenizer_config.json"])
    tokenizer.encode("warm up")
    for name, text in (
        ("source code", corpus[-1_000_000:]),
        ("one run of letters", "abcdefghij" * 100_000),
        ("spaces", " " * 1_000_000),
        ("digits", "1234567890" * 100_000),
    ):
        times = median(measured(functools.partial(tokenizer.encode_ordinary, [text])) for _ in range(5))
        print(f"tokenise_1mb text={name!r} {times.in_ms()}")
    template = ChatTemplate(files["chat_template.jinja"], files["tokenizer_config.json"])
    chats = Chats(corpus, arguments.turn, seed=0)
    figures = follow_ups(lambda: PromptPreparer(tokenizer, template), chats, arguments.repeats)
    medians = []
    for figure in figures.values():
        print(f"first_time prompt_tokens={figure.prompt_tokens} {median(figure.first).in_ms()}")
        print(f"follow_up prompt_tokens={figure.prompt_tokens} {median(figure.follow_up).in_ms()}")
        medians.append(median(figure.follow_up))
    wall, cpu = (long / short for short, long in zip(*medians, strict=True))
    print(f"follow_up_ratio_64k_to_4k wall={wall:.3f} cpu={cpu:.3f} (target 1.5)")


if __name__ == "__main__":
    main()
