"""The whole text model: logits against float64, greedy ids, law 8, verification and its fold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.fast.program.models import Block, FastModel, Lane, Reference
from tests.support.fast import Array, assert_accurate, assert_same_bits
from tests.support.nano import VOCABULARY

Artifacts = Callable[..., Path]
RECIPES = ("bf16", "q8", "q4", "groupwise-int")
MODELS = [(kind, recipe) for kind in ("dense", "moe") for recipe in RECIPES]
IDS = [f"{kind}-{recipe}" for kind, recipe in MODELS]
GREEDY = (0.0, 1.0, 0.0, 0.0, 0.0, 0, 0, 0, 0, 0)
# Other geometries: widths that fill no K step, wide heads, grouped heads, a long convolution window.
ODD: dict[str, dict[str, Any]] = {
    "dense": {
        "hidden_size": 128, "intermediate_size": 200, "head_dim": 128, "num_attention_heads": 3,
        "num_key_value_heads": 1, "linear_num_key_heads": 1, "linear_num_value_heads": 3,
        "linear_key_head_dim": 48, "linear_value_head_dim": 64, "linear_conv_kernel_dim": 5,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25,
            "mrope_interleaved": True, "mrope_section": [6, 5, 5],
        },
    },
    "moe": {"moe_intermediate_size": 96, "shared_expert_intermediate_size": 40, "num_experts": 5},
}  # fmt: skip


def tokens_of(seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCABULARY, count).tolist()


def text_axes(count: int, start: int = 0) -> Array:
    return np.tile(np.arange(start, start + count), (3, 1))


def fast_logits(model: FastModel, lane: Lane, tokens: list[int], axes: Array | None = None) -> Array:
    """Committed single steps, then committed blocks of other widths."""
    rows, start = [], 0
    for size in [1] * 20 + [3, 2, 7, 64, 33, 64, 64]:
        piece = slice(start, min(len(tokens), start + size))
        if piece.start < piece.stop:
            part = None if axes is None else axes[:, piece]
            rows.append(model.forward([Block(lane, tokens[piece], axes=part)]))
        start = piece.stop
    assert lane.length == len(tokens)
    return np.concatenate(rows)


def assert_logits(name: str, path: Path, kv_format: str, axes: Array | None = None) -> None:
    tokens, places = tokens_of(1, 200), text_axes(200) if axes is None else axes
    with FastModel(path, kv_format, threads=2) as model:
        lane = model.lane()
        found = fast_logits(model, lane, tokens, axes)
        plain, exact = (
            reference.logits(tokens, places, reference.state_over(model, lane))
            for reference in (Reference(path, dtype) for dtype in (torch.float32, torch.float64))
        )
    # Four layers add up: more than one operation may err.
    assert_accurate(f"logits-{name}", found, plain, exact, limit=1e-4)


@pytest.mark.parametrize(("kind", "recipe"), MODELS, ids=IDS)
def test_logits_err_like_plain_float32(artifact: Artifacts, kind: str, recipe: str) -> None:
    assert_logits(f"{kind}-{recipe}", artifact(kind, recipe), "float32")


@pytest.mark.parametrize(
    ("kind", "kv_format"),
    [("dense", "bf16"), ("moe", "bf16"), ("dense", "int8"), ("moe", "int8"), ("dense", "fp8"),
     ("moe", "nvfp4"), ("dense", "k8v4")],
)  # fmt: skip
def test_logits_over_rounded_keys_and_values(artifact: Artifacts, kind: str, kv_format: str) -> None:
    assert_logits(f"{kind}-{kv_format}", artifact(kind), kv_format)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("kind", ODD)
def test_logits_of_other_geometries(artifact: Artifacts, kind: str, recipe: str) -> None:
    assert_logits(f"odd-{kind}-{recipe}", artifact(kind, recipe, **ODD[kind]), "float32")


@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_logits_with_three_position_axes(artifact: Artifacts, kind: str) -> None:
    axes = np.random.default_rng(5).integers(0, 300, (3, 200))
    assert_logits(f"{kind}-axes", artifact(kind), "float32", axes)


def test_tied_head_is_the_embedding(artifact: Artifacts) -> None:
    assert_logits("tied", artifact("dense", "q8", tied=True), "float32")


@pytest.mark.parametrize(("kind", "recipe"), MODELS, ids=IDS)
def test_greedy_ids_equal_the_reference_over_64_tokens(artifact: Artifacts, kind: str, recipe: str) -> None:
    path = artifact(kind, recipe)
    reference, prompt = Reference(path, torch.float64), tokens_of(2, 90)
    with FastModel(path, threads=2) as model:
        lane, state = model.lane(), reference.state()
        model.forward([Block(lane, prompt[:64])])
        model.forward([Block(lane, prompt[64:-1])])
        reference.logits(prompt[:-1], text_axes(89), state)
        token, found, wanted = prompt[-1], [], []
        for _ in range(64):
            logits = reference.logits([token], text_axes(1, lane.length), state)
            model.forward([Block(lane, [token])])
            wanted.append(int(logits[0, :VOCABULARY].argmax()))
            found += model.finish([GREEDY])
            token = found[-1]
    assert found == wanted
    assert len(set(found)) > 8, "a loop proves little"


LAW8 = [
    ("dense", "bf16", "float32"), ("dense", "groupwise-int", "bf16"), ("moe", "q4", "float32"),
    ("moe", "groupwise-int", "int8"), ("dense", "q8", "k8v4"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "recipe", "kv_format"), LAW8, ids=["-".join(case) for case in LAW8])
def test_row_is_the_same_at_every_width_and_in_any_company(
    artifact: Artifacts, kind: str, recipe: str, kv_format: str
) -> None:
    """Widths 1..64 of random lanes' verify blocks, on other pages, against committed single steps."""
    path, random = artifact(kind, recipe), np.random.default_rng(3)
    contexts = [1, 40, 63, 64, 100, 130]
    tokens = [tokens_of(100 + lane, context + 64) for lane, context in enumerate(contexts)]
    with FastModel(path, kv_format, seed=1) as model:
        alone = []
        for line, context in zip(tokens, contexts, strict=True):
            lane = model.lane()
            steps = [model.forward([Block(lane, [token])]) for token in line]
            alone.append(np.concatenate(steps)[context:])
    with FastModel(path, kv_format, threads=2, seed=2) as model:
        lanes = [model.lane() for _ in contexts]
        for lane, line, context in zip(lanes, tokens, contexts, strict=True):
            for begin in range(0, context, 50):
                model.forward([Block(lane, line[begin : min(context, begin + 50)])])
        images = [model.image(lane).copy() for lane in lanes]
        for width in range(1, 65):
            cuts = np.sort(random.integers(0, width + 1, len(lanes) - 1))
            counts = np.diff([0, *cuts, width])
            chosen = [int(i) for i in random.permutation(len(lanes)) if counts[i]]
            blocks = [
                Block(lanes[i], tokens[i][contexts[i] : contexts[i] + counts[i]], commit=False)
                for i in chosen
            ]
            wanted = np.concatenate([alone[i][: counts[i]] for i in chosen])
            assert_same_bits(model.forward(blocks), wanted, f"width {width}")
        for lane, image in zip(lanes, images, strict=True):
            np.testing.assert_array_equal(model.image(lane), image)


