"""Recipe documents as bodies of Chat Completions.

Kept apart from training, which must run where the server's packages are missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ninfer.prompt import Conversation, Message, TextPart
from tools.tiny.conversation import conversation_of
from tools.tiny.data.documents import Document


def chat_body(document: Document) -> dict[str, Any]:
    """The members that ask for the last answer of ``document``; model and sampling are the caller's."""
    conversation = conversation_of(document)
    body: dict[str, Any] = {"messages": list(_messages(conversation))}
    if conversation.tools:
        body["tools"] = [tool.definition for tool in conversation.tools]
        body["tool_constraints"] = "auto"
    options = conversation.options
    chosen = {
        "enable_thinking": options.enable_thinking,
        "preserve_thinking": options.preserve_thinking,
        "reasoning_effort": options.reasoning_effort,
    }
    return body | {name: value for name, value in chosen.items() if value is not None}


def _messages(conversation: Conversation) -> Iterator[dict[str, Any]]:
    """Calls get ids by their place; results name them in order."""
    made = answered = 0
    for message in conversation.messages:
        content = "".join(part.text for part in message.parts if isinstance(part, TextPart))
        if message.role == "tool":
            yield {"role": "tool", "tool_call_id": f"call_{answered}", "content": content}
            answered += 1
            continue
        written: dict[str, Any] = {"role": message.role, "content": content}
        if message.reasoning is not None:
            written["reasoning_content"] = message.reasoning
        if message.tool_calls:
            written["tool_calls"] = list(_calls(message, made))
            made += len(message.tool_calls)
        yield written


def _calls(message: Message, first: int) -> Iterator[dict[str, Any]]:
    for number, call in enumerate(message.tool_calls, first):
        function = {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}
        yield {"id": f"call_{number}", "type": "function", "function": function}
