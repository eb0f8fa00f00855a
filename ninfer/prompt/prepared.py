"""The prompt as an engine takes it: token ids and what the output side must know about their end.

Owns the value only; ``prepare.py`` makes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Channel = Literal["reasoning", "content"]


@dataclass(frozen=True, slots=True, eq=False)
class PreparedPrompt:
    """A rendered and tokenised conversation.

    Shapes: ``tokens`` [T] int32; ``positions`` [3, T] int32 (T/H/W axes, equal for text).
    ``initial_channel`` is ``reasoning`` iff generation starts inside an open think block.
    ``thinking`` tells whether the turn was prepared with thinking enabled (it selects the preset).
    ``chunks`` make up the rendered prompt; ``text`` joins them, for debugging and tests only: never logged.
    """

    tokens: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    initial_channel: Channel
    thinking: bool
    chunks: tuple[str, ...]

    @property
    def text(self) -> str:
        return "".join(self.chunks)

    @property
    def token_count(self) -> int:
        return int(self.tokens.shape[0])
