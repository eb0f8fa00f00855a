"""The output Items of one Response, as they grow from the neutral pieces of an answer.

Owns Item ids and wire forms, and which Item a cut leaves incomplete. Nothing is made up: no text, no message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ninfer import spec
from ninfer.prompt.prepared import Channel
from ninfer.server.answer.pieces import Call
from ninfer.server.responses.items import new_id

Wire = dict[str, Any]
Status = Literal["in_progress", "completed", "incomplete"]
_KINDS: Mapping[Channel, str] = {"reasoning": "reasoning", "content": "message"}


@dataclass(frozen=True, slots=True)
class OutputChoices:
    """What a request asks of its output.

    ``summary``: reasoning shows the placeholder; ``mirror``: it has ``encrypted_content``. ``functions``
    gives namespace and name of every declared function by the one name that the model knows.
    """

    summary: bool = False
    mirror: bool = False
    functions: Mapping[str, tuple[str | None, str]] = field(default_factory=dict)

    def summary_parts(self) -> list[Wire]:
        if not self.summary:
            return []
        return [{"type": "summary_text", "text": spec.document("http/responses")["summary_placeholder"]}]


@dataclass(slots=True)
class OpenItem:
    """The text Item that an answer is in."""

    channel: Channel
    id: str
    index: int
    texts: list[str] = field(default_factory=list)

    @property
    def kind(self) -> str:
        return _KINDS[self.channel]

    @property
    def text(self) -> str:
        return "".join(self.texts)


class Output:
    """The Items of one Response; at most the last one is open."""

    def __init__(self, choices: OutputChoices, fresh_id: Callable[[str], str] = new_id) -> None:
        self._choices = choices
        self._fresh_id = fresh_id
        self.items: list[Wire] = []
        self.open: OpenItem | None = None

    def begin(self, channel: Channel) -> OpenItem:
        """Open an Item for text of ``channel``; the one before is closed."""
        assert self.open is None, "the Item before is still open"
        self.open = OpenItem(channel, self._fresh_id(_KINDS[channel]), len(self.items))
        return self.open

    def add(self, channel: Channel, text: str) -> None:
        """Add text to an Item of its channel, a new one where another is open."""
        if self.open is None or self.open.channel != channel:
            self.end()
            self.begin(channel)
        assert self.open is not None
        self.open.texts.append(text)

    def end(self, status: Status = "completed") -> None:
        """Close the open Item, if there is one."""
        if self.open is not None:
            self.items.append(self.text_item(self.open, status))
            self.open = None

    def call(self, call: Call) -> Wire:
        """Add one whole call; text before it is closed."""
        self.end()
        item = self.call_item(self._fresh_id("function_call"), call, "completed")
        self.items.append(item)
        return item

    def text_item(self, item: OpenItem, status: Status) -> Wire:
        """An Item of text; as it is announced (``in_progress``) it has no content yet."""
        wire: Wire = {"id": item.id, "type": item.kind, "status": status}
        content = [] if status == "in_progress" else [text_part(item.channel, item.text)]
        if item.channel == "content":
            return wire | {"role": "assistant", "content": content}
        wire |= {"summary": self._choices.summary_parts(), "content": content}
        if self._choices.mirror and content:
            wire["encrypted_content"] = item.text
        return wire

    def call_item(self, item_id: str, call: Call, status: Status) -> Wire:
        """A function call under the caller's own names; as it is announced it has no arguments yet."""
        namespace, name = self._choices.functions.get(call.name, (None, call.name))
        wire: Wire = {"id": item_id, "type": "function_call", "status": status, "call_id": call.id}
        if namespace is not None:
            wire["namespace"] = namespace
        return wire | {"name": name, "arguments": "" if status == "in_progress" else call.arguments}


def text_part(channel: Channel, text: str) -> Wire:
    """The one content part of a text Item."""
    if channel == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
