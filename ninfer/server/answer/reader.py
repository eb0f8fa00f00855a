"""Engine events to the neutral pieces of an answer.

Owns the order of the end (held text, calls, the reason) and call ids. Knows no protocol.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence

from ninfer.engine.events import Delta, Failed, Finished, Progress, RequestEvent, Started
from ninfer.output.thinking import ChannelText
from ninfer.output.tools import ParsedCall
from ninfer.server.answer.parsing import NoTools, ToolParser
from ninfer.server.answer.pieces import Begun, Call, Ended, EndReason, Piece, Prompted, Text, TimingSnapshot
from ninfer.server.errors import failure
from ninfer.server.tools.records import record_turn


def new_call_id() -> str:
    return f"call_{uuid.uuid4().hex}"


class AnswerReader:
    """Reads one request's events in order.

    ``context_bound`` tells that the context, not the request, limits the output.
    """

    def __init__(
        self,
        parser: ToolParser | None = None,
        *,
        context_bound: bool = False,
        call_id: Callable[[], str] = new_call_id,
    ) -> None:
        self._parser = parser or NoTools()
        self._context_bound = context_bound
        self._call_id = call_id
        self._prompt_tokens = self._cached_tokens = 0
        self._timings: TimingSnapshot | None = None

    def feed(self, event: RequestEvent) -> Iterable[Piece]:
        """The pieces of one event. Errors: ``RequestError`` or ``EngineError`` for a ``Failed``."""
        if isinstance(event, Delta):
            self._note(event)
            # An engine may end with token ids that have no text.
            return self._texts(self._parser.push(event.channel, event.text)) if event.text else ()
        if isinstance(event, Finished):
            return self._end(event)
        if isinstance(event, Failed):
            raise failure(event)
        return self._prompt(event)

    def _prompt(self, event: RequestEvent) -> Iterator[Piece]:
        if isinstance(event, Started):
            self._prompt_tokens, self._cached_tokens = event.prompt_tokens, event.cached_tokens
            yield Begun(event.prompt_tokens, event.cached_tokens, event.queue_s)
        elif isinstance(event, Progress):
            yield Prompted(event.total, event.cached, event.processed, event.elapsed_s)

    def _note(self, delta: Delta) -> None:
        if delta.committed:
            self._timings = TimingSnapshot(
                self._prompt_tokens, self._cached_tokens, delta.committed, delta.prompt_s, delta.decode_s
            )

    def _texts(self, texts: Sequence[ChannelText]) -> list[Text]:
        return [Text(channel, text, self._timings) for channel, text in texts if text]

    def _end(self, finished: Finished) -> Iterator[Piece]:
        truncated = finished.reason == "length"
        stopped_by_token = finished.reason == "stop" and finished.stop_string is None
        turn = self._parser.finish(
            stopped_by_token=stopped_by_token,
            truncated=truncated,
            thinking_closed=not finished.in_thinking,
        )
        record_turn(finished.id, turn)
        yield from self._texts(turn.texts)
        for index, call in enumerate(turn.calls):
            yield Call(index, self._call_id(), call.name, call.arguments)
        yield Ended(
            _reason(finished, turn.calls),
            finished.stop_string,
            finished.usage,
            context_full=truncated and self._context_bound,
            tool_parse=turn.diagnostics,
        )


def _reason(finished: Finished, calls: Sequence[ParsedCall]) -> EndReason:
    """A limit or a cancellation stays the reason, whatever was called before it."""
    return "tool_calls" if finished.reason == "stop" and calls else finished.reason
