"""Gated DeltaNet against float64, what a block may touch, and fold bit for bit as if stepped."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.fast.ops.gdn.contract import CONV_COLUMNS, CONV_TASK
from ninfer.model.config import GdnConfig
from tests.fast.ops.delta import Block, DeltaNet, Lane
from tests.support.fast import WIDTHS, assert_accurate, assert_same_bits

# (key heads, d_k, value heads, d_v, taps): grouped heads, both column tiles, short and long windows.
CONFIGS = {
    "nano": GdnConfig(2, 32, 4, 32, 4),
    "tiny": GdnConfig(4, 64, 4, 64, 4),
    "real": GdnConfig(1, 128, 2, 128, 4),
    "narrow": GdnConfig(1, 16, 3, 96, 2),
    "long-window": GdnConfig(2, 32, 2, 64, 7),
    "window-of-tasks": GdnConfig(2, 32, 2, 64, CONV_COLUMNS + 3),
}
configs = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
assert any(config.channels > CONV_TASK for config in CONFIGS.values())


def lanes(config: GdnConfig, lengths: list[int]) -> list[Lane]:
    return [Lane(config, length, seed) for seed, length in enumerate(lengths)]


@configs
def test_outputs_window_and_state_err_like_float32(config: GdnConfig) -> None:
    net = DeltaNet(config)
    blocks = [Block(lane, 0, lane.length) for lane in lanes(config, [1, 2, 3, 5, 33, 20])]
    plain, exact = (
        [net.wanted(block, dtype) for block in blocks] for dtype in (torch.float32, torch.float64)
    )
    found = net.compute(blocks, threads=2, gap=1)
    outputs = (np.concatenate([wanted[0] for wanted in side]) for side in (plain, exact))
    assert_accurate("gdn-outputs", found, *outputs)
    states = [np.stack([wanted[2].ravel() for wanted in side]) for side in (plain, exact)]
    assert_accurate("gdn-state", np.stack([block.lane.state.ravel() for block in blocks]), *states)
    for block, (_, window, _) in zip(blocks, plain, strict=True):
        np.testing.assert_array_equal(block.lane.window, window)


@configs
def test_block_without_commit_only_reads_the_image(config: GdnConfig) -> None:
    net, originals = DeltaNet(config), lanes(config, [1, 7, 33])
    read, committed = ([lane.copy() for lane in originals] for _ in range(2))
    kept = net.compute([Block(lane, 0, lane.length, commit=False) for lane in read])
    for lane, original in zip(read, originals, strict=True):
        assert_same_bits(lane.image, original.image, "the committed image")
    advanced = net.compute([Block(lane, 0, lane.length) for lane in committed])
    assert_same_bits(kept, advanced)
    assert all(
        (lane.state != original.state).all() for lane, original in zip(committed, originals, strict=True)
    )


@pytest.mark.parametrize("keeps", [False, True], ids=["replays", "keeps"])
@configs
def test_fold_equals_the_accepted_steps(config: GdnConfig, keeps: bool) -> None:
    """Of n drafted columns the first m: every byte of the image as after m single steps, m = 0..n."""
    net, count = DeltaNet(config), 9
    stepped = Lane(config, count, 3)
    start = stepped.copy()
    outputs = []
    for accepted in range(count + 1):
        folded = start.copy()
        block = Block(folded, 0, count, commit=False)
        drafted = net.compute([block], accept=[accepted], gap=1, keeps=keeps)
        assert_same_bits(folded.image, stepped.image, f"image after {accepted} of {count}")
        if outputs:
            assert_same_bits(drafted[:accepted], np.concatenate(outputs))
        if accepted < count:
            outputs.append(net.compute([Block(stepped, accepted, accepted + 1)]))


@settings(max_examples=25)
@given(
    config=st.sampled_from(list(CONFIGS.values())),
    widths=st.lists(st.sampled_from(WIDTHS), min_size=1, max_size=6),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_batch_equals_single_steps(config: GdnConfig, widths: list[int], seed: int) -> None:
    """Blocks of any width, committed or drafted and folded in part, together and in any order."""
    random, net, room = np.random.default_rng(seed), DeltaNet(config), 64
    blocks, accepted, outputs = [], [], []
    for width in widths:
        if width > room:
            continue
        room -= width
        start = int(random.integers(0, 3))
        commit = bool(random.integers(0, 2))
        stepped = Lane(config, start + width, seed + room)
        net.compute([Block(stepped, 0, start)]) if start else None
        lane = stepped.copy()
        taken = width if commit else int(random.integers(0, width + 1))
        results = []
        for column in range(start, start + width):
            results.append(net.compute([Block(stepped, column, column + 1)]))
            if column - start + 1 == taken:
                image = stepped.image.copy()
        if taken == 0:
            image = lane.image.copy()
        blocks.append(Block(lane, start, start + width, commit))
        # A committed block is not folded; 0 accepted columns must leave it as it is.
        accepted.append(0 if commit else taken)
        outputs.append((np.concatenate(results), image))
    order = random.permutation(len(blocks))
    blocks, accepted, outputs = ([part[i] for i in order] for part in (blocks, accepted, outputs))
    found = net.compute(
        blocks, accept=accepted, threads=int(random.integers(1, 4)), gap=int(random.integers(0, 2))
    )
    assert_same_bits(found, np.concatenate([result for result, _ in outputs]))
    for block, (_, image) in zip(blocks, outputs, strict=True):
        assert_same_bits(block.lane.image, image, "image")


def test_gates_at_their_extremes() -> None:
    """Softplus from nothing to linear, decays from 1 to 0, writes from shut to open."""
    config = CONFIGS["nano"]
    net, lane = DeltaNet(config), Lane(config, 64, 1)
    lane.a[:] = np.linspace(-60, 60, 64)[:, None]
    lane.b[:] = np.linspace(-60, 60, 64)[::-1, None]
    block = Block(lane, 0, 64)
    (plain, _, _), (exact, _, _) = (net.wanted(block, dtype) for dtype in (torch.float32, torch.float64))
    assert_accurate("gdn-extreme-gates", net.compute([block]), plain, exact)


def test_zero_keys_and_states_stay_finite() -> None:
    config = CONFIGS["nano"]
    net, lane = DeltaNet(config), Lane(config, 3, 1)
    lane.u[:], lane.window[:], lane.state[:] = 0, 0, 0
    assert (net.compute([Block(lane, 0, 3)]) == 0).all()
    assert (lane.state == 0).all()


@pytest.mark.parametrize("name", ["u", "a", "b", "z"])
def test_bad_block_stays_alone(name: str) -> None:
    config = CONFIGS["nano"]
    net = DeltaNet(config)
    good = lanes(config, [2, 2, 2])
    alone = net.compute([Block(lane.copy(), 0, 2, commit=False) for lane in good])
    bad = [lane.copy() for lane in good]
    spoiled = getattr(bad[1], name).copy()
    spoiled[:] = np.nan
    setattr(bad[1], name, spoiled)
    found = net.compute([Block(lane, 0, 2, commit=False) for lane in bad])
    assert_same_bits(found[[0, 1, 4, 5]], alone[[0, 1, 4, 5]])
    assert np.isnan(found[2:4]).all(), f"a {name} that is not a number is lost"
