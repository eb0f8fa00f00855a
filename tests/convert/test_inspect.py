"""``--inspect`` prints what is in the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from ninfer.artifact import Artifact
from ninfer.convert import convert
from ninfer.convert.inspect import describe
from ninfer.errors import ArtifactError
from tests.convert.checkpoints import nano


def test_the_report_names_everything_a_user_asks_for(tmp_path: Path) -> None:
    directory = nano("moe-vl").write(tmp_path / "nano")
    out = tmp_path / "out.ninfer"
    convert(
        directory,
        out,
        "groupwise-int",
        name="nano-moe",
        metadata={"note": "hand-made"},
        max_file_bytes=900_000,
    )
    report = describe(out)
    lines = report.splitlines()
    with Artifact.open(out) as artifact:
        summary = artifact.weight_summary()
        identity = artifact.artifact_id.hex()
        directory_ = artifact.directory
    assert f"public name   {'nano-moe'}" in lines
    assert f"artifact id   {identity}" in lines
    assert "  note: hand-made" in lines
    assert "  recipe: groupwise-int" in lines
    assert "component text: 167 parameters" in lines
    assert "component mtp for text: 42 parameters" in lines
    assert "  layer_types: 3 linear_attention, 1 full_attention; full attention at [3]" in lines
    assert '  architectures: ["Qwen3_5MoeForCausalLM"]' in lines
    assert any(line.startswith("  resource tokenizer.json: ") for line in lines)
    rows = {
        line.split()[0]: line.split()[1:]
        for line in lines
        if line and line.split()[0] in (*summary.by_format, "total")
    }
    for name, row in summary.by_format.items():
        assert rows[name][:3] == [f"{row.tensors:,}", f"{row.parameters:,}", f"{row.payload_bytes:,}"]
    assert rows["total"][:3] == [
        f"{summary.tensors:,}",
        f"{summary.parameters:,}",
        f"{summary.payload_bytes:,}",
    ]
    assert f"objects       {len(directory_.objects)}, 4 of them resources" in lines
    assert f"bindings      {len(directory_.bindings)}" in lines
    assert f"uses          {len(directory_.uses)} ({len(directory_.uses)} A16Only)" in lines
    assert len(directory_.files) == 2
    assert f"  out.ninfer.part-0001: {directory_.files[1].payload_bytes:,} bytes" in lines


def test_it_needs_no_payload(tmp_path: Path) -> None:
    directory = nano("dense").write(tmp_path / "nano")
    convert(directory, tmp_path / "out.ninfer", "bf16", max_file_bytes=400_000)
    (tmp_path / "out.ninfer.part-0001").unlink()
    assert "component text: 63 parameters" in describe(tmp_path / "out.ninfer")


def test_what_is_not_an_artifact_is_refused(tmp_path: Path) -> None:
    (tmp_path / "no.ninfer").write_bytes(b"NINFER\0\2" + bytes(100))
    with pytest.raises(ArtifactError):
        describe(tmp_path / "no.ninfer")
