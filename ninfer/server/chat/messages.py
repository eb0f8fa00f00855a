"""Chat history as the protocol-neutral conversation has it.

Owns roles, content forms and what of them is refused; knows nothing of templates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ninfer import spec
from ninfer.errors import RequestError
from ninfer.prompt.conversation import Message, Role, TextPart
from ninfer.server.cache_hints import read_breakpoint
from ninfer.server.chat.calls import answered_call, read_calls
from ninfer.server.members import Members, objects
from ninfer.server.tools import HistoryEntry, paired

_PLAIN_ROLES: tuple[Role, ...] = ("system", "developer", "user")
_TOOL_ROLES = ("tool", "function")
_CONTENT = "a string or an array of content parts"
_UNSUPPORTED = "unsupported_value"


def read_messages(body: Members) -> tuple[Message, ...]:
    """The member ``messages``. Errors: ``RequestError`` that names the message and member."""
    entries = body.required_objects("messages")
    if not entries:
        raise body.invalid("messages", "must hold at least one message")
    return paired(_message(entry) for entry in entries)


def _message(entry: Members) -> HistoryEntry:
    role = entry.required_string("role")
    if role in _TOOL_ROLES:
        return _result(entry, role)
    if entry.string("name"):
        raise entry.invalid(
            "name", "is not supported: the template cannot represent participants", "unsupported_parameter"
        )
    if role == "assistant":
        return _assistant(entry)
    for plain in _PLAIN_ROLES:
        if role == plain:
            return HistoryEntry(Message(plain, _content(entry, required=True)), entry)
    raise entry.invalid("role", "must be one of system, developer, user, assistant, tool, function")


def _result(entry: Members, role: str) -> HistoryEntry:
    """What a call gave. A name on a tool message mirrors the function's and means nothing."""
    entry.string("name")
    key, member = answered_call(entry, role)
    call_id = key if role == "tool" else None
    message = Message("tool", _content(entry, required=True), tool_call_id=call_id)
    return HistoryEntry(message, entry, answers=key, answers_at=member)


def _assistant(entry: Members) -> HistoryEntry:
    if entry.value("audio"):
        raise entry.invalid(
            "audio", "is not supported: NInfer does not provide it in history", "unsupported_parameter"
        )
    made = read_calls(entry)
    parts = _content(entry, required=False)
    refusal = entry.string("refusal")
    if refusal and not any(part.text for part in parts):
        parts = (TextPart(refusal),)
    return HistoryEntry(Message("assistant", parts, _reasoning(entry), made.calls), entry, made.keys)


def _reasoning(entry: Members) -> str | None:
    content, alias = entry.string("reasoning_content"), entry.string("reasoning")
    if content is not None and alias is not None and content != alias:
        raise entry.invalid("reasoning", f"must equal {entry.at('reasoning_content')} when both are given")
    return alias if content is None else content


def _content(entry: Members, *, required: bool) -> tuple[TextPart, ...]:
    content = entry.value("content")
    if content is None:
        if not required:
            return ()
        raise entry.missing("content") if not entry.has("content") else entry.wrong_type("content", _CONTENT)
    if isinstance(content, str):
        return (TextPart(content),)
    if not isinstance(content, list):
        raise entry.wrong_type("content", _CONTENT)
    return tuple(_part(part) for part in objects(content, entry.at("content")))


def _part(part: Members) -> TextPart:
    kind = part.required_string("type")
    read = _TEXT_PARTS.get(kind)
    if read is not None:
        return TextPart(read(part), read_breakpoint(part))
    tables = spec.document("http/chat")
    if kind in tables["vision_parts"]:
        raise RequestError(
            "vision_disabled", f"{part.path} is media, but this server runs without --vision.", part.path
        )
    refused: Mapping[str, str] = tables["refused_parts"]
    if kind in refused:
        raise RequestError(
            _UNSUPPORTED, f"{part.path} is not supported: NInfer does not provide {refused[kind]}.", part.path
        )
    raise part.invalid("type", "must be one of text, refusal, image_url, video_url")


_TEXT_PARTS: Mapping[str, Callable[[Members], str]] = {
    "text": lambda part: part.required_string("text"),
    "refusal": lambda part: part.required_string("refusal"),
}
