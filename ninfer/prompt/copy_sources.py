"""Texts beside the prompt from which an answer may be copied: tool results without their line numbers.

Owns their recognition and tokens. A tool that shows a file with numbered lines makes the model write lines
without numbers, which match nothing in the prompt. The prompt itself is never touched. Rules:
``spec/speculation.yaml`` ``numbered``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ninfer import spec
from ninfer.prompt.conversation import Conversation, TextPart
from ninfer.prompt.tokenizer import TokenArray

Encode = Callable[[Sequence[str]], list[TokenArray]]
# Characters that are tokenised between two looks at the budget and at who is still waiting.
_STEP = 16_384


def copy_sources(
    conversation: Conversation, encode: Encode, budget: int, cancelled: Callable[[], bool] = lambda: False
) -> tuple[TokenArray, ...]:
    """The de-numbered texts of all tool results, in order, as far as ``budget`` tokens go.

    ``cancelled`` is asked around every piece of work; then what is there so far is returned.
    """
    sources: list[TokenArray] = []
    for text in _derived(conversation):
        tokens = _encoded(text, encode, budget, cancelled)
        if len(tokens):
            sources.append(tokens)
            budget -= len(tokens)
        if budget <= 0 or cancelled():
            break
    return tuple(sources)


def without_numbers(text: str) -> Iterator[str]:
    """Every run of consecutively numbered lines in ``text``, without the numbers.

    Indentation and line ends stay as they are.
    """
    least = spec.document("speculation")["numbered"]["minimum_lines"]
    run: list[str] = []
    number = -1
    for line in text.split("\n"):
        found = _numbered_line().match(line)
        follows = found is not None and int(found["number"]) == number + 1
        if not follows:
            if len(run) >= least:
                yield "\n".join(run) + "\n"
            run = []
        if found is not None:
            run.append(found["rest"])
            number = int(found["number"])
    if len(run) >= least:
        yield "\n".join(run)


def _derived(conversation: Conversation) -> Iterator[str]:
    for message in conversation.messages:
        if message.role == "tool":
            yield from without_numbers("".join(p.text for p in message.parts if isinstance(p, TextPart)))


def _encoded(text: str, encode: Encode, budget: int, cancelled: Callable[[], bool]) -> TokenArray:
    """The text's tokens, at most ``budget``; cut only where a line begins: the tokenizer cuts there too."""
    pieces, total = [np.zeros(0, np.int32)], 0
    for piece in _pieces(text):
        if cancelled() or total >= budget:
            break
        pieces += encode([piece])
        total += len(pieces[-1])
    return np.concatenate(pieces)[:budget]


def _pieces(text: str) -> Iterator[str]:
    begin = 0
    while begin < len(text):
        cut = _line_start().search(text, min(begin + _STEP, len(text)))
        end = len(text) if cut is None else cut.end()
        yield text[begin:end]
        begin = end


@functools.cache
def _line_start() -> re.Pattern[str]:
    """Ends where a line begins that is not empty."""
    return re.compile(r"\n(?=[^\r\n])")


@functools.cache
def _numbered_line() -> re.Pattern[str]:
    """A line with its number and what follows the separator; an empty line may have lost the blank of it."""
    rules = spec.document("speculation")["numbered"]
    separators = [re.escape(separator) for separator in rules["separators"]]
    bare = [re.escape(s.rstrip(" ")) + r"(?=\r?$)" for s in rules["separators"] if s.endswith(" ")]
    prefix = re.escape(rules["prefix"])
    joined = "|".join([*separators, *bare])
    return re.compile(rf"[ \t]*{prefix}?(?P<number>[0-9]{{1,9}})(?:{joined})(?P<rest>[^\n]*)\Z")
