"""Input Items: read, checked and brought into one form.

Owns the shape of every Item that a client may send; how Items become turns is ``history.py``'s. The
normalised Item is what ``input_items`` lists and what the store keeps: its members in the protocol's order,
defaults filled in, an id of its own.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ninfer import spec
from ninfer.errors import RequestError
from ninfer.server.members import Members, objects, shown
from ninfer.server.responses.parts import read_content, read_output
from ninfer.server.tools import tool_name

Wire = Mapping[str, Any]
_UNSUPPORTED = "unsupported_value"
# The member of a request that brings the Items of stored Responses.
STORED = "previous_response_id"


@dataclass(frozen=True, slots=True)
class Item:
    """One normalised Item and where it stands: ``input[2]``, or ``STORED``."""

    wire: Wire
    path: str

    def at(self, name: str) -> str:
        """Where a member stands; a stored Item has no place of its own in the request."""
        return self.path if self.path == STORED else f"{self.path}.{name}"


def read_input(body: Members) -> tuple[Item, ...]:
    """The member ``input``; empty when absent or empty. Errors: ``RequestError`` naming Item and member."""
    value = body.value("input")
    if value is None or value == "":
        return ()
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise body.wrong_type("input", "a string or an array of Items")
    entries = list(objects(value, body.at("input")))
    return tuple(Item(_read(entry), entry.path) for entry in entries)


def require_unique_ids(items: Iterable[Item]) -> None:
    """Errors: ``RequestError`` for the first Item whose id another Item before it has."""
    seen: set[str] = set()
    for item in items:
        name = item.wire["id"]
        if name in seen:
            raise RequestError(
                "invalid_value",
                f"{item.path}.id {shown(name)} stands on more than one Item.",
                f"{item.path}.id",
            )
        seen.add(name)


def new_id(kind: str) -> str:
    """A fresh id for a Response or an Item."""
    prefix: str = spec.document("http/responses")["ids"][kind]
    return prefix + uuid.uuid4().hex


def _read(entry: Members) -> Wire:
    # Messages are the one kind that clients send without a type.
    kind = "message" if not entry.has("type") and entry.has("role") else entry.required_string("type")
    read = _READERS.get(kind)
    if read is None:
        raise _unknown(entry, kind)
    identity = entry.string("id")
    if identity == "":
        raise entry.invalid("id", "must not be empty")
    return {"id": identity or new_id(kind), "type": kind} | read(entry)


def _unknown(entry: Members, kind: str) -> RequestError:
    tables = spec.document("http/responses")
    lacking = tables["refused_items"].get(kind)
    if lacking is not None:
        return entry.invalid(
            "type", f"{kind} is not supported: NInfer does not provide {lacking}", _UNSUPPORTED
        )
    return entry.invalid("type", f"must be one of {', '.join(tables['items'])}, not {shown(kind)}")


def _message(entry: Members) -> dict[str, Any]:
    entry.required_string("role")
    role = entry.choice("role", spec.document("http/responses")["roles"])
    assert role is not None
    wire: dict[str, Any] = {"status": entry.string("status") or "completed", "role": role}
    if (phase := entry.string("phase")) is not None:
        wire["phase"] = phase
    wire["content"] = read_content(entry, role)
    return wire


def _reasoning(entry: Members) -> dict[str, Any]:
    texts = [_reasoning_text(part) for part in _parts(entry, "content")]
    if not texts:
        raise entry.invalid(
            "content", "must hold the raw reasoning_text; a summary or encrypted_content cannot stand for it"
        )
    summary = [_summary_text(part) for part in _parts(entry, "summary")]
    wire: dict[str, Any] = {"summary": summary, "content": texts}
    for name in ("encrypted_content", "status"):
        if (value := entry.string(name)) is not None:
            wire[name] = value
    return wire


def _parts(entry: Members, name: str) -> list[Members]:
    if entry.value(name) is None:
        return []
    return entry.required_objects(name)


def _reasoning_text(part: Members) -> Wire:
    part.required_string("type")
    part.choice("type", ("reasoning_text",))
    return {"type": "reasoning_text", "text": part.required_string("text")}


def _summary_text(part: Members) -> Wire:
    part.required_string("type")
    part.choice("type", ("summary_text",))
    return {"type": "summary_text", "text": part.required_string("text")}


def _function_call(entry: Members) -> dict[str, Any]:
    wire = _call_reference(entry)
    wire["name"] = tool_name(entry)
    wire["arguments"] = entry.required_string("arguments")
    if not wire["arguments"].strip():
        raise entry.invalid("arguments", "must be the text of a JSON object, not empty")
    return wire


def _function_call_output(entry: Members) -> dict[str, Any]:
    wire = _call_reference(entry)
    if (name := entry.string("name")) is not None:
        wire["name"] = name
    wire["output"] = read_output(entry)
    return wire


def _call_reference(entry: Members) -> dict[str, Any]:
    """What a call and its result have alike; only finished ones can be history."""
    call_id = entry.required_string("call_id")
    if not call_id:
        raise entry.invalid("call_id", "must not be empty")
    status = entry.string("status") or "completed"
    if status != "completed":
        raise entry.invalid("status", f"must be completed, not {shown(status)}", _UNSUPPORTED)
    wire: dict[str, Any] = {"status": status, "call_id": call_id}
    if (namespace := entry.string("namespace")) is not None:
        wire["namespace"] = namespace
    return wire


_READERS: Mapping[str, Callable[[Members], dict[str, Any]]] = {
    "message": _message,
    "reasoning": _reasoning,
    "function_call": _function_call,
    "function_call_output": _function_call_output,
}
