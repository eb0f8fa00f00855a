"""The delta rule of rounds in Triton's interpreter: blocks, columns and folds against the reference."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from ninfer.fast.ops.gdn.gpu import DeltaCut, delta, fold
from tools.gpu_check.op_cases.delta import Layers, Sizes, block, reference, ring_of, state_of

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

SIZES = Sizes(2, 4, 32, 64)
ROWS, POSITION, SLOT = 20, 5, 1


def one(first: int, columns: int, commit: bool, position: int) -> Tensor:
    """The control record of one block."""
    return torch.tensor([block(first, columns, SLOT, commit, position)], dtype=torch.int32)


@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize("columns", [1, 3, 17])
def test_a_block_gives_the_references_rows_and_leaves_the_state(columns: int, slices: int) -> None:
    layers = Layers(SIZES, ROWS, 2, 2, 2)
    nets, rows = layers.nets, layers.rows
    before, y = layers.images.clone(), torch.full((ROWS, SIZES.values), float("nan"))
    expected, _ = reference(nets[1], before, block(2, columns, SLOT, False, POSITION))
    delta(nets[1], rows[1], one(2, columns, False, POSITION), y, 1, DeltaCut(slices, 8))
    assert float((y[2 : 2 + columns] - expected).abs().max() / expected.abs().max()) <= 1e-5
    assert y[:2].isnan().all() and y[2 + columns :].isnan().all()  # noqa: PT018
    assert torch.equal(layers.images, before)
    assert not rows[1].arrived.any()


def test_a_fold_leaves_what_rounds_of_one_column_leave() -> None:
    layers = Layers(SIZES, ROWS, 2, 2, 2)
    nets, kept, cut, before = layers.nets, 5, DeltaCut(2, 8), layers.images.clone()
    y = torch.zeros(ROWS, SIZES.values)
    for net, mine in zip(nets, layers.rows, strict=True):
        delta(net, mine, one(2, 9, False, POSITION), y, 1, cut)
    verified = y.clone()
    fold(nets[0], layers.records, one(2, kept, False, POSITION), 1)
    again = [dataclasses.replace(net, images=before) for net in nets]
    other = before[0].clone()
    for net, mine in zip(again, layers.rows, strict=True):
        for column in range(kept):
            delta(net, mine, one(2 + column, 1, True, POSITION + column), y, 1, cut)
    # The interpreter sums in another order for another number of rows.
    assert torch.allclose(y[2 : 2 + kept], verified[2 : 2 + kept], atol=1e-5)
    assert torch.equal(layers.images[0], other)
    for folded, stepped in zip(nets, again, strict=True):
        assert torch.allclose(state_of(folded, SLOT), state_of(stepped, SLOT), atol=1e-5)
        for back in (1, 2, 3):
            where = (POSITION + kept - back) % 4
            assert torch.equal(ring_of(folded, SLOT)[where], ring_of(stepped, SLOT)[where])
