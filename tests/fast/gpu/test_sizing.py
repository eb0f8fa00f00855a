"""Automatic sizing of the KV pool: what is counted, in which order, and what is said of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ninfer.artifact import Artifact
from ninfer.engine.events import LogRecord
from ninfer.engine.settings import DraftSettings
from ninfer.fast.prefix.limits import CacheLimits
from ninfer.fast.program.gpu import program as program_module
from ninfer.fast.program.gpu.chunk import Chunk
from ninfer.fast.program.gpu.control import Control, ControlSizes
from ninfer.fast.program.gpu.device import Waiter
from ninfer.fast.program.gpu.graphs import Graphs
from ninfer.fast.program.gpu.memory import GpuPages, page_bytes
from ninfer.fast.program.gpu.open import report_memory, resources_of
from ninfer.fast.program.gpu.parameters import load_text_model
from ninfer.fast.program.gpu.program import GpuOptions, GpuProgram, Ledger
from ninfer.fast.program.gpu.rehearsal import rehearse
from ninfer.fast.program.gpu.shapes import Families, widths_of
from ninfer.fast.program.gpu.sizing import Sizing
from ninfer.fast.program.gpu.weights import GpuLoader
from ninfer.model.config import TextConfig, parse_text_config
from tests.support.nano import VOCABULARY, nano_artifact

CPU = torch.device("cpu")
MIB = 2**20


@pytest.mark.clause_early("JLOG-021")
@given(st.integers(0, 1 << 40), st.integers(0, 1 << 34), st.integers(0, 1 << 30), st.integers(1, 1 << 24))
def test_the_parts_of_the_ledger_add_up(free: int, headroom: int, allowance: int, page: int) -> None:
    sizing = Sizing(free, headroom, allowance, page)
    assert sizing.headroom + sizing.graph_allowance + sizing.payload + sizing.unused == free
    assert 0 <= sizing.unused < page or (sizing.pages == 0 and sizing.unused < page)


@pytest.mark.clause_early("OPT-011", "CAP-007")
def test_a_gib_more_headroom_is_a_gib_less_of_pages() -> None:
    page = 393_216
    one, two = (Sizing(100 << 30, mib * MIB, 72 * MIB, page) for mib in (1024, 2048))
    assert abs(one.payload - two.payload - (1 << 30)) < page


def program_of(path: Path, options: GpuOptions) -> tuple[GpuProgram, TextConfig]:
    with Artifact.open(path) as artifact:
        config = parse_text_config(artifact.directory.components["text"].config)
        model = load_text_model(GpuLoader(artifact, CPU), config)
    return GpuProgram(model, config, options, CPU), config


def options_of(**members: Any) -> GpuOptions:
    sizes = {"lanes": 2, "max_context": 128, "pages": None, "kv_format": "bf16", "prefill_chunk": 64}
    return GpuOptions(**sizes | {"vocabulary": VOCABULARY, "activations": torch.float32} | members)


@pytest.mark.clause_early("CAP-007", "START-007")
def test_free_memory_is_asked_for_when_everything_else_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = []

    def rehearsed(forward: Any, *others: Any) -> None:
        steps.append("rehearsed" if forward._pages is not None and forward._pages.pages == 1 else "no page")

    def free(device: torch.device) -> int:
        steps.append("asked")
        return 40 * MIB

    monkeypatch.setattr(program_module, "rehearse", rehearsed)
    monkeypatch.setattr(program_module, "free_bytes", free)
    path = nano_artifact(tmp_path, "dense", mtp=False, recipe="bf16")
    program, config = program_of(path, options_of(headroom=8 * MIB, kv_format="int8"))
    assert steps == ["rehearsed", "asked"]
    pages = (40 - 8) * MIB // page_bytes(config, "int8")
    assert program.options.pages == pages
    assert program.pages is not None
    assert program.pages.pages == pages
    resources = resources_of(program, SimpleNamespace(snapshot_slots=0, reuse=True))  # type: ignore[arg-type]
    assert (resources.sizing_free_bytes, resources.sizing_headroom_bytes) == (40 * MIB, 8 * MIB)
    explicit, _ = program_of(path, options_of(pages=4))
    assert explicit.sizing is None


class Spy:
    """Stands for ``Forward`` and ``Prefill``."""

    def __init__(self) -> None:
        self.chunks: list[tuple[int, int]] = []
        self.rounds: list[tuple[str, int]] = []

    def run(self, chunk: Chunk) -> None:
        np.testing.assert_array_equal(chunk.axes[0], chunk.start + np.arange(len(chunk.tokens)))
        self.chunks.append((chunk.start, len(chunk.tokens)))

    def forward(self, shape: Any) -> None:
        self.rounds.append(("forward", shape.rows))

    def finish(self, rows: int) -> None:
        self.rounds.append(("finish", rows))

    def fold(self, blocks: int) -> None:
        self.rounds.append(("fold", blocks))

    def head(self, rows: int) -> None:
        self.rounds.append(("head", rows))


def test_a_rehearsal_runs_a_whole_chunk_and_every_shape() -> None:
    spy, control = Spy(), Control(ControlSizes(12, lanes=3, pages=2, vocabulary=64), CPU, Waiter(CPU))
    control.host_blocks[:] = 9
    families = Families(3, (4,))
    rehearse(cast(Any, spy), cast(Any, spy), control, families, options_of(lanes=3))
    assert (0, 64) in spy.chunks
    assert (0, 1) in spy.chunks
    assert any(start % 16 for start, _ in spy.chunks)
    assert {rows for name, rows in spy.rounds if name == "forward"} == {1, 2, 3, 4, 8, 12}
    assert {rows for name, rows in spy.rounds if name == "finish"} == {1, 2, 3, 4, 8, 12}
    assert {blocks for name, blocks in spy.rounds if name == "fold"} == {1, 2, 3}
    assert ("head", 1) in spy.rounds
    control.arrive()
    assert control.blocks[:3, 3].tolist() == [0, 0, 0], "a rehearsed round commits no state"
    assert control.words[:, 2:5].eq(-1).all()


@pytest.mark.parametrize("kv_format", ["bf16", "int8", "fp8", "nvfp4", "k8v4"])
def test_the_planes_of_a_pool_are_apart(kv_format: str, tmp_path: Path) -> None:
    path = nano_artifact(tmp_path, "dense", mtp=False, recipe="bf16")
    with Artifact.open(path) as artifact:
        config = parse_text_config(artifact.directory.components["text"].config)
    assert config.attention is not None
    pages = GpuPages(config.attention, [1, 3], 3, kv_format, CPU)
    planes = [
        plane
        for pool in pages.layers.values()
        for plane in (pool.keys, pool.key_scales, pool.values, pool.value_scales)
        if plane.numel()
    ]
    for number, plane in enumerate(planes):
        assert plane.is_contiguous()
        assert plane.data_ptr() % 64 == 0
        plane.fill_(number + 1)
    assert [float(plane.float().unique().item()) for plane in planes] == list(range(1, len(planes) + 1))


@pytest.mark.clause_early("CAP-014")
@pytest.mark.parametrize(("measured", "warnings"), [(72 * MIB, 0), (72 * MIB + 1, 1)])
def test_graphs_that_took_more_than_their_allowance_are_warned_of_once(measured: int, warnings: int) -> None:
    records: list[LogRecord] = []
    held = Ledger(weights=1, states=2, kv=3, workspace=4, graph_allowance=72 * MIB, graphs=measured)
    options = options_of(pages=2)
    program = SimpleNamespace(ledger=held, options=options, device=torch.device("cuda", 0))
    report_memory(cast(GpuProgram, program), records.append)
    assert [record.level for record in records] == ["info"] + ["warning"] * warnings
    assert f"cuda_graph_allowance_bytes={72 * MIB} " in records[0].message
    assert f"cuda_graph_measured_bytes={measured} " in records[0].message


def test_a_program_without_a_device_names_none(tmp_path: Path) -> None:
    program, _ = program_of(nano_artifact(tmp_path, "dense", mtp=False, recipe="bf16"), options_of(pages=2))
    limits = cast(CacheLimits, SimpleNamespace(snapshot_slots=0, reuse=False))
    resources = resources_of(program, limits)
    assert (resources.device_index, resources.device_name, resources.graph_allowance_bytes) == (None, "", 0)
    assert resources.sizing_free_bytes is None


@pytest.mark.parametrize("copies", [0, 15])
def test_shapes_hold_every_round_that_can_come(copies: int) -> None:
    families = Families(4, widths_of(DraftSettings("mtp", 3, copy_tokens=copies)))
    for blocks in range(1, 5):
        for widest in range(1, 1 + max(3, copies) + 1):
            rows = min(64, blocks * widest)
            shape = families.choose(rows, blocks, widest)
            assert shape is not None
            assert (shape.rows >= rows, shape.blocks, shape.widest >= widest) == (True, blocks, True)
            assert shape in families.shapes()


@pytest.mark.clause("NGRAM-011")
def test_copies_take_graphs_and_workspace_from_the_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Automatic sizing with copies of 15 against none, on a device of fixed memory."""
    path = nano_artifact(tmp_path, "dense", mtp=False, recipe="bf16")
    workspaces: list[int] = []

    class Captured(Graphs):
        """Graphs are planned for, and nothing is captured."""

        def __init__(self, device: torch.device, enabled: bool) -> None:
            super().__init__(device, enabled)
            self.enabled = True

    def rehearsed(forward: Any, prefill: Any, control: Any, *others: Any) -> None:
        workspaces.append(forward._buffers.workspace.bytes + prefill.bytes + control.bytes)

    monkeypatch.setattr(program_module, "Graphs", Captured)
    monkeypatch.setattr(program_module, "rehearse", rehearsed)
    monkeypatch.setattr(program_module, "free_bytes", lambda device: 512 * MIB - workspaces[-1])
    without, with_copies = (
        resources_of(
            program_of(
                path,
                options_of(headroom=8 * MIB, widths=widths_of(DraftSettings("mtp", 3, copy_tokens=copies))),
            )[0],
            SimpleNamespace(snapshot_slots=0, reuse=True),  # type: ignore[arg-type]
        )
        for copies in (0, 15)
    )
    # Forward and Finish of each batch size; the copies' Finish of one lane and two.
    assert with_copies.graph_allowance_bytes - without.graph_allowance_bytes == 4 * (4 << 20)
    assert workspaces[1] > workspaces[0]
    lost = with_copies.graph_allowance_bytes - without.graph_allowance_bytes + workspaces[1] - workspaces[0]
    pages = without.kv_pages - with_copies.kv_pages
    assert abs(pages - lost / without.kv_page_bytes) < 1
    assert with_copies.kv_capacity_tokens < without.kv_capacity_tokens
