"""The text that ends thinking where a budget is used up.

Owns what of it the operator may replace and that it always closes.
Source: ``spec/output.yaml`` ``early_close``.
"""

from __future__ import annotations

from ninfer import spec
from ninfer.output.thinking import ThinkingSplitter
from ninfer.prompt.tokenizer import Tokenizer


def early_close_text(message: str | None = None) -> str:
    """The guidance, or ``message`` in its place, with a close of thinking unless it has one."""
    rules = spec.document("output")["thinking"]["early_close"]
    text: str = rules["guidance"] if message is None else message
    splitter = ThinkingSplitter("reasoning")
    for _ in splitter.feed(text):
        pass
    if splitter.channel == "content":
        return text
    return text + str(rules["after_close"] if splitter.closing else rules["end"])


def early_close_tokens(tokenizer: Tokenizer, message: str | None = None) -> tuple[int, ...]:
    """Its ids: the close that ends thinking is the control token where there is one, all else plain text."""
    close: str = spec.document("output")["thinking"]["close"]
    text = early_close_text(message)
    end = _closing_at(text, close) + len(close)
    before, after = tokenizer.encode(text[: end - len(close)]), tokenizer.encode(text[end:])
    return (*before, *_close_tokens(tokenizer, close), *after)


def _close_tokens(tokenizer: Tokenizer, close: str) -> list[int]:
    control = tokenizer.control_tokens.get(close)
    return tokenizer.encode(close) if control is None else [control]


def _closing_at(text: str, close: str) -> int:
    """Where the close stands that ends thinking: the first that a line break follows."""
    breaks = tuple(spec.document("output")["thinking"]["line_breaks"])
    at = text.index(close)
    while not text.startswith(breaks, at + len(close)):
        at = text.index(close, at + 1)
    return at
