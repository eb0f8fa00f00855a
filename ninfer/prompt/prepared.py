"""The prompt as an engine takes it: token ids and what the output side must know about their end.

Owns the value only; ``prepare.py`` makes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from ninfer.prompt.frontiers import Frontiers

Channel = Literal["reasoning", "content"]


# A long text as chunks that turns share: each with how many of its characters belong to it.
Text = tuple[tuple[str, int], ...]


def joined(text: Text) -> str:
    """The text as one string."""
    return "".join(chunk[:used] for chunk, used in text)


@dataclass(frozen=True, slots=True, eq=False)
class PreparedPrompt:
    """A rendered and tokenised conversation.

    Shapes: ``tokens`` [T] int32; ``positions`` [3, T] int32 (T/H/W axes, equal for text).
    ``initial_channel`` is ``reasoning`` iff generation starts inside an open think block.
    ``thinking`` tells whether the turn was prepared with thinking enabled (it selects the preset).
    ``frontiers`` are the places that other prompts may share. ``chunks`` make up the rendered prompt;
    ``text`` joins them, for debugging and tests only: never logged.
    """

    tokens: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    initial_channel: Channel
    thinking: bool
    chunks: Text
    frontiers: Frontiers = field(default_factory=Frontiers)

    @property
    def text(self) -> str:
        return joined(self.chunks)

    @property
    def token_count(self) -> int:
        return int(self.tokens.shape[0])
