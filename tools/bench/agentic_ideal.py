"""What an ideal prefix cache would reach: unbounded memory and a resume point at every 64 tokens.

Prompts are rendered here with the model's own template and tokenizer, so any server of it can be judged.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ninfer.prompt import Conversation, Message, TemplateOptions, TextPart
from ninfer.server.served_model import ModelChoices, open_served_model

Tokens = npt.NDArray[np.int32]
BLOCK = 64


class IdealCache:
    """Remembers every sequence; safe to share between threads."""

    def __init__(self) -> None:
        self._known: set[bytes] = set()
        self._lock = threading.Lock()

    def reach(self, tokens: Tokens) -> int:
        """Tokens of this prompt that a resume point would save; its last token is always computed."""
        keys = _chain(tokens[: len(tokens) - 1])
        with self._lock:
            count = 0
            while count < len(keys) and keys[count] in self._known:
                count += 1
        return count * BLOCK

    def add(self, tokens: Tokens) -> None:
        """This sequence has been computed."""
        keys = _chain(tokens)
        with self._lock:
            self._known.update(keys)


def _chain(tokens: Tokens) -> list[bytes]:
    """One key per whole block, each over everything up to its end."""
    keys, before = [], b""
    for begin in range(0, len(tokens) - BLOCK + 1, BLOCK):
        before = hashlib.blake2b(before + tokens[begin : begin + BLOCK].tobytes(), digest_size=16).digest()
        keys.append(before)
    return keys


class Renderer:
    """Prompts of one artifact, as its server renders them."""

    def __init__(self, artifact: Path) -> None:
        self._prepare = open_served_model(artifact, ModelChoices(max_context=64)).preparer.prepare

    def prompt(self, messages: Sequence[dict[str, str]], template: Mapping[str, bool]) -> Tokens:
        """Token ids of a request with these chat messages and ``chat_template_kwargs``."""
        rendered = tuple(
            Message(
                message["role"],  # type: ignore[arg-type]
                (TextPart(message["content"]),),
                reasoning=message.get("reasoning_content"),
            )
            for message in messages
        )
        return self._prepare(Conversation(rendered, options=TemplateOptions(**template))).tokens

    def whole(
        self, messages: Sequence[dict[str, str]], answer: dict[str, str], template: Mapping[str, bool]
    ) -> Tokens:
        """The prompt and its answer, as far as a follow-up turn may share them."""
        prompt = self.prompt(messages, template)
        probe = self.prompt([*messages, answer, {"role": "user", "content": "."}], template)
        shared = min(len(prompt), len(probe))
        differs = np.flatnonzero(prompt[:shared] != probe[:shared])
        # The template may drop old reasoning: then the answer cannot be shared, and the prompt ends it.
        return prompt if len(differs) or len(probe) <= len(prompt) else probe
