"""A whole nano model through the GPU program, in Triton's interpreter, against the reference."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ninfer.artifact import Artifact
from ninfer.fast.program.gpu.parameters import load_text_model
from ninfer.fast.program.gpu.program import GpuOptions, GpuProgram
from ninfer.fast.program.gpu.weights import GpuLoader
from ninfer.model.config import parse_text_config
from ninfer.reference.model import ReferenceModel, text_positions
from ninfer.reference.weights import load_text
from ninfer.sampling.parameters import SamplingParameters
from tests.support.nano import VOCABULARY, nano_artifact

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("kind", "recipe"), [("dense", "bf16"), ("moe", "q4")])
def test_prefill_and_rounds_give_the_references_logits(kind: str, recipe: str, tmp_path: Path) -> None:
    path = nano_artifact(tmp_path, kind, mtp=False, recipe=recipe)  # type: ignore[arg-type]
    device = torch.device("cpu")
    with Artifact.open(path) as artifact:
        config = parse_text_config(artifact.directory.components["text"].config)
        model = load_text_model(GpuLoader(artifact, device), config)
        reference = ReferenceModel(config, load_text(artifact, config, torch.float64))
    options = GpuOptions(
        lanes=2, max_context=64, pages=2, kv_format="bf16", prefill_chunk=64, vocabulary=VOCABULARY,
        activations=torch.float32,
    )  # fmt: skip
    program = GpuProgram(model, config, options, device)
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, 9).astype(np.int32)
    lane = program.open_lane(64)
    row = program.prefill(lane, tokens, np.tile(np.arange(9, dtype=np.int32), (3, 1)))
    greedy = SamplingParameters(0.0, 1.0, 0, 0.0, 0.0, 0.0, 1)
    sampler = SimpleNamespace(parameters=greedy, counts=np.zeros(VOCABULARY, np.int32))
    drawn, logits = [program.first(lane, row, sampler)], [program.logits(1)[0]]
    drawn += program.round([SimpleNamespace(lane=lane, token=drawn[0], sampler=sampler)])
    logits.append(program.logits(1)[0])
    sequence = torch.tensor([*tokens.tolist(), drawn[0]])
    state = reference.new_state()
    hidden = reference.forward(sequence, text_positions(0, len(sequence)), state)
    wanted = reference.logits(hidden)[8:].numpy()
    # Keys are rounded to bf16 here and not there.
    for mine, theirs in zip(logits, wanted, strict=True):
        assert np.abs(mine - theirs).max() <= 0.05 * theirs.std()
    assert drawn == wanted[:, :VOCABULARY].argmax(1).tolist()
    if kind == "dense":
        check_counts(program)
    program.close_lane(lane)
    program.check_integrity()


def check_counts(program: GpuProgram) -> None:
    """Counts follow a sequence that stands in another row of the batch from round to round."""
    penalised = SamplingParameters(0.0, 1.0, 0, 0.0, 1.0, 0.5, 1)
    mine = SimpleNamespace(parameters=penalised, counts=np.zeros(VOCABULARY, np.int32))
    control = program._control
    for table, token in ((0, 3), (1, 4), (0, 5), (0, 6)):
        mine.counts[token] += 1  # committed by the last round, taken in by this one
        program._samplers.step(0, table, mine, 9, token)
        counted = int(control.host_words[0, 3])
        seen = control.counts[table, :VOCABULARY].numpy().copy()
        if counted >= 0:
            seen[counted] += 1
            control.counts[table, counted] += 1  # as the draw does
        np.testing.assert_array_equal(seen, mine.counts)
