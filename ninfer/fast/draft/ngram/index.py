"""One request's copy source: its prompt, its committed output, and texts beside them.

Owns the memory and what a match licenses. The part made of the prompt is built on whatever thread prepares
the request; from then on the index belongs to the worker. It holds committed tokens only, so nothing that
verification rejected can ever be found.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ninfer import spec
from ninfer.fast.draft.ngram import kernels

Tokens = npt.NDArray[np.int32]
# Ends a span where no token stands: between texts.
_BORDER = np.iinfo(np.int32).min
NOTHING: Tokens = np.zeros(0, np.int32)


class NgramIndex:
    """Positions of a request's text by their 16-, 8- and 4-token suffixes.

    ``prompt`` [T] int32; ``room`` the most tokens that may be appended; ``special`` [ids] bool says which ids
    end spans; ``sources`` are texts beside the prompt, indexed after it as far as memory allows.
    """

    def __init__(
        self, prompt: Tokens, room: int, special: npt.NDArray[np.bool_], sources: Sequence[Tokens] = ()
    ) -> None:
        rules = spec.document("speculation")["ngram"]
        self._left_at_end = int(rules["left_at_end"])
        self._special = special
        self._sources_at = len(prompt) + room
        most = rules["index"]["maximum_bytes"]
        beside = sum(len(source) + 1 for source in sources)
        slots = _slots(self._sources_at + beside, rules["index"])
        beside = max(0, min(beside, most // 4 - 3 * slots - self._sources_at))
        self._text = np.empty(self._sources_at + beside, np.int32)
        # Zeros from the system: pages that no position falls into are never touched.
        self._tables = np.zeros((len(kernels.SUFFIXES), slots), np.int32)
        self.length = 0
        self._indexed, self._run = 0, 0
        self.append(prompt)
        self._end = self._sources_at
        for source in sources:
            self._add_source(source)

    @property
    def bytes(self) -> int:
        """Memory of tokens and tables."""
        return self._text.nbytes + self._tables.nbytes

    def append(self, tokens: Tokens) -> None:
        """Take committed tokens into the text. Its very last suffix is indexed when a token follows it."""
        end = self.length + len(tokens)
        assert end <= self._sources_at, "more tokens than the index has room for"
        self._run = kernels.take_in(
            tokens, self._special, self._text, self._tables, self.length, self._indexed, self._run
        )
        self.length, self._indexed = end, max(self._indexed, end - 1)

    def propose(self, window: int, least_match: int, neural: int) -> Tokens:
        """At most ``window`` tokens that may follow, copied from one span; none is an empty array.

        At least ``least_match`` tokens match before them, and there are more than ``neural`` of them:
        otherwise the neural drafter proposes. The end of a span is left to a neural round.
        """
        if self.length < least_match or window <= neural:
            return NOTHING
        most = window + self._left_at_end
        place, _, left = kernels.find(
            self._text, self._tables, self.length, self._sources_at, self._end, least_match, most
        )
        count = min(window, left - self._left_at_end)
        if count <= neural:
            return NOTHING
        return self._text[place + 1 : place + 1 + count].copy()

    def recent(self, suffix: int, most: int) -> Tokens:
        """At most ``most`` tokens that followed the last ``suffix`` ones where they stood last before."""
        if self.length <= suffix:
            return NOTHING
        place = kernels.previous(self._text, self.length, suffix)
        if place < 0:
            return NOTHING
        count = kernels.left_in_span(self._text, place, self.length, most)
        return self._text[place + 1 : place + 1 + count].copy()

    def _add_source(self, source: Tokens) -> None:
        end = min(self._end + 1 + len(source), len(self._text))
        if end <= self._end + 1:
            return
        begin = self._end + 1
        self._text[self._end] = _BORDER
        kernels.mark(source[: end - begin], self._special, self._text[begin:end])
        kernels.insert_span(self._text, self._tables, begin, end, 0)
        self._end = end


def _slots(tokens: int, rules: dict[str, int]) -> int:
    """Places of one table: a power of two with room to spare for ``tokens`` positions."""
    wanted = rules["slots_per_token"] * max(tokens, 1)
    return min(max(1 << (wanted - 1).bit_length(), rules["ways"]), rules["maximum_slots"])


def warm_up(special: npt.NDArray[np.bool_]) -> None:
    """Compile what is not compiled yet."""
    index = NgramIndex(np.zeros(40, np.int32), 0, np.zeros_like(special))
    index.propose(16, 4, 0)
    index.recent(4, 4)
