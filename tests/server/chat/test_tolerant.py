"""``--tolerant-tool-calls``: what a spoilt call becomes, and what the request log says."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from ninfer.engine.scripted import Play, Script, Step
from tests.server.conftest import MODEL
from tests.server.engines import RecordingEngine
from tests.server.inprocess import serving

CALL = "<tool_call>\n<function=look>\n<parameter=city>\nLima\n</parameter>\n</function>\n</tool_call>"
SPOILT = CALL + "junk"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]


@pytest.mark.clause("OPT-082")
@pytest.mark.parametrize("tolerant", [False, True])
def test_a_call_with_a_suffix(nano: Path, tmp_path: Path, tolerant: bool) -> None:
    log = tmp_path / "requests.jsonl"
    arguments = [*MODEL, "--request-log-jsonl", str(log), *(["--tolerant-tool-calls"] if tolerant else [])]
    engine = RecordingEngine(Script(default=Play((Step(text=SPOILT),))))
    with serving(nano, engine, arguments) as client:
        (choice,) = client.chat(tools=TOOLS, enable_thinking=False).json["choices"]
        done = request_done(log)
    if not tolerant:
        assert choice["message"]["content"] == SPOILT
        assert "tool_calls" not in choice["message"]
        assert choice["finish_reason"] == "stop"
        return
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "look", "arguments": '{"city":"Lima"}'}
    assert choice["finish_reason"] == "tool_calls"
    (parse,) = found(done, "tool_call_parse")
    assert parse["tolerant_recovered"] is True
    assert parse["fallback_reason"] == "truncated_tail"


def request_done(log: Path) -> dict[str, Any]:
    """The log's line about the answer, once it is there."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        for line in log.read_text().splitlines():
            record: dict[str, Any] = json.loads(line)
            if record["event"] == "request_done":
                return record
        time.sleep(0.02)
    raise AssertionError("the request is not in the log")


def found(value: Any, name: str) -> list[Any]:
    """Every member of that name, wherever it stands."""
    if isinstance(value, dict):
        own = [value[name]] if name in value else []
        return own + [hit for item in value.values() for hit in found(item, name)]
    return []
