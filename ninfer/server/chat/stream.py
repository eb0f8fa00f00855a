"""A chat answer as a stream of chunks, in the order of ``spec/http/streams.yaml``.

Owns the wire shapes of chunks and which one carries usage and timings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from ninfer.server.answer.pieces import Begun, Call, Ended, Piece, Prompted, Text
from ninfer.server.chat.answers import ChatIdentity, call_object, encoded, finish_reason, usage_object
from ninfer.server.chat.timings import progress_object, timings_object, usage_timings
from ninfer.server.envelopes import OPENAI
from ninfer.server.errors import WireError
from ninfer.server.sse import unnamed

# Stands for the text of a chunk; nothing after the text can hold it.
_PLACE = "\0"
_MEMBERS = {"reasoning": "reasoning_content", "content": "content"}


@dataclass(frozen=True, slots=True)
class StreamChoices:
    """What a stream shows beside the answer.

    ``usage`` asks for a usage chunk, ``usage_choice`` gives it one empty choice (``--usage-chunk-choice``).
    """

    usage: bool = False
    usage_choice: bool = False
    timings_per_token: bool = False
    progress: bool = False


class StreamedChat:
    """Makes the events of one stream."""

    def __init__(self, identity: ChatIdentity, choices: StreamChoices) -> None:
        self._identity = identity
        self._choices = choices
        self._progress = Prompted(0, 0, 0, 0.0)
        self._around: dict[str, tuple[bytes, bytes]] = {}

    def frames(self, piece: Piece) -> Iterable[bytes]:
        """The events of one piece; ``Ended`` brings finish, usage if asked for, and the end mark."""
        if isinstance(piece, Text) and self._progress.processed >= self._progress.total:
            return (self._text(piece),)
        return self._frames(piece)

    def _frames(self, piece: Piece) -> Iterator[bytes]:
        if isinstance(piece, Text):
            yield from self._prompt_done()
            yield self._text(piece)
        elif isinstance(piece, Begun):
            yield self._chunk({"role": "assistant", "content": ""})
            yield from self._begun(piece)
        elif isinstance(piece, Prompted):
            yield from self._prompted(piece)
        elif isinstance(piece, Call):
            yield from self._prompt_done()
            yield self._chunk({"tool_calls": [{"index": piece.index} | call_object(piece)]})
        elif isinstance(piece, Ended):
            yield from self._prompt_done()
            yield from self._end(piece)

    def failed(self, error: WireError) -> Iterator[bytes]:
        """An error event; the connection closes after it without an end mark."""
        yield unnamed(OPENAI.body(error))

    def _text(self, piece: Text) -> bytes:
        member = _MEMBERS[piece.channel]
        if self._choices.timings_per_token and piece.timings is not None:
            return self._chunk({member: piece.text}, members={"timings": timings_object(piece.timings)})
        before, after = self._around.get(member) or self._learn(member)
        return b"%b%b%b" % (before, msgspec.json.encode(piece.text), after)

    def _learn(self, member: str) -> tuple[bytes, bytes]:
        """What stands around the text in every chunk of a channel, encoded once a stream."""
        before, _, after = self._chunk({member: _PLACE}).rpartition(msgspec.json.encode(_PLACE))
        self._around[member] = before, after
        return before, after

    def _begun(self, begun: Begun) -> Iterator[bytes]:
        """The first report: what is reused is all there is so far."""
        self._progress = Prompted(begun.prompt_tokens, begun.cached_tokens, begun.cached_tokens, 0.0)
        if self._choices.progress:
            yield self._report(self._progress)

    def _prompted(self, piece: Prompted) -> Iterator[bytes]:
        """A later report; one that says nothing new is left out."""
        if piece.processed > self._progress.processed:
            self._progress = piece
            if self._choices.progress:
                yield self._report(piece)

    def _prompt_done(self) -> Iterator[bytes]:
        """Before anything of the answer the prompt has been reported whole."""
        last = self._progress
        if last.processed < last.total:
            yield from self._prompted(Prompted(last.total, last.cached, last.total, last.elapsed_s))

    def _report(self, progress: Prompted) -> bytes:
        return self._chunk({}, members={"prompt_progress": progress_object(progress)})

    def _end(self, ended: Ended) -> Iterator[bytes]:
        timings = {"timings": usage_timings(ended.usage)}
        yield self._chunk({}, finish_reason(ended.reason), members={} if self._choices.usage else timings)
        if self._choices.usage:
            choices = [_choice({}, None)] if self._choices.usage_choice else []
            yield self._event({"choices": choices, "usage": usage_object(ended.usage)} | timings)
        yield unnamed(b"[DONE]")

    def _chunk(
        self, delta: dict[str, Any], reason: str | None = None, members: dict[str, Any] | None = None
    ) -> bytes:
        chunk: dict[str, Any] = {"choices": [_choice(delta, reason)]}
        if self._choices.usage:
            chunk["usage"] = None
        return self._event(chunk | (members or {}))

    def _event(self, members: dict[str, Any]) -> bytes:
        return unnamed(encoded(self._identity, "chat.completion.chunk", members))


def _choice(delta: dict[str, Any], reason: str | None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
