"""The bundled artifact with a proposal head beside it, for ``--lm-head-draft``.

    python -m tools.tiny.proposal [ARTIFACT] --rows 1024 --out build/ninfer-tiny-proposal.ninfer

Everything else is copied byte for byte. The rows are those of the ids that the recipe's own answers use most
and of all control tokens; the converter, which knows no corpus, takes the first entries of the BPE.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ninfer import bundled
from ninfer.artifact import Artifact, ArtifactPlan, ArtifactWriter, PlannedResource, PlannedTensor
from ninfer.artifact.directory import ResourceObject, TensorObject
from ninfer.convert.proposal import HEAD, IDS, object_of, with_proposal
from ninfer.model.config import parse_text_config
from tools.tiny import tokenizer
from tools.tiny.data.documents import EXAM_SKILLS, exam_document
from tools.tiny.data.render import content

_DOCUMENTS = 1500


def frequent_ids(rows: int) -> npt.NDArray[np.int32]:
    """The ``rows`` ids worth drafting, ascending."""
    entries, rng, counts = tokenizer.load(), random.Random("proposal"), Counter[int]()
    skills = list(EXAM_SKILLS)
    added = sorted(entries.get_added_tokens_decoder())
    for number in range(_DOCUMENTS):
        document = exam_document(rng, skills[number % len(skills)])
        counts.update(entries.encode(content(document.exchanges[-1]), add_special_tokens=False).ids)
    often = [token for token, _ in counts.most_common() if token not in added]
    rest = [token for token in range(entries.get_vocab_size()) if token not in counts and token not in added]
    return np.array(sorted([*added, *[*often, *rest][: rows - len(added)]]), np.int32)


def add_proposal(source: Path, out: Path, ids: npt.NDArray[np.int32]) -> Path:
    """Write ``source`` with a proposal head of ``ids`` to ``out``, which must not exist."""
    with Artifact.open(source) as artifact:
        directory = artifact.directory
        config = parse_text_config(directory.components["text"].config)
        roles = {
            object_id: (name, role)
            for name, component in directory.components.items()
            for role, object_id in component.resources.items()
        }
        objects = directory.objects.values()
        tensors = [entry for entry in objects if isinstance(entry, TensorObject)]
        resources = [entry.id for entry in objects if isinstance(entry, ResourceObject)]
        plan = ArtifactPlan(
            components=directory.components,
            resources=[PlannedResource(i, artifact.resource(*roles[i])) for i in resources],
            tensors=[PlannedTensor(entry.id, entry.shape, entry.format, entry.layout) for entry in tensors],
            bindings=directory.bindings,
            uses=directory.uses,
            metadata=directory.metadata,
            provenance=directory.provenance,
        )
        with ArtifactWriter(out, with_proposal(plan, len(ids), config.hidden)) as writer:
            for entry in tensors:
                writer.write_planes(entry.id, 0, artifact.planes(entry.id))
            head = artifact.parameter("text/output_head").astype(np.float32)
            writer.write_tensor(object_of(writer, HEAD), head[ids])
            writer.write_tensor(object_of(writer, IDS), ids)
            writer.publish()
    return out


def main() -> None:
    parser = argparse.ArgumentParser(prog="tools.tiny.proposal", description=__doc__)
    parser.add_argument("artifact", nargs="?", type=Path, default=bundled.path())
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--out", type=Path, required=True)
    settings = parser.parse_args()
    written = add_proposal(settings.artifact, settings.out, frequent_ids(settings.rows))
    print(f"{written}: {written.stat().st_size} bytes, {settings.rows} rows")


if __name__ == "__main__":
    main()
