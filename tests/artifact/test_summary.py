"""Weight counts: distinct tensors, auxiliary inputs left out, formats by payload bytes."""

from __future__ import annotations

import pytest

from ninfer.artifact import schema
from ninfer.artifact.summary import FormatSummary, summarise
from tests.artifact.building import small_directory


@pytest.mark.clause_early("MODELS-007", "MODELS-008")
def test_shared_tensors_count_once_and_auxiliaries_not_at_all() -> None:
    found = summarise(schema.build(small_directory(), "e"))
    assert (found.tensors, found.parameters, found.payload_bytes) == (2, 16, 32)
    assert found.dominant_format == "bf16"
    assert found.by_format == {"bf16": FormatSummary(2, 16, 32)}


@pytest.mark.clause_early("MODELS-009")
def test_the_dominant_format_has_most_payload_bytes_not_most_parameters() -> None:
    value = small_directory()
    value["objects"][1] |= {"format": "q4_g64_fp16", "shape": [100, 100], "bytes": 200}
    value["objects"][2] |= {"format": "fp32", "bytes": 256}
    found = summarise(schema.build(value, "e"))
    assert found.dominant_format == "fp32"
    assert list(found.by_format) == ["fp32", "q4_g64_fp16"]
    assert found.by_format["q4_g64_fp16"].parameters == 10_000


def test_an_artifact_without_bindings_has_no_weights() -> None:
    value = small_directory() | {"bindings": {}, "uses": []}
    found = summarise(schema.build(value, "e"))
    assert (found.tensors, found.parameters, found.dominant_format, dict(found.by_format)) == (0, 0, "", {})
