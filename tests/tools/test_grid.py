"""Cells of several runs on a GPU as one document: targets, the later figure, charts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tools.bench import grid
from tools.bench.roofline import main
from tools.gpu_check.random_model import FORMATS, config_of

COPY = 4e12


def row(cell: str, phase: str, ms: float, floor_ms: float | None = None, **more: float) -> dict[str, Any]:
    shares = {} if floor_ms is None else {"floor_ms": floor_ms, "fraction": floor_ms / ms}
    return {"cell": cell, "phase": phase, "ms": ms, "tok_s": 1e3 / ms, **shares, **more}


def document(*rows: dict[str, Any], device: str = "a GPU") -> grid.Document:
    return {"device": device, "copy_b_s": COPY, "gemm_flop_s": 1e15, "cells": list(rows)}


def test_the_grid_names_what_can_be_made() -> None:
    assert set(grid.FORMATS) == set(FORMATS)
    assert len(grid.full_grid()) == 35
    assert set(grid.QUICK) < set(grid.full_grid())
    for size in grid.SIZES:
        assert config_of(size).layers


def test_the_later_run_counts_and_keeps_its_own_copy_rate() -> None:
    first = document(
        row("27B:q4", "decode b1 @8192", 10, 4, gap_ms=0.1), row("27B:q4", "verify 4 @8192", 9, 3)
    )
    second = {**document(row("27B:q4", "decode b1 @8192", 8, 4, gap_ms=0.1)), "copy_b_s": 5e12}
    rows = {(r["cell"], r["phase"]): r for r in grid.merge([first, second])["cells"]}
    assert rows["27B:q4", "decode b1 @8192"]["ms"] == 8
    assert rows["27B:q4", "decode b1 @8192"]["copy_b_s"] == 5e12
    assert rows["27B:q4", "verify 4 @8192"]["copy_b_s"] == COPY
    with pytest.raises(ValueError, match="a GPU, another"):
        grid.merge([first, document(device="another")])


def test_targets_are_judged_where_figures_are() -> None:
    found = {
        (verdict.cell, verdict.what.split(",")[0]): verdict
        for verdict in grid.verdicts(
            document(
                row("27B:bf16", "decode b1 @0", 10.0, 9.0, gap_ms=0.1),
                row("27B:bf16", "decode b1 @8192", 10.2, 9.1, gap_ms=0.6),
                row("27B:bf16", "decode b1 @65536", 11.2, 10.0, gap_ms=0.1),
                row("27B:bf16", "verify 32 @8192", 20.0, 12.0),
                {"cell": "27B:bf16", "phase": "prefill 8192", "ms": 800.0, "tok_s": 10240.0},
                {"cell": "27B:q4", "phase": "prefill 8192", "ms": 1100.0, "tok_s": 7447.0},
            )
        )
    }
    met = {name: verdict.met for name, verdict in found.items()}
    assert met == {
        ("27B:bf16", "decode b1 @8192"): True,
        ("27B:bf16", "verify 32 @8192"): False,
        ("27B:bf16", "prefill 8192"): True,
        ("27B:q4", "prefill 8192"): False,
        ("27B:bf16", "host between rounds"): False,
        # 1.2 ms more where the bytes explain 1.0.
        ("27B:bf16", "decode b1 @65536 - @0"): False,
    }
    assert found["27B:q4", "prefill 8192"].found == pytest.approx(7447 / 10240)


def test_runs_become_one_file_and_a_chart_for_each_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = []
    for number, cell in enumerate(("27B:bf16", "35B-A3B:bf16")):
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps(document(row(cell, "decode b1 @8192", 10, 5, gap_ms=0.1))))
        paths.append(str(path))
    merged = tmp_path / "merged.json"
    main(["--merge", *paths, "--json", str(merged), "--plot", str(tmp_path / "chart.svg")])
    assert len(json.loads(merged.read_text())["cells"]) == 2
    assert "MISSED" in capsys.readouterr().out
    for size in ("27B", "35B-A3B"):
        assert f"{size}:bf16" in (tmp_path / f"chart-{size}.svg").read_text()
