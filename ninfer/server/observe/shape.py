"""The shape of a request for records: counts and choices of what its body asks for, no text.

Owns the reading of protocol-neutral values; adapters need not know of it.
"""

from __future__ import annotations

from ninfer.prompt.conversation import Conversation, MediaPart
from ninfer.server.observe.records import Protocol, RequestShape
from ninfer.server.resolution import GenerationFields

# The last part of each generation route's path.
_PROTOCOLS: dict[str, Protocol] = {
    "completions": "openai_chat",
    "responses": "openai_responses",
    "messages": "anthropic_messages",
}


def shape_of(
    path: str,
    model: str,
    stream: bool,
    conversation: Conversation,
    fields: GenerationFields,
) -> RequestShape:
    """The shape of a request that came on ``path``, without what only its adapter knows."""
    messages = conversation.messages
    return RequestShape(
        protocol=_PROTOCOLS[path.rstrip("/").rpartition("/")[2]],
        model=model,
        stream=stream,
        messages=len(messages),
        media_items=sum(isinstance(part, MediaPart) for message in messages for part in message.parts),
        tools=len(conversation.tools),
        tool_history=any(message.tool_calls or message.role == "tool" for message in messages),
        max_tokens=fields.max_tokens,
        reasoning_effort=conversation.options.reasoning_effort,
        preserve_thinking=conversation.options.preserve_thinking,
    )
