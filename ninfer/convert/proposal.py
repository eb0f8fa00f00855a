"""An indexed proposal head: some rows of the output head, coarsely stored, for drafting alone.

Owns the choice of rows and their writing. A byte-level BPE numbers its entries in the order of their merges,
the most frequent first, so the first ids and all added tokens are the ones worth drafting. What verifies
drafts is always the full head.
"""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ninfer import spec
from ninfer.artifact import ArtifactPlan, ArtifactWriter, Binding, PlannedTensor, Proposal, Use
from ninfer.artifact.contract import object_id
from ninfer.convert.checkpoint import Checkpoint
from ninfer.convert.sources import Source
from ninfer.errors import CheckpointError

HEAD, IDS = "proposal/head", "proposal/token_ids"
Tokens = npt.NDArray[np.int32]


def proposal_ids(tokenizer_json: bytes, rows: int) -> Tokens:
    """``rows`` ids, ascending: every added token and the first entries of the BPE.

    Errors: ``CheckpointError`` for more rows than the tokenizer has ids, or fewer than its added tokens.
    """
    form = json.loads(tokenizer_json)
    added = sorted(int(token["id"]) for token in form.get("added_tokens", ()))
    base = sorted(set(map(int, form["model"]["vocab"].values())) - set(added))
    least, most = len(added) + 1, len(added) + len(base)
    if not least <= rows <= most:
        raise CheckpointError(f"--proposal-rows {rows}: must be in {least}..{most} for this tokenizer")
    return np.array(sorted([*base[: rows - len(added)], *added]), np.int32)


def with_proposal(plan: ArtifactPlan, rows: int, hidden: int) -> ArtifactPlan:
    """The same plan with a proposal head of ``rows`` rows behind its tensors."""
    tables = spec.document("convert")
    head, ids = (object_id("weight", index=len(plan.tensors) + place) for place in range(2))
    tensors = [
        PlannedTensor(head, (rows, hidden), tables["proposal"]["format"]),
        PlannedTensor(ids, (rows,), "int32"),
    ]
    drafters = [name for name in plan.components if name != "text"]
    uses = [Use(HEAD, f"{name}/final_hidden", tables["activation_policy"]) for name in drafters]
    text = replace(plan.components["text"], proposal=Proposal("indexed", rows))
    return replace(
        plan,
        components={**plan.components, "text": text},
        tensors=[*plan.tensors, *tensors],
        bindings={**plan.bindings, HEAD: Binding.whole(head), IDS: Binding.whole(ids)},
        uses=[*plan.uses, *uses],
    )


def write_proposal(
    writer: ArtifactWriter, ids: Tokens, head: Source, checkpoint: Checkpoint, rows_per_chunk: int
) -> None:
    """Write the rows ``ids`` of the full head and the ids themselves."""
    hidden = writer.geometry(object_of(writer, HEAD)).columns
    for begin in range(0, len(ids), rows_per_chunk):
        chunk = ids[begin : begin + rows_per_chunk]
        rows = [head.read(checkpoint, int(i) * hidden, (int(i) + 1) * hidden) for i in chunk]
        writer.write_rows(object_of(writer, HEAD), begin, np.stack(rows))
    writer.write_tensor(object_of(writer, IDS), ids)


def object_of(writer: ArtifactWriter, parameter: str) -> str:
    """The object that the whole of ``parameter`` is bound to."""
    found = writer.directory.bindings[parameter].object
    assert found is not None
    return found