@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_threads_do_not_matter(artifact: Artifacts, kind: str) -> None:
    path, tokens, results = artifact(kind, "groupwise-int"), tokens_of(4, 40), []
    for threads in (1, 2, 3):
        with FastModel(path, threads=threads) as model:
            results.append(fast_logits(model, model.lane(), tokens))
    for result in results[1:]:
        assert_same_bits(result, results[0])


@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_fold_equals_the_accepted_steps(artifact: Artifacts, kind: str) -> None:
    """Two lanes verify 12 tokens together; m of one and 12 − m of the other are kept, m = 0..12."""
    path = artifact(kind)
    tokens = [tokens_of(10 + lane, 52) for lane in range(2)]
    with FastModel(path, lanes=30) as model:
        stepped = [model.lane() for _ in tokens]
        images, logits = [], []
        for lane, line in zip(stepped, tokens, strict=True):
            images.append([])
            logits.append([])
            for token in line[:50]:
                logits[-1].append(model.forward([Block(lane, [token])])[0])
                images[-1].append(model.image(lane).copy())
        for accepted in range(13):
            lanes = [model.lane() for _ in tokens]
            for lane, line in zip(lanes, tokens, strict=True):
                model.forward([Block(lane, line[:30])])
            blocks = [Block(lane, line[30:42], False) for lane, line in zip(lanes, tokens, strict=True)]
            model.forward(blocks)
            kept = [accepted, 12 - accepted]
            model.fold(blocks, kept)
            for index, (lane, count) in enumerate(zip(lanes, kept, strict=True)):
                assert lane.length == 30 + count
                np.testing.assert_array_equal(model.image(lane), images[index][lane.length - 1])
                # The rejected columns' keys lie beyond the frontier and are written over.
                token = tokens[index][lane.length]
                assert_same_bits(model.forward([Block(lane, [token])])[0], logits[index][lane.length - 1])
            for lane in lanes:
                model.states.free(lane.slot)
            model._next -= 2


@pytest.mark.parametrize("kind", ["dense", "moe"])
@pytest.mark.parametrize("kv_format", ["float32", "bf16", "int8", "k8v4"])
def test_lane_that_is_not_a_number_hurts_itself_alone(artifact: Artifacts, kind: str, kv_format: str) -> None:
    """Its neighbours of the round, and whoever uses buffers, scratch and pages after it, see nothing."""
    path, tokens = artifact(kind, "groupwise-int"), tokens_of(6, 70)
    with FastModel(path, kv_format) as model:
        good, bad, other = (model.lane() for _ in range(3))
        for lane in (good, bad, other):
            model.forward([Block(lane, tokens[:60])])
        wanted = model.forward([Block(good, tokens[60:64], commit=False)])
        floats = model.image(bad).view(np.float32)
        floats[:] = np.nan
        blocks = [Block(lane, tokens[60:64], commit=False) for lane in (bad, good, bad, other)]
        found = model.forward(blocks)
        assert np.isnan(found[:4]).all()
        assert np.isnan(found[8:12]).all()
        assert_same_bits(found[4:8], wanted)
        assert_same_bits(found[12:], wanted)
        assert model.finish([GREEDY] * 16)[:4] == [-2] * 4
        model.forward([Block(bad, tokens[:64], commit=False)])
        assert_same_bits(model.forward([Block(good, tokens[60:64], commit=False)]), wanted)
        # Another lane on the bad one's pages.
        model.states.free(bad.slot)
        heir = model.lane()
        heir.pages = bad.pages
        model.forward([Block(heir, tokens[:60])])
        assert_same_bits(model.forward([Block(heir, tokens[60:64])]), wanted)
