"""Floors counted a second way, fractions by hand, and one small run of everything."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import torch

from ninfer.artifact import Artifact
from ninfer.model.config import parse_text_config
from tests.support.nano import ROWS, nano_artifact
from tools.bench import roofline
from tools.bench.bars import Bar, bars_svg
from tools.bench.ceilings import Ceilings, best
from tools.bench.phases import Floors, floors
from tools.bench.roofline import Measured, Step

NO_MATRICES = ("convolution", "token_embedding")


@pytest.fixture(scope="module")
def nano(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nano_artifact(tmp_path_factory.mktemp("nano"), recipe="q8")


@pytest.mark.parametrize("tied", [False, True])
def test_floors_count_every_matrix_once(tmp_path: Path, tied: bool) -> None:
    """In bf16: all parameters but vectors, the convolution, the MTP head, and the embedding's own copy."""
    with Artifact.open(nano_artifact(tmp_path, tied=tied)) as artifact:
        config = parse_text_config(artifact.directory.components["text"].config)
        found = floors(artifact, config, "bf16")
        names = [name for name in artifact.directory.bindings if name.startswith("text/layers/")]
        shapes = {name: artifact.parameter_shape(name) for name in names}
    layers = sum(
        rows[0] * rows[1]
        for name, rows in shapes.items()
        if len(rows) == 2 and not name.endswith("convolution")
    )
    head = ROWS * config.hidden
    assert (found.layer_parameters, found.head_parameters) == (layers, head)
    assert found.matrix_bytes == 2 * (layers + head)
    attention = config.attention
    assert attention is not None
    count = config.layer_types.count("full_attention")
    assert found.kv_bytes == 2 * 2 * count * attention.kv_heads * attention.head_dim


def test_scales_count_as_bytes(nano: Path) -> None:
    """q8: rows of whole 128s, a byte an element and two a group of 32; small projections stay in bf16."""
    expected = 0
    with Artifact.open(nano) as artifact:
        found = floors(artifact, parse_text_config(artifact.directory.components["text"].config), "int8")
        for name in artifact.directory.bindings:
            shape = artifact.parameter_shape(name)
            if name.startswith("text/") and len(shape) == 2 and name.split("/")[-1] not in NO_MATRICES:
                rows, columns = shape
                words = artifact.parameter_formats(name) == ("bf16",)
                expected += rows * (2 * columns if words else -(-columns // 128) * 128 * 34 // 32)
    assert found.matrix_bytes == expected


def test_what_decoding_and_prefill_cost() -> None:
    costs = Floors(matrix_bytes=1000, kv_bytes=10.0, layer_parameters=7, head_parameters=5)
    # Three tokens after four: each reads the matrices, and 5, 6 and 7 tokens' keys and values.
    assert costs.decode_bytes(4, 3) == 3 * 1000 + 10 * (5 + 6 + 7)
    assert costs.prefill_flops(6) == 2 * (6 * 7 + 5)


def test_a_phase_is_judged_by_the_ceilings_around_it() -> None:
    ceilings = iter([100.0, 300.0])
    measured = Measured("m", "p", "read", 0.5)
    Step(measured, lambda: 2.0, 8, 50.0, lambda: next(ceilings)).take()
    # 8 tokens in 2 s; 50 bytes at 200 bytes a second would take a quarter of one.
    assert measured.rates == [4.0]
    assert measured.floor_rates == [32.0]
    assert measured.fractions == [0.125]


def test_the_table_takes_medians_and_says_whether_the_target_is_met() -> None:
    met, missed = Measured("q8", "decode @0", "read", 0.45), Measured("q8", "decode @9", "read", 0.45)
    for rate in (1.0, 5.0, 40.0):
        met.note(rate, 10.0)
        missed.note(rate / 2, 10.0)
    rows = roofline.table([met, missed]).splitlines()
    assert rows[1].split() == [
        "q8",
        "decode",
        "@0",
        "5.0",
        "10.0",
        "0.500",
        "0.10..4.00",
        "0.45",
        "yes",
        "read",
    ]
    assert rows[2].split()[-2:] == ["no", "read"]


def test_ceilings_are_measured() -> None:
    torch.set_num_threads(1)
    ceilings = Ceilings(1, 1 << 24)
    try:
        assert ceilings.read() > 1e8
        assert ceilings.gemm(torch.float32) > 1e8
    finally:
        ceilings.close()
    assert best(lambda: None) >= 0


def test_the_chart_is_svg_with_a_bar_for_each_value() -> None:
    bars = [Bar("decode <0>", "bf16", 0.5, 0.4, 0.6, 0.52), Bar("decode <0>", "q8", 1.2, 1.1, 1.3, None)]
    root = ET.fromstring(bars_svg("share", bars))
    space = "{http://www.w3.org/2000/svg}"
    heights = [
        float(rect.get("height", 0)) for rect in root.iter(f"{space}rect") if rect.get("fill", "")[0] == "#"
    ]
    assert heights[:2] == [pytest.approx(260 * 0.5 / 1.3, abs=0.1), pytest.approx(260 * 1.2 / 1.3, abs=0.1)]
    assert "decode <0>" in [text.text for text in root.iter(f"{space}text")]
    reds = [line for line in root.iter(f"{space}line") if line.get("stroke") == "#c00000"]
    assert len(reds) == 1


@pytest.mark.timeout(900)  # the first start on a machine compiles the kernels
def test_a_small_run(nano: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = {"--json": tmp_path / "r.json", "--plot": tmp_path / "r.svg"}
    sizes = {"--contexts": "0,70", "--prompts": 100, "--tokens": 3, "--repetitions": 2, "--read-mib": 16}
    arguments = [str(part) for pair in (sizes | paths).items() for part in pair]
    roofline.main(["--artifact", str(nano), "--threads", "1", *arguments])
    out = capsys.readouterr().out
    assert [line.split()[1:3] for line in out.splitlines()[2:]] == [
        ["decode", "@0"],
        ["decode", "@70"],
        ["prefill", "100"],
    ]
    document = json.loads(paths["--json"].read_text())
    assert all(len(row["rates"]) == len(row["fractions"]) == 2 for row in document["phases"])
    assert all(share > 0 for row in document["phases"] for share in row["fractions"])
    ET.parse(paths["--plot"])
