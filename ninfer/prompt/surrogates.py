"""Finds the field of a conversation that holds a lone surrogate, which no token can represent.

Owns the search, which runs only after encoding has failed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ninfer.prompt.conversation import Conversation, TextPart


def find_surrogate(conversation: Conversation) -> str | None:
    """The path of the first field with a lone surrogate, or None."""
    return next((path for path, value in _fields(conversation) if _holds_surrogate(value)), None)


def _fields(conversation: Conversation) -> Iterator[tuple[str, Any]]:
    for index, message in enumerate(conversation.messages):
        at = f"messages[{index}]"
        yield f"{at}.content", [part.text for part in message.parts if isinstance(part, TextPart)]
        yield f"{at}.reasoning_content", message.reasoning
        for number, call in enumerate(message.tool_calls):
            yield f"{at}.tool_calls[{number}]", [call.name, call.arguments, call.id]
        yield f"{at}.tool_call_id", message.tool_call_id
    for index, tool in enumerate(conversation.tools):
        yield f"tools[{index}]", tool.definition
    yield "chat_template_kwargs", conversation.options.kwargs


def _holds_surrogate(value: Any) -> bool:
    if isinstance(value, str):
        return any("\ud800" <= character <= "\udfff" for character in value)
    if isinstance(value, Mapping):
        return any(_holds_surrogate(key) or _holds_surrogate(item) for key, item in value.items())
    return isinstance(value, (list, tuple)) and any(map(_holds_surrogate, value))
