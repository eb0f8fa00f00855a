"""Presets by architecture and thinking mode, as registered."""

from __future__ import annotations

import pytest

from ninfer import spec
from ninfer.model.config import parse_text_config
from ninfer.model.presets import Preset, preset
from ninfer.sampling.parameters import sampling_range
from tests.model.published import QWEN_27B, QWEN_35B


@pytest.mark.clause_early("PRESET-001", "PRESET-002", "PRESET-003", "PRESET-004", "PRESET-005", "PRESET-006")
@pytest.mark.parametrize(
    ("text", "thinking", "expected"),
    [
        (QWEN_27B, True, Preset(1.0, 0.95, 20, 0.0, 0.0, 0.0)),
        (QWEN_27B, False, Preset(0.7, 0.8, 20, 0.0, 1.5, 0.0)),
        (QWEN_35B, True, Preset(1.0, 0.95, 20, 0.0, 1.5, 0.0)),
        (QWEN_35B, False, Preset(0.7, 0.8, 20, 0.0, 1.5, 0.0)),
    ],
    ids=["dense-thinking", "dense-plain", "moe-thinking", "moe-plain"],
)
def test_registered(text: dict, thinking: bool, expected: Preset) -> None:
    assert preset(parse_text_config(text), thinking) == expected


def test_every_architecture_has_a_row_within_the_ranges() -> None:
    known = {row["architecture"] for row in spec.document("models/qwen3_5")["architectures"]["text"]}
    rows = {row["architecture"]: row for row in spec.document("models/presets")["presets"]}
    assert rows.keys() == known
    for row in rows.values():
        for mode in ("thinking", "non_thinking"):
            for name, value in row[mode].items():
                assert sampling_range(name).problem(value) is None
