"""Captures of graphs, with a stand-in for the device."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ninfer.fast.program.gpu import graphs as module
from ninfer.fast.program.gpu.graphs import Graphs


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What became of captures and replays, in order."""
    seen = list[str]()

    @contextmanager
    def capture(graph: Any) -> Iterator[None]:
        seen.append("capture")
        yield
        seen.append("end")

    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(
        torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: seen.append("replay"))
    )
    monkeypatch.setattr(module, "free_bytes", lambda device: 0)
    return seen


def test_a_shape_is_captured_once_and_replayed(captures: list[str]) -> None:
    graphs = Graphs(torch.device("cuda"), enabled=True)
    for _ in range(2):
        graphs.run("a", lambda: captures.append("launch"))
    assert captures == ["capture", "launch", "end", "replay", "replay"]
    assert graphs.count == 1


def test_nothing_is_collected_during_a_capture(captures: list[str]) -> None:
    """What another program left in cycles would be given back in the middle, which the device forbids."""
    assert gc.isenabled()
    Graphs(torch.device("cuda"), enabled=True).run("a", lambda: captures.append(str(gc.isenabled())))
    assert captures[1] == "False"
    assert gc.isenabled()
