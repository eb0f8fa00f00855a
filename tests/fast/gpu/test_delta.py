"""The delta rule of rounds in Triton's interpreter: blocks, columns and folds against the reference."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from ninfer.fast.ops.gdn.gpu import DeltaCut, DeltaNet, DeltaRows, Records, delta, fold
from ninfer.reference.ops.causal_conv import causal_conv
from ninfer.reference.ops.gated_norm import gated_norm
from ninfer.reference.ops.gdn_gates import gdn_gates
from ninfer.reference.ops.gdn_recurrent import gdn_recurrent
from ninfer.reference.ops.l2_norm import l2_norm

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

KEY_HEADS, VALUE_HEADS, DK, DV, ROWS, LAYERS = 2, 4, 32, 64, 20, 2
KEYS, VALUES = KEY_HEADS * DK, VALUE_HEADS * DV
CHANNELS = 2 * KEYS + VALUES
STATE = VALUE_HEADS * DK * DV
PARTS, POSITION, SLOT = 2, 5, 1


def layers() -> tuple[list[DeltaNet], list[DeltaRows], Records]:
    """Two layers with random weights, a lane's state in slot 1, everything to be written poisoned."""

    def poison(*shape: int) -> Tensor:
        return torch.full(shape, float("nan"))

    images = torch.randn(2, LAYERS * (4 * CHANNELS + STATE))
    inputs = torch.randn(LAYERS, ROWS, CHANNELS + VALUES)
    kept = Records(
        inputs, poison(LAYERS, ROWS, KEYS), poison(LAYERS, ROWS, VALUE_HEADS), poison(LAYERS, ROWS, VALUES)
    )
    nets, rows = [], []
    for layer in range(LAYERS):
        at = layer * (4 * CHANNELS + STATE)
        nets.append(
            DeltaNet(
                inputs[layer], CHANNELS, torch.randn(PARTS, ROWS, 2 * VALUE_HEADS), 0, VALUE_HEADS,
                torch.randn(4, CHANNELS), torch.randn(VALUE_HEADS), torch.randn(VALUE_HEADS), torch.randn(DV),
                images, at, at + 4 * CHANNELS, KEY_HEADS, VALUE_HEADS, DK, DV, 1e-6,
            )
        )  # fmt: skip
        rows.append(
            DeltaRows(
                poison(ROWS, KEYS), kept.keys[layer], kept.decays[layer], poison(ROWS, VALUE_HEADS),
                poison(ROWS, VALUE_HEADS), kept.deltas[layer], poison(ROWS, VALUES),
                torch.zeros(ROWS, VALUE_HEADS, dtype=torch.int32),
            )
        )  # fmt: skip
    return nets, rows, kept


def block(first: int, columns: int, commit: bool, position: int) -> Tensor:
    return torch.tensor([[first, columns, SLOT, int(commit), position, 0, 0, 0]], dtype=torch.int32)


def wanted(net: DeltaNet, first: int, columns: int) -> Tensor:
    """The reference's mixed rows."""
    image = net.images[SLOT].double()
    ring = image[net.window_at : net.state_at].view(4, CHANNELS)
    window = torch.stack([ring[(POSITION - back) % 4] for back in (3, 2, 1)])
    rows = slice(first, first + columns)
    mixed, _ = causal_conv(net.projected[rows, :CHANNELS].double(), window, net.convolution.double())
    query, key = (
        part.reshape(columns, KEY_HEADS, DK).repeat_interleave(VALUE_HEADS // KEY_HEADS, 1)
        for part in (mixed[:, :KEYS], mixed[:, KEYS : 2 * KEYS])
    )
    gates = net.gates.double().sum(0)[rows]
    decay, beta = gdn_gates(
        gates[:, :VALUE_HEADS], gates[:, VALUE_HEADS:], net.a_log.double(), net.dt_bias.double()
    )
    state = image[net.state_at : net.state_at + STATE].view(VALUE_HEADS, DV, DK).transpose(1, 2)
    value = mixed[:, 2 * KEYS :].reshape(columns, VALUE_HEADS, DV)
    output, _ = gdn_recurrent(l2_norm(query) / DK**0.5, l2_norm(key), value, decay, beta, state)
    gate = net.projected[rows, CHANNELS:].double().reshape(columns, VALUE_HEADS, DV)
    return gated_norm(output, gate, net.norm.double(), 1e-6).flatten(1)


@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize("columns", [1, 3, 17])
def test_a_block_gives_the_references_rows_and_leaves_the_state(columns: int, slices: int) -> None:
    nets, rows, _ = layers()
    before, y = nets[0].images.clone(), torch.full((ROWS, VALUES), float("nan"))
    expected = wanted(nets[1], 2, columns)
    delta(nets[1], rows[1], block(2, columns, False, POSITION), y, 1, DeltaCut(slices, 8))
    assert float((y[2 : 2 + columns] - expected).abs().max() / expected.abs().max()) <= 1e-5
    assert y[:2].isnan().all() and y[2 + columns :].isnan().all()  # noqa: PT018
    assert torch.equal(nets[0].images, before)
    assert not rows[1].arrived.any()


def test_a_fold_leaves_what_rounds_of_one_column_leave() -> None:
    nets, rows, records = layers()
    kept, cut, slots = 5, DeltaCut(2, 8), nets[0].images.clone()
    y = torch.zeros(ROWS, VALUES)
    for net, mine in zip(nets, rows, strict=True):
        delta(net, mine, block(2, 9, False, POSITION), y, 1, cut)
    verified = y.clone()
    fold(nets[0], records, block(2, kept, False, POSITION), 1)
    again = slots.clone()
    for net, mine in zip(nets, rows, strict=True):
        alone = dataclasses.replace(net, images=again)
        for column in range(kept):
            delta(alone, mine, block(2 + column, 1, True, POSITION + column), y, 1, cut)
    # The interpreter sums in another order for another number of rows.
    assert torch.allclose(y[2 : 2 + kept], verified[2 : 2 + kept], atol=1e-5)
    assert torch.equal(nets[0].images[0], slots[0])
    for net in nets:
        place = slice(net.state_at, net.state_at + STATE)
        assert torch.allclose(nets[0].images[SLOT, place], again[SLOT, place], atol=1e-5)
        ring = slice(net.window_at, net.state_at)
        rings = [images[SLOT, ring].view(4, CHANNELS) for images in (nets[0].images, again)]
        for back in (1, 2, 3):
            where = (POSITION + kept - back) % 4
            assert torch.equal(rings[0][where], rings[1][where])
