"""One answer's way from committed tokens to published text.

Owns the order of the steps (bytes, characters, channels, stop strings) and the counts. Text is published as
whole characters, never a piece of a stop string nor of the close of thinking; the result is the same however
the tokens are cut into pushes, and a token costs amortised constant time.
"""

from __future__ import annotations

import codecs
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ninfer.output.stops import StopMatcher
from ninfer.output.thinking import ChannelText, ThinkingSplitter
from ninfer.prompt.prepared import Channel

_UTF8 = codecs.getincrementaldecoder("utf-8")


class OutputStep(NamedTuple):
    """What one push published, in order; neighbouring entries differ in channel.

    ``stop_string`` is the stop that ended the answer, in this push or before; ``consumed`` counts the ids
    that were used, the one that completed the stop included.
    """

    deltas: list[ChannelText]
    stop_string: str | None
    consumed: int


class OutputSession:
    """Feed committed ids with ``push``, then call ``finish`` once.

    ``reasoning_tokens`` counts the tokens up to the one that completes the close of thinking.
    """

    def __init__(
        self,
        token_bytes: Callable[[int], bytes],
        initial_channel: Channel,
        stops: Sequence[str] = (),
    ) -> None:
        """``token_bytes`` gives what an id adds to the text (``Tokenizer.token_bytes``).

        Errors: ``ValueError`` for an empty stop string.
        """
        self._token_bytes = token_bytes
        # Invalid bytes become U+FFFD, one for each maximal part of a character (Unicode, section 3.9).
        self._decoder = _UTF8("replace")
        self._splitter = ThinkingSplitter(initial_channel)
        self._matcher = StopMatcher(stops)
        self._matched_channel = initial_channel
        self._undecided_tokens = 0
        self.reasoning_tokens = 0

    @property
    def channel(self) -> Channel:
        """Where the next text belongs as far as is decided."""
        return self._splitter.channel

    @property
    def closing(self) -> bool:
        """Whether a close of thinking is complete and what follows will decide about it."""
        return self._splitter.closing

    def copy(self) -> OutputSession:
        """An independent session in the same state: push to the copy to preview, keep it to commit."""
        twin = object.__new__(OutputSession)
        twin.__dict__.update(self.__dict__)
        twin._decoder = _UTF8("replace")
        twin._decoder.setstate(self._decoder.getstate())
        twin._splitter = self._splitter.copy()
        twin._matcher = self._matcher.copy()
        return twin

    def push(self, token_ids: Sequence[int]) -> OutputStep:
        """Add committed ids; ids after the one that completes a stop string are not used."""
        published: list[ChannelText] = []
        consumed = 0
        for token_id in token_ids:
            if self._matcher.matched is not None:
                break
            text = self._decoder.decode(self._token_bytes(token_id))
            if self._splitter.channel == "reasoning":
                self._publish_reasoning(text, published)
            else:
                self._publish(text, published)
            consumed += 1
        return OutputStep(_merged(published), self._matcher.matched, consumed)

    def push_text(self, token_ids: Sequence[int]) -> tuple[str, int] | None:
        """As one ``push`` per id, where all that these can do is publish content: what they add.

        With it, how many of the ids there are up to the last one that adds something. None: they may do more,
        or fail; then none of them was taken in.
        """
        # Whatever is in this channel stays there, and nothing that goes before it is held.
        if self._matched_channel != "content":
            return None
        state = self._decoder.getstate()
        try:
            text, adding = self._decoded(list(map(self._token_bytes, token_ids)))
        except Exception:  # the id that fails is met when it is pushed by itself
            return None
        if not self._matcher.passes(text):
            self._decoder.setstate(state)
            return None
        return text, adding

    def _decoded(self, pieces: list[bytes]) -> tuple[str, int]:
        """Their text, and how many there are up to the last one that completes a character."""
        if pieces and pieces[-1] and pieces[-1][-1:].isascii():  # no character is open behind it
            return self._decoder.decode(b"".join(pieces)), len(pieces)
        texts = [self._decoder.decode(piece) for piece in pieces]
        adding = next((place for place in range(len(texts), 0, -1) if texts[place - 1]), 0)
        return "".join(texts), adding

    def insert(self, token_ids: Sequence[int]) -> OutputStep:
        """Add committed ids that the model did not choose: no stop string is looked for in their text."""
        held = (self._matched_channel, self._matcher.flush())
        matcher, self._matcher = self._matcher, StopMatcher(())
        step = self.push(token_ids)
        self._matcher = matcher
        return OutputStep(_merged([held, *step.deltas]), None, step.consumed)

    def finish(self) -> list[ChannelText]:
        """The answer has ended: publish what was held. A close of thinking at the very end closes."""
        published: list[ChannelText] = []
        if self._matcher.matched is None:
            self._publish(self._decoder.decode(b"", True), published)
        if self._matcher.matched is None and self._splitter.channel == "reasoning":
            self._publish_text("reasoning", self._splitter.finish(), published)
        published.append((self._matched_channel, self._matcher.flush()))
        return _merged(published)

    def _publish_reasoning(self, text: str, published: list[ChannelText]) -> None:
        """One token's text and its count: after a complete close it is reasoning only if that was quoted."""
        awaiting, quoted = self._splitter.closing, self._splitter.quoted_closes
        self._publish(text, published)
        if not awaiting or self._splitter.quoted_closes > quoted:
            self.reasoning_tokens += 1 + self._undecided_tokens
            self._undecided_tokens = 0
        elif self._splitter.closing:
            self._undecided_tokens += 1

    def _publish(self, text: str, published: list[ChannelText]) -> None:
        for channel, piece in self._splitter.feed(text):
            self._publish_text(channel, piece, published)
            if self._matcher.matched is not None:
                return

    def _publish_text(self, channel: Channel, text: str, published: list[ChannelText]) -> None:
        if channel != self._matched_channel:
            published.append((self._matched_channel, self._matcher.flush()))
            self._matched_channel = channel
        published.append((channel, self._matcher.feed(text)))


def _merged(published: list[ChannelText]) -> list[ChannelText]:
    """Neighbours of one channel joined, empty text dropped."""
    if len(published) == 1:
        return published if published[0][1] else []
    texts = (entry for entry in published if entry[1])
    return [
        (channel, "".join(text for _, text in entries))
        for channel, entries in itertools.groupby(texts, key=operator.itemgetter(0))
    ]
