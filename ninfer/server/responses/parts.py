"""The content parts of input Items.

Owns which part may stand where, and its normalised form.
"""

from __future__ import annotations

from typing import Any

from ninfer import spec
from ninfer.errors import RequestError
from ninfer.server.cache_hints import read_breakpoint
from ninfer.server.members import Members, objects, shown

_UNSUPPORTED = "unsupported_value"
_CONTENT = "a string or an array of content parts"


def read_content(entry: Members, role: str) -> list[dict[str, Any]]:
    """The parts of a message's ``content``. Errors: ``RequestError`` naming the part and member."""
    content = entry.value("content")
    if isinstance(content, str):
        return [_output_text(content) if role == "assistant" else {"type": "input_text", "text": content}]
    if not isinstance(content, list):
        raise entry.wrong_type("content", _CONTENT) if entry.has("content") else entry.missing("content")
    return [_part(part, role) for part in objects(content, entry.at("content"))]


def read_output(entry: Members) -> str | list[dict[str, Any]]:
    """The ``output`` of a function call: text, or at least one part."""
    output = entry.value("output")
    if isinstance(output, str):
        return output
    if not isinstance(output, list):
        raise entry.wrong_type("output", _CONTENT) if entry.has("output") else entry.missing("output")
    if not output:
        raise entry.invalid("output", "must hold at least one part")
    return [_result_part(part) for part in objects(output, entry.at("output"))]


def _part(part: Members, role: str) -> dict[str, Any]:
    kind = part.required_string("type")
    if kind == "input_text":
        return _input_text(part)
    tables = spec.document("http/responses")
    if kind in tables["assistant_parts"]:
        if role != "assistant":
            raise part.invalid(
                "type", f"{kind} stands only in assistant messages, not in those of role {role}"
            )
        if kind == "refusal":
            return {"type": "refusal", "refusal": part.required_string("refusal")}
        return _output_text(part.required_string("text"))
    if kind in tables["vision_parts"]:
        if role not in ("user", "assistant"):
            raise part.invalid("type", f"{kind} is not allowed in messages of role {role}")
        raise _media(part, kind)
    raise _unknown(part, kind, ("input_text", *tables["assistant_parts"], *tables["vision_parts"]))


def _result_part(part: Members) -> dict[str, Any]:
    kind = part.required_string("type")
    if kind == "input_text":
        return _input_text(part)
    if kind == "input_image":
        raise _media(part, kind)
    raise _unknown(part, kind, ("input_text", "input_image"))


def _input_text(part: Members) -> dict[str, Any]:
    wire: dict[str, Any] = {"type": "input_text", "text": part.required_string("text")}
    if read_breakpoint(part):
        wire["prompt_cache_breakpoint"] = {"mode": "explicit"}
    return wire


def _output_text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _media(part: Members, kind: str) -> RequestError:
    """Why a media part cannot be had: what it names first, then that this server runs without vision."""
    if part.value("file_id") is not None:
        return part.invalid(
            "file_id", "is not supported: NInfer does not provide files", "unsupported_parameter"
        )
    if (detail := part.string("detail")) not in (None, "auto"):
        return part.invalid("detail", f"must be auto, not {shown(str(detail))}", _UNSUPPORTED)
    part.required_string(spec.document("http/responses")["vision_parts"][kind])
    return RequestError(
        "vision_disabled", f"{part.path} is media, but this server runs without --vision.", part.path
    )


def _unknown(part: Members, kind: str, allowed: tuple[str, ...]) -> RequestError:
    lacking = spec.document("http/responses")["refused_parts"].get(kind)
    if lacking is not None:
        return part.invalid(
            "type", f"{kind} is not supported: NInfer does not provide {lacking}", _UNSUPPORTED
        )
    return part.invalid("type", f"must be one of {', '.join(allowed)}, not {shown(kind)}")
