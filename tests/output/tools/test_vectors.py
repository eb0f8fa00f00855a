"""The golden cases of ``spec/vectors/tools.json``, each in several cuts."""

from __future__ import annotations

from typing import Any

import pytest

from ninfer.spec import document
from tests.output.tools.running import cut, run

VECTORS = document("vectors/tools")


@pytest.mark.parametrize("case", VECTORS, ids=lambda case: case["name"])
def test_golden_case_in_every_cut(case: dict[str, Any]) -> None:
    given, expected = dict(case["input"]), case["expected"]
    text, tools, then = given.pop("text"), given.pop("tools"), given.pop("then", "")
    channel = given.pop("channel", "content")
    for size in (1, 2, 3, 7, 16, len(text)):
        pieces = cut(channel, text, size) + ([("content", then)] if then else [])
        outcome = run(pieces, tools, **given)
        assert outcome.content == expected["content"], size
        assert outcome.reasoning == expected.get("reasoning", ""), size
        assert outcome.calls == tuple((call["name"], call["arguments"]) for call in expected["calls"]), size
        found = {name: outcome.diagnostics[name] for name in expected.get("diagnostics", {})}
        assert found == expected.get("diagnostics", {}), size


def test_every_cut_in_two_gives_the_same() -> None:
    case = VECTORS[0]["input"]
    whole = run([("content", case["text"])], case["tools"])
    for at in range(len(case["text"]) + 1):
        pieces = [("content", case["text"][:at]), ("content", case["text"][at:])]
        assert run(pieces, case["tools"]) == whole  # type: ignore[arg-type]


def test_reasons_are_those_of_the_specification() -> None:
    reasons = {case["expected"].get("diagnostics", {}).get("fallback_reason", "none") for case in VECTORS}
    assert reasons == set(document("tools")["fallback_reasons"])
