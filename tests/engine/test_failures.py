"""Which exceptions end a request, and which the engine; nothing foreign reaches a client."""

from __future__ import annotations

import pytest
import torch

from ninfer.engine.failures import classify, failed_event
from ninfer.errors import EngineError, RequestError


class AcceleratorError(RuntimeError):
    """Named as torch names a CUDA error (``torch.AcceleratorError``)."""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RequestError("invalid_prompt", "m", "p"), "request"),
        (EngineError("engine_unavailable", "m"), "request"),
        (MemoryError(), "memory"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "memory"),
        (RuntimeError("CUDA error: out of memory"), "memory"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), "memory"),
        (AcceleratorError("CUDA error: an illegal memory access was encountered"), "device"),
        (RuntimeError("CUDA error: device-side assert triggered"), "device"),
        (RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"), "device"),
        (RuntimeError("Triton Error [CUDA]: out of memory"), "memory"),
        (RuntimeError("shape mismatch"), "internal"),
        (AssertionError("CUDA error in a name of ours"), "internal"),
        (ValueError("x"), "internal"),
    ],
)
def test_classification(error: Exception, kind: str) -> None:
    assert classify(error) == kind


def test_torch_reports_exhausted_memory_as_this_class() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert classify(caught.value) == "memory"


@pytest.mark.parametrize(
    ("error", "code", "param"),
    [
        (RequestError("constraint_dead_end", "said on purpose", "field"), "constraint_dead_end", "field"),
        (EngineError("engine_unavailable", "said on purpose"), "engine_unavailable", None),
        (MemoryError("secret"), "insufficient_memory", None),
        (KeyError("secret"), "internal_error", None),
    ],
)
def test_events_carry_codes_and_no_foreign_text(error: Exception, code: str, param: str | None) -> None:
    event = failed_event("r", error)
    assert (event.id, event.code, event.param) == ("r", code, param)
    assert "secret" not in event.message
