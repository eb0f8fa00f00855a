"""The proposal head that ``--proposal-rows`` adds: which rows, their values, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from ninfer.artifact import Artifact, Proposal
from ninfer.convert import convert
from ninfer.convert.proposal import proposal_ids
from ninfer.errors import CheckpointError
from tests.convert.checkpoints import nano
from tests.convert.test_pipeline import stored_as


def form(base: int, added: list[int]) -> bytes:
    """A tokenizer of ``base`` entries and these added ids."""
    vocabulary = {f"t{index}": index for index in range(base)}
    tokens = [{"id": index, "content": f"<{index}>"} for index in added]
    return json.dumps({"model": {"vocab": vocabulary}, "added_tokens": tokens}).encode()


def test_the_first_entries_and_every_added_token() -> None:
    assert proposal_ids(form(10, [10, 12]), 5).tolist() == [0, 1, 2, 10, 12]
    assert proposal_ids(form(10, [10, 12]), 12).tolist() == [*range(11), 12]


@pytest.mark.parametrize("rows", [1, 2, 13])
def test_more_rows_than_ids_are_refused(rows: int) -> None:
    with pytest.raises(CheckpointError, match="--proposal-rows"):
        proposal_ids(form(10, [10, 12]), rows)


@pytest.mark.parametrize("tied", [False, True])
def test_the_rows_are_those_of_the_full_head(tied: bool, tmp_path: Path) -> None:
    directory = nano("dense", tied=tied, dtype=torch.bfloat16).write(tmp_path / "nano")
    convert(directory, tmp_path / "plain.ninfer", "bf16")
    convert(directory, tmp_path / "out.ninfer", "bf16", proposal_rows=70, rows_per_chunk=9)
    with (
        Artifact.open(tmp_path / "plain.ninfer") as plain,
        Artifact.open(tmp_path / "out.ninfer") as artifact,
    ):
        assert plain.directory.components["text"].proposal is None
        assert artifact.directory.components["text"].proposal == Proposal("indexed", 70)
        ids = artifact.parameter("proposal/token_ids")
        assert ids.dtype == np.int32
        assert sorted(set(ids.tolist())) == ids.tolist()
        assert len(ids) == 70
        head = artifact.parameter("text/output_head").astype(np.float32)
        wanted = stored_as(artifact.parameter_formats("proposal/head")[0], head[ids])
        assert np.array_equal(artifact.parameter("proposal/head"), wanted)
        for name in plain.directory.bindings:
            assert np.array_equal(plain.parameter(name), artifact.parameter(name)), name
        uses = {(use.parameter, use.input) for use in artifact.directory.uses}
        assert ("proposal/head", "mtp/final_hidden") in uses


def test_without_a_drafter_there_is_nothing_to_propose_with(tmp_path: Path) -> None:
    directory = nano("dense", mtp=False).write(tmp_path / "nano")
    with pytest.raises(CheckpointError, match="no drafter"):
        convert(directory, tmp_path / "out.ninfer", "bf16", proposal_rows=70)
    assert not (tmp_path / "out.ninfer").exists()
