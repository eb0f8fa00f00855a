"""The golden cases of tool-call text (``spec/vectors/tools.json``) as cases behind a real server.

Those whose end a script can play: by the model's stop token or at the output limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conformance.http.cases import Case
from conformance.http.contract import vectors

_FIRST_SEED = 5000
_TOKEN_CHARACTERS = 3


def vector_cases() -> list[Case]:
    """One case a vector; its model says the text in small tokens."""
    rows = vectors("tools")
    return [_case(index, row) for index, row in enumerate(rows) if row["input"].get("stopped", True)]


def spoken_vectors() -> dict[int, list[str]]:
    """The tokens of each case by its seed."""
    return {case.seed: list(case.says or ()) for case in vector_cases() if case.seed is not None}


def _case(index: int, row: Mapping[str, Any]) -> Case:
    given, expected = row["input"], row["expected"]
    thinking = given.get("channel") == "reasoning"
    text = given["text"]
    if given.get("then") or given.get("thinking_closed"):
        text += "\n</think>\n\n" + given.get("then", "")
    tokens = [text[at : at + _TOKEN_CHARACTERS] for at in range(0, len(text), _TOKEN_CHARACTERS)]
    truncated = given.get("truncated", False)
    calls = [[call["name"], call["arguments"]] for call in expected["calls"]]
    # A limit stays the reason, whatever was called before it.
    reason = "length" if truncated else "tool_calls" if calls else "stop"
    return Case(
        name=row["name"],
        protocol="chat",
        expect={
            "status": 200,
            "content": expected["content"],
            "reasoning": expected.get("reasoning", ""),
            "calls": calls,
            "reason": reason,
        },
        clauses=tuple(row.get("clauses", ())),
        ask={
            "tools": [_tool(name, properties) for name, properties in given["tools"].items()],
            "enable_thinking": thinking,
            "max_tokens": len(tokens) if truncated else len(tokens) + 1,
        },
        says=tuple(tokens),
        server=("--tolerant-tool-calls",) if given.get("tolerant") else (),
        seed=_FIRST_SEED + index,
    )


def _tool(name: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    named = dict(properties)
    required = named.pop("$required", None)
    schema = {"type": "object", "properties": named} | ({} if required is None else {"required": required})
    return {"type": "function", "function": {"name": name, "parameters": schema}}
