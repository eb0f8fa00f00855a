"""Grades an answer by rule: exact text, equal JSON, equal tool calls, or only that it ends.

Raw text, as a model wrote it, is parsed here, strictly; an answer of a server has its calls beside its text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from tools.tiny.data.exchange import Call, Exchange

_CALL = re.compile(r"<tool_call>\n<function=([^>\n]+)>\n(.*?)</function>\n</tool_call>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n(.*?)\n</parameter>\n", re.DOTALL)


def is_right(exchange: Exchange, text: str, ended: bool) -> bool:
    """Whether ``text`` (the content channel) answers ``exchange``; an answer that never ends is wrong."""
    if not ended:
        return False
    if exchange.rule == "stop":
        return bool(text.strip())
    if exchange.rule == "json":
        return _equal_json(text, exchange.answer)
    if exchange.rule == "calls":
        return calls_in(text, exchange.tools) == list(exchange.calls)
    return text.strip() == exchange.answer.strip()


def is_right_answer(exchange: Exchange, text: str, calls: Sequence[Call], ended: bool) -> bool:
    """Whether a server's ``text`` and ``calls`` answer ``exchange``; calls stand alone, where asked only."""
    if exchange.rule == "calls":
        return ended and not text and _plain(calls) == _plain(exchange.calls)
    return not calls and is_right(exchange, text, ended)


def _plain(calls: Sequence[Call]) -> str:
    """Calls as JSON, which tells 1, 1.0 and true apart; members in any order."""
    return json.dumps([(call.name, call.arguments) for call in calls], sort_keys=True)


def _equal_json(text: str, wanted: str) -> bool:
    try:
        value = json.loads(text)
    except ValueError:
        return False
    # 1, 1.0 and true are equal in Python but not in JSON.
    return json.dumps(value, sort_keys=True) == json.dumps(json.loads(wanted), sort_keys=True)


def calls_in(text: str, tools: tuple[dict[str, Any], ...]) -> list[Call] | None:
    """The calls that ``text`` consists of, typed by their declarations; None where anything else is in it."""
    declared = {tool["function"]["name"]: tool["function"]["parameters"]["properties"] for tool in tools}
    if _CALL.sub("", text).strip():
        return None
    calls = []
    for name, body in _CALL.findall(text):
        arguments = _arguments(body, declared.get(name))
        if arguments is None:
            return None
        calls.append(Call(name, arguments))
    return calls


def _arguments(body: str, schemas: dict[str, Any] | None) -> dict[str, Any] | None:
    if schemas is None or _PARAMETER.sub("", body):
        return None
    arguments: dict[str, Any] = {}
    for key, value in _PARAMETER.findall(body):
        if key not in schemas or key in arguments:
            return None
        if schemas[key]["type"] == "string":
            arguments[key] = value
            continue
        try:
            arguments[key] = json.loads(value)
        except ValueError:
            return None
        if isinstance(arguments[key], bool) != (schemas[key]["type"] == "boolean"):
            return None
    return arguments
