"""One Response as semantic server-sent events.

Owns what each event of the table holds and the numbers that join them; which may follow which stands in
``spec/http/streams.yaml``, when bytes go out in ``ninfer/server/answer``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from ninfer.errors import RequestError
from ninfer.prompt.prepared import Channel
from ninfer.server.answer.pieces import Begun, Call, Ended, Piece, Text
from ninfer.server.errors import WireError, wire_error
from ninfer.server.responses.answer import Answer
from ninfer.server.responses.order import StreamOrder, wire_type
from ninfer.server.responses.output import OpenItem, Wire, text_part
from ninfer.server.sse import named

_PARTS: dict[Channel, str] = {"reasoning": "reasoning_text", "content": "output_text"}


class StreamedResponse:
    """Makes the events of one stream, numbered from 0.

    ``unkept`` hears of a finished Response that could not be kept, which is a failure to its reader.
    """

    def __init__(self, answer: Answer, unkept: Callable[[], None] = lambda: None) -> None:
        self._answer = answer
        self._unkept = unkept
        self._output = answer.output
        self._order = StreamOrder()
        self._number = 0

    def frames(self, piece: Piece) -> Iterator[bytes]:
        """The events of one piece; ``Ended`` brings the terminal one."""
        if isinstance(piece, Text):
            yield from self._text(piece)
        elif isinstance(piece, Begun):
            for event in ("created", "in_progress"):
                yield self._event(event, {"response": self._answer.snapshot("in_progress")})
        elif isinstance(piece, Call):
            yield from self._call(piece)
        elif isinstance(piece, Ended):
            yield from self._end(piece)

    def failed(self, error: WireError) -> Iterator[bytes]:
        """The last event of a Response that cannot go on, or an error where none was begun."""
        if self._number == 0:
            yield self._event("error", {"code": error.code, "message": error.message, "param": error.param})
        else:
            yield self._event("failed", {"response": self._answer.failed(error)})

    def _text(self, piece: Text) -> Iterator[bytes]:
        item = self._output.open
        if item is None or item.channel != piece.channel:
            yield from self._close()
            item = self._output.begin(piece.channel)
            yield from self._begin(item)
        item.texts.append(piece.text)
        yield self._event(f"{_PARTS[item.channel]}.delta", self._part_place(item) | _delta(item, piece.text))

    def _begin(self, item: OpenItem) -> Iterator[bytes]:
        wire = self._output.text_item(item, "in_progress")
        yield self._event(f"output_item.added/{item.kind}", {"output_index": item.index, "item": wire})
        if item.channel == "reasoning":
            for index, part in enumerate(wire["summary"]):
                yield from self._summary(item, index, part)
        part = text_part(item.channel, "")
        yield self._event(f"content_part.added/{part['type']}", self._part_place(item) | {"part": part})

    def _summary(self, item: OpenItem, index: int, part: Wire) -> Iterator[bytes]:
        place = _place(item) | {"summary_index": index}
        empty = part | {"text": ""}
        yield self._event("reasoning_summary_part.added", place | {"part": empty})
        yield self._event("reasoning_summary_text.delta", place | {"delta": part["text"]})
        yield self._event("reasoning_summary_text.done", place | {"text": part["text"]})
        yield self._event("reasoning_summary_part.done", place | {"part": part})

    def _close(self, *, cut: bool = False) -> Iterator[bytes]:
        """Every event from an open text to the end of its Item, by the table."""
        item = self._output.open
        if item is None:
            return
        self._output.end("incomplete" if cut else "completed")
        while (event := self._order.closing()) is not None:
            yield self._event(event, self._closing(event, item))

    def _closing(self, event: str, item: OpenItem) -> Wire:
        if event.startswith("output_item"):
            return {"output_index": item.index, "item": self._output.items[item.index]}
        if event.startswith("content_part"):
            return self._part_place(item) | {"part": text_part(item.channel, item.text)}
        logprobs: Wire = {} if item.channel == "reasoning" else {"logprobs": []}
        return self._part_place(item) | {"text": item.text} | logprobs

    def _call(self, call: Call) -> Iterator[bytes]:
        yield from self._close()
        item = self._output.call(call)
        index = len(self._output.items) - 1
        place = {"item_id": item["id"], "output_index": index}
        announced = self._output.call_item(item["id"], call, "in_progress")
        yield self._event("output_item.added/function_call", {"output_index": index, "item": announced})
        yield self._event("function_call_arguments.delta", place | {"delta": call.arguments})
        yield self._event("function_call_arguments.done", place | {"arguments": call.arguments})
        yield self._event("output_item.done/function_call", {"output_index": index, "item": item})

    def _end(self, ended: Ended) -> Iterator[bytes]:
        yield from self._close(cut=ended.reason in ("length", "cancelled"))
        try:
            body = self._answer.settle(ended)
        except RequestError as error:  # the events so far are on their way: this is one of them
            self._unkept()
            yield from self.failed(wire_error(error))
            return
        event = "completed" if ended.reason in ("stop", "tool_calls") else "incomplete"
        yield self._event(event, {"response": msgspec.Raw(body)})

    def _event(self, event: str, members: Wire) -> bytes:
        self._order.take(event)
        kind = wire_type(event)
        payload = {"type": kind, "sequence_number": self._number} | members
        self._number += 1
        return named(kind, msgspec.json.encode(payload))

    def _part_place(self, item: OpenItem) -> Wire:
        return _place(item) | {"content_index": 0}


def _place(item: OpenItem) -> Wire:
    return {"item_id": item.id, "output_index": item.index}


def _delta(item: OpenItem, text: str) -> dict[str, Any]:
    return {"delta": text} if item.channel == "reasoning" else {"delta": text, "logprobs": []}
