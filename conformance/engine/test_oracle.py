"""The oracle's own loop is the reference model, and it can be led along another choice of experts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from conformance.engine.draws import ModelDraw
from conformance.engine.models import Shelf
from conformance.engine.oracle import Oracle
from ninfer.reference.model import ReferenceModel, text_positions


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("draw", [ModelDraw(), ModelDraw(kind="moe", layers="GAGA")], ids=lambda d: d.name)
def test_the_loop_is_the_reference_models(shelf: Shelf, draw: ModelDraw, dtype: torch.dtype) -> None:
    model = shelf.model(draw)
    tokens = np.random.default_rng(0).integers(0, 512, 150).tolist()
    reference = ReferenceModel(model.config, model.weights[dtype])
    with torch.inference_mode():
        state = reference.new_state()
        hidden = reference.forward(torch.tensor(tokens), text_positions(0, len(tokens)), state)
        wanted = reference.logits(hidden[100:]).numpy()
    found = Oracle(model, dtype, "float32").forced(tokens, 100)
    assert found.logits.dtype == wanted.dtype
    assert np.array_equal(found.logits, wanted)


def test_a_forced_choice_of_experts_is_followed(shelf: Shelf) -> None:
    model = shelf.model(ModelDraw(kind="moe", layers="GAGA"))
    oracle = Oracle(model, torch.float32, "float32")
    tokens = np.random.default_rng(0).integers(0, 512, 40).tolist()
    own = oracle.forced(tokens, 0)
    routes = {layer: np.argsort(-scores, 1, kind="stable")[:, :2] for layer, scores in own.scores.items()}
    assert list(routes) == [0, 1, 2, 3]
    assert np.array_equal(oracle.forced(tokens, 0, routes).logits, own.logits)
    routes[3][25] = routes[3][25] + 1 & 7
    led = oracle.forced(tokens, 0, routes).logits
    assert np.flatnonzero((led != own.logits).any(1)).tolist() == [25]


def test_a_rounded_cache_changes_logits_a_little(shelf: Shelf) -> None:
    model = shelf.model(ModelDraw())
    tokens = np.random.default_rng(0).integers(0, 512, 100).tolist()
    exact, *rounded = (
        Oracle(model, torch.float64, kv_format).forced(tokens, 50).logits
        for kv_format in ("float32", "bf16", "int8")
    )
    errors = [float(np.abs(logits - exact).max()) for logits in rounded]
    assert 1e-3 < errors[0] < errors[1] < 1
