"""What the request log and the console say of tool markup in an answer."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from ninfer.engine.scripted import Play, Script, Step
from tests.server.conftest import MODEL
from tests.server.engines import RecordingEngine
from tests.server.inprocess import serving
from tests.server.observe.lines import Log

PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}
CLOSED = {"enable_thinking": False}


def call(*parameters: tuple[str, str], name: str = "f") -> str:
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


def parsed(
    nano: Path, log: Log, text: str, arguments: tuple[str, ...] = (), **members: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """``tool_call_parse`` and the message of an answer that is ``text``, with the tool f declared."""
    engine = RecordingEngine(Script(default=Play((Step(text=text),))))
    asked: dict[str, Any] = CLOSED | {"tools": [TOOL], "tool_constraints": "auto"} | members
    with serving(nano, engine, (*MODEL, *arguments, *log.arguments)) as client:
        answer = client.chat(**asked)
        assert answer.status == 200, answer.body
        (line,) = log.done()
    return line["result"]["tool_call_parse"], answer.json["choices"][0]["message"]


NOTHING = {
    "marker_seen": False,
    "structured_call_count": 0,
    "empty_arguments_omitted": 0,
    "schema_mismatch_arguments": 0,
    "duplicate_parameters_repaired": 0,
    "fallback_reason": "none",
    "tolerant_recovered": False,
    "recovered_from_reasoning": False,
}


@pytest.mark.clause("JLOG-016", "JLOG-047")
def test_one_valid_call(nano: Path, log: Log) -> None:
    parse, message = parsed(nano, log, call(("b", "ZEBRA")))
    assert parse == NOTHING | {"marker_seen": True, "structured_call_count": 1}
    assert "ZEBRA" in message["tool_calls"][0]["function"]["arguments"]
    assert b"ZEBRA" not in log.path.read_bytes()


def test_no_tools(nano: Path, log: Log) -> None:
    parse, _ = parsed(nano, log, call(("b", "x")), tools=None, tool_constraints=None)
    assert parse == NOTHING


@pytest.mark.clause("JLOG-048")
def test_a_parameter_named_three_times(nano: Path, log: Log) -> None:
    parse, message = parsed(nano, log, call(("a", "1"), ("a", "2"), ("a", "3")))
    assert parse["duplicate_parameters_repaired"] == 2
    assert parse["structured_call_count"] == 1
    assert message["tool_calls"][0]["function"]["arguments"].replace(" ", "") == '{"a":3}'


CUT = "<tool_call>\n<function=f>\n<parameter=b>\nvalue\n</parameter>\n"
FALLBACKS = [
    ("<tool_call>\nnothing that is a call\n</tool_call>", (), "malformed_structure"),
    (call(("b", "x"), name="no name"), (), "invalid_tool_name"),
    (call(("b", "x"), name="other"), (), "undeclared_tool"),
    (call(("b", "x")) + "\nand more", (), "trailing_content"),
    ("<tool_call>\n<function=f>\n<parameter=b>\nval", ("--tolerant-tool-calls",), "truncated_tail"),
]


@pytest.mark.clause("JLOG-050")
@pytest.mark.parametrize(("text", "arguments", "reason"), FALLBACKS, ids=[entry[2] for entry in FALLBACKS])
def test_each_reason_to_fall_back(
    nano: Path, log: Log, text: str, arguments: tuple[str, ...], reason: str
) -> None:
    members = {"max_tokens": 1} if reason == "truncated_tail" else {}
    parse, message = parsed(nano, log, text, arguments, **members)
    assert (parse["fallback_reason"], parse["structured_call_count"]) == (reason, 0)
    assert message.get("tool_calls") is None
    assert "<function" in message["content"] or "<tool_call>" in message["content"]


@pytest.mark.clause("JLOG-051")
def test_a_cut_call(nano: Path, log: Log, tmp_path: Path) -> None:
    strict, message = parsed(nano, log, CUT, max_tokens=1)
    assert strict["fallback_reason"] not in ("none", "truncated_tail")
    assert message.get("tool_calls") is None
    tolerant = Log(tmp_path / "tolerant.jsonl")
    parse, message = parsed(nano, tolerant, CUT, ("--tolerant-tool-calls",), max_tokens=1)
    assert (parse["fallback_reason"], parse["structured_call_count"]) == ("truncated_tail", 1)
    assert len(message["tool_calls"]) == 1


@pytest.mark.clause("JLOG-052")
@pytest.mark.parametrize(
    ("text", "recovered"),
    [
        (call(("b", "x")).replace("<function=f>", "function=f>"), True),
        (call(("b", "x")).replace("<function=f>", "<function=f"), True),
        (call(("b", "x"), name="other"), True),
        (call(("b", "x")), False),
    ],
    ids=["no <", "no >", "undeclared", "ordinary"],
)
def test_tolerant_recovery(nano: Path, log: Log, text: str, recovered: bool) -> None:
    parse, message = parsed(nano, log, text, ("--tolerant-tool-calls",))
    assert parse["tolerant_recovered"] is recovered
    assert parse["structured_call_count"] == len(message["tool_calls"]) == 1


@pytest.mark.clause("JLOG-053")
@pytest.mark.parametrize(
    ("text", "from_thinking"),
    [("hm\n" + call(("b", "x")), True), ("hm</think>\n\n" + call(("b", "x")), False)],
)
def test_calls_from_unclosed_thinking(nano: Path, log: Log, text: str, from_thinking: bool) -> None:
    parse, message = parsed(nano, log, text, ("--tolerant-tool-calls",), enable_thinking=True)
    assert parse["recovered_from_reasoning"] is from_thinking
    assert len(message["tool_calls"]) == 1


def logged(caplog: pytest.LogCaptureFixture, word: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if word in record.getMessage()]


@pytest.mark.clause("LOG-012", "LOG-013", "LOG-014")
def test_returned_markup_is_one_warning(
    nano: Path, log: Log, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """240 bytes from the marker on, white space as spaces, an ellipsis where it was cut; never in the log."""
    long = "<tool_call>\nZEBRA\t" + "x" * 400
    parse, _ = parsed(nano, log, "before " + long)
    (warning,) = logged(caplog, "tool markup returned as text")
    assert warning.levelname == "WARNING"
    shown = warning.getMessage()
    assert "malformed_structure" in shown
    expected = long.replace("\n", " ").replace("\t", " ")[:240] + "..."
    assert shown.endswith(f": {expected}")
    assert parse["fallback_reason"] == "malformed_structure"
    assert b"ZEBRA" not in log.path.read_bytes()
    caplog.clear()
    parsed(nano, Log(tmp_path / "short.jsonl"), "<tool_call>\na\tb\n" + "y" * 30)
    (warning,) = logged(caplog, "tool markup returned as text")
    assert warning.getMessage().endswith(": <tool_call> a b " + "y" * 30)


@pytest.mark.clause("LOG-017")
def test_a_recovery_is_told_at_info(nano: Path, log: Log, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ninfer.server")
    parsed(nano, log, call(("b", "x")) + "\nand more", ("--tolerant-tool-calls",))
    (record,) = logged(caplog, "tool calls recovered")
    assert record.levelname == "INFO"
    assert [entry for entry in caplog.records if entry.levelno >= logging.WARNING] == []
