"""The messages as a chat template sees them: a read-only sequence of dictionaries, made when first read.

Owns the shape of one message for templates and tells a reader which messages a rendering looked at, so that
``replay.py`` knows what an iteration depends on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from ninfer.prompt.conversation import Message, TextPart


class Reader(Protocol):
    """Hears of reads: of one message's existence and content, or of all of them."""

    def read_message(self, index: int) -> None: ...

    def read_all_messages(self) -> None: ...


class MessageSource:
    """The messages of one conversation; ``made`` holds dictionaries that an earlier rendering left."""

    def __init__(self, messages: Sequence[Message], reader: Reader, made: Sequence[Any] = ()) -> None:
        self.messages = messages
        self.reader = reader
        self.made: list[dict[str, Any] | None] = [*made, *([None] * (len(messages) - len(made)))]

    def get(self, index: int) -> dict[str, Any]:
        """The dictionary of message ``index``, without telling the reader."""
        made = self.made[index]
        if made is None:
            made = self.made[index] = message_dict(self.messages[index])
        return made


class MessageView(Sequence[dict[str, Any]]):
    """What the template knows as ``messages``; slices are views too."""

    __slots__ = ("_range", "_source")

    def __init__(self, source: MessageSource, indices: range | None = None) -> None:
        self._source = source
        self._range = range(len(source.messages)) if indices is None else indices

    def __len__(self) -> int:
        self._source.reader.read_all_messages()
        return len(self._range)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            self._source.reader.read_all_messages()
            return MessageView(self._source, self._range[key])
        if key < 0 or key >= len(self._range):
            self._source.reader.read_all_messages()
        index = self._range[key]
        self._source.reader.read_message(index)
        return self._source.get(index)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self._source.reader.read_all_messages()
        return map(self._source.get, self._range)

    def __add__(self, other: Any) -> list[Any]:
        return [*self, *other]

    def __radd__(self, other: Any) -> list[Any]:
        return [*other, *self]

    def __eq__(self, other: object) -> bool:
        return list(self) == (list(other) if isinstance(other, MessageView) else other)

    __hash__ = None  # type: ignore[assignment]


def message_dict(message: Message) -> dict[str, Any]:
    """One message in the form chat templates expect; members without a value are absent."""
    made: dict[str, Any] = {"role": message.role, "content": _content(message)}
    if message.reasoning is not None:
        made["reasoning_content"] = message.reasoning
    if message.tool_calls:
        made["tool_calls"] = [
            {
                "type": "function",
                **({} if call.id is None else {"id": call.id}),
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        made["tool_call_id"] = message.tool_call_id
    return made


def _content(message: Message) -> str | list[dict[str, str]]:
    texts = [part.text for part in message.parts if isinstance(part, TextPart)]
    if len(texts) == len(message.parts):
        return "".join(texts)
    return [
        {"type": "text", "text": part.text} if isinstance(part, TextPart) else {"type": part.kind}
        for part in message.parts
    ]
