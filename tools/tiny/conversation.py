"""Recipe documents as the protocol-neutral conversations of ``ninfer.prompt``.

Kept apart from training, which must run where the server's packages are missing.
"""

from __future__ import annotations

from ninfer.prompt import Conversation, Message, TemplateOptions, TextPart, Tool, ToolCall
from tools.tiny.data.documents import Document
from tools.tiny.data.exchange import Exchange


def conversation_of(document: Document) -> Conversation:
    """Everything in front of the last answer, as a client would send it."""
    messages = [Message("system", (TextPart(document.system),))] if document.system else []
    *earlier, last = document.exchanges
    for exchange in earlier:
        messages += [*_asked(exchange), _answered(exchange, document)]
    messages += _asked(last)
    tools = tuple(Tool(tool["function"]["name"], tool) for tool in document.tools)
    return Conversation(tuple(messages), tools, _options(document))


def _options(document: Document) -> TemplateOptions:
    if document.effort is None:
        return TemplateOptions(enable_thinking=False)
    preserve = None if document.preserve else False
    # xhigh is the default: half of the callers never name it.
    effort = None if document.effort == "xhigh" else document.effort
    return TemplateOptions(preserve_thinking=preserve, reasoning_effort=effort)  # type: ignore[arg-type]


def _asked(exchange: Exchange) -> list[Message]:
    if exchange.results:
        return [Message("tool", (TextPart(result),)) for result in exchange.results]
    return [Message("user", (TextPart(exchange.user),))]


def _answered(exchange: Exchange, document: Document) -> Message:
    reasoning = exchange.thought.text(document.effort) if document.effort else None
    calls = tuple(ToolCall(call.name, call.arguments) for call in exchange.calls)
    parts = (TextPart(exchange.answer),) if exchange.answer else ()
    return Message("assistant", parts, reasoning, calls)
