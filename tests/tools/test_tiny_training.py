"""Checkpoints, optimiser and the training command at toy size."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tools.tiny import checkpoint, checks, tokenizer, train
from tools.tiny.deltanet import chunked
from tools.tiny.evaluate import label_weights
from tools.tiny.model import init_parameters
from tools.tiny.optimiser import Optimiser, Recipe, orthogonalise
from tools.tiny.shape import TINY, Shape

TOY = Shape(hidden=32, mlp=32, layers=2, attention_every=2, query_heads=2, kv_heads=1, head_dim=16,
gdn_heads=2, gdn_dim=16)  # fmt: skip


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Tiny matrices gain nothing from threads, and spinning ones starve the other test workers."""
    torch.set_num_threads(1)


def test_a_checkpoint_of_the_real_shape_travels(tmp_path: Path) -> None:
    parameters = init_parameters(TINY, 0)
    for rule in ("muon", "adamw"):
        optimiser = Optimiser(parameters, Recipe(1, rule=rule))
        checkpoint.write(tmp_path / rule, parameters, optimiser, {"tokens": 5})
        shards = sorted((tmp_path / rule).iterdir())
        assert sum(shard.stat().st_size for shard in shards) <= 48 * 2**20
        assert all(shard.stat().st_size <= 16 * 2**20 for shard in shards)


def test_a_checkpoint_brings_weights_and_moments_back(tmp_path: Path) -> None:
    parameters = init_parameters(TOY, 1)
    optimiser = Optimiser(parameters, Recipe(1))
    for table in (optimiser.first, optimiser.second):
        for moment in table.values():
            moment.uniform_(-1, 1)
    checkpoint.write(tmp_path, parameters, optimiser, {"tokens": 7, "seed": 3})
    tensors, state = checkpoint.read(tmp_path)
    assert state == {"tokens": 7, "seed": 3}
    fresh = init_parameters(TOY, 2)
    other = Optimiser(fresh, Recipe(1))
    checkpoint.restore(tensors, fresh, other)
    for name, parameter in parameters.items():
        assert torch.equal(fresh[name].bfloat16(), parameter.bfloat16())
        assert torch.equal(other.first[name].bfloat16(), optimiser.first[name].bfloat16())


def test_orthogonalise_evens_singular_values() -> None:
    matrices = torch.randn(3, 48, 20, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalise(matrices))
    assert values.min() > 0.6
    assert values.max() < 1.3


def test_schedule_warms_up_holds_and_ends_at_zero() -> None:
    recipe = Recipe(1000, warmup_tokens=100)
    assert [recipe.schedule(n) for n in (0, 50, 100, 600, 800, 1000)] == [0, 0.5, 1, 1, 0.5, 0]


@pytest.mark.parametrize("rule", ["muon", "adamw"])
def test_one_step_lowers_a_quadratic(rule: str) -> None:
    weight = torch.randn(32, 32, generator=torch.Generator().manual_seed(0)).requires_grad_()
    optimiser = Optimiser({"w.weight": weight}, Recipe(1, rule=rule))
    before = weight.detach().square().sum()
    for _ in range(5):
        (weight.square().sum() / 2).backward()
        optimiser.step(1.0)
    assert weight.detach().square().sum() < before


def test_weights_of_labels_stop_at_documents() -> None:
    marks = torch.tensor([[5, 1, 2, 2, 5, 2, 4, 0]], dtype=torch.uint8)  # two documents and padding
    assert label_weights(marks)[0].tolist() == pytest.approx([0.1, 1, 1, 0, 1, 0, 0, 0])
    assert label_weights(marks, 2)[0].tolist() == pytest.approx([1, 1, 0, 0, 0, 0, 0, 0])


def test_a_wrong_gradient_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    checks.check_delta_rule(torch.device("cpu"), lambda line: None, 128)
    monkeypatch.setattr(checks, "chunked", lambda q, k, v, g, b: chunked(q, k, v, g, 1.01 * b))
    with pytest.raises(checks.WrongGradients, match="off by"):
        checks.check_delta_rule(torch.device("cpu"), lambda line: None, 128)


def _arguments(out: Path, *more: str) -> list[str]:
    return [
        "--out", str(out), "--tokens", "12K", "--rows", "2", "--length", "512", "--workers", "1",
        "--held-out", "1",
        "--measure-every", "100K", "--warmup", "2K", "--minutes", "2", *more,
    ]  # fmt: skip


def test_training_stops_and_resumes(tmp_path: Path) -> None:
    scratch = ("--scratch", str(tmp_path / "shards"))
    train.run(train.arguments(_arguments(tmp_path / "a", "--stop-at", "0.5", "--no-check", *scratch)), TOY)
    first = checkpoint.read(tmp_path / "a")[1]
    assert first["tokens"] >= 6_000
    resume = ("--no-check", "--resume", str(tmp_path / "a"))
    train.run(train.arguments(_arguments(tmp_path / "b", *resume, *scratch)), TOY)
    second = checkpoint.read(tmp_path / "b")[1]
    assert second["tokens"] >= 12_000 > first["tokens"]
    log = (tmp_path / "b" / "train.log").read_text()
    assert "held_out_loss=" in log


def test_weights_of_another_vocabulary_are_refused() -> None:
    tokenizer.check_fingerprint({"tokenizer": tokenizer.fingerprint()})
    tokenizer.check_fingerprint({})
    with pytest.raises(ValueError, match="was trained with tokenizer 0123"):
        tokenizer.check_fingerprint({"tokenizer": "0123"})


def test_a_head_trains_while_the_text_keeps_its_bits(tmp_path: Path) -> None:
    scratch = ("--scratch", str(tmp_path / "shards"), "--no-check")
    train.run(train.arguments(_arguments(tmp_path / "a", "--stop-at", "0.3", *scratch)), TOY)
    resume = ("--resume", str(tmp_path / "a"), "--only", "mtp.")
    train.run(train.arguments(_arguments(tmp_path / "b", *resume, *scratch)), TOY)
    before, after = (checkpoint.read(tmp_path / name)[0] for name in ("a", "b"))
    changed = {name for name, weight in after.items() if not torch.equal(weight, before[name])}
    weights = {name for name in after if name.startswith("weight/")}
    assert {name for name in changed & weights if not name.startswith("weight/mtp.")} == set()
    assert any(name.startswith("weight/mtp.") for name in changed)
