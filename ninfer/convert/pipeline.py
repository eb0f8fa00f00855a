"""``convert``: one checkpoint directory into one ``.ninfer`` file, a few thousand rows in memory at a
time.

Owns the order of work: read the config, find every source, check the frontend files, plan the whole
artifact, and only then write. Whatever is left out or substituted becomes a note, which the caller prints
and the provenance keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import ninfer
from ninfer import spec
from ninfer.artifact import (
    ArtifactPlan,
    ArtifactWriter,
    Binding,
    Component,
    PlannedResource,
    PlannedTensor,
    Use,
)
from ninfer.artifact.contract import object_id
from ninfer.convert.architecture import Architecture, read_architecture
from ninfer.convert.checkpoint import Checkpoint
from ninfer.convert.layout import EMBEDDING, HEAD, Parent, plan_parents
from ninfer.convert.proposal import Tokens, proposal_ids, with_proposal, write_proposal
from ninfer.convert.recipe import Recipe, load_recipe
from ninfer.convert.resources import TOKENIZER, Resources, text_resources
from ninfer.convert.sources import Source, has_mtp, joined, left_out_components, locate
from ninfer.errors import ArtifactError, CheckpointError
from ninfer.model.parameters import mtp_parameters, text_parameters

ROWS_PER_CHUNK = 512


@dataclass(frozen=True, slots=True)
class Conversion:
    """What was written. ``parameters`` counts logical weight elements, ``notes`` says what was left out
    or derived.
    """

    path: Path
    parameters: int
    payload_bytes: int
    notes: tuple[str, ...]


def convert(
    checkpoint: Path,
    out: Path,
    recipe: str,
    *,
    name: str | None = None,
    metadata: Mapping[str, str] | None = None,
    chat_template: Path | None = None,
    max_file_bytes: int | None = None,
    rows_per_chunk: int = ROWS_PER_CHUNK,
    proposal_rows: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    note: Callable[[str], None] = lambda line: None,
) -> Conversion:
    """Convert a Hugging Face checkpoint directory into ``out``, which must not exist.

    ``recipe`` is a name of ``spec/convert.yaml``; ``name`` becomes ``metadata.name`` (the directory's name
    without it); ``proposal_rows`` adds a proposal head of so many rows; ``progress`` hears (payload bytes
    written, in all), ``note`` each line the user should see, before writing.
    Errors: ``CheckpointError`` naming the file, config member or tensor; ``ArtifactError`` for ``out``.
    """
    if out.exists():
        raise ArtifactError(str(out), "already exists; artifacts are never overwritten")
    with Checkpoint(checkpoint) as source:
        architecture = read_architecture(source.config)
        with_mtp = has_mtp(source.tensors)
        chosen = load_recipe(recipe, architecture.text)
        sources = locate(source, architecture.text, with_mtp)
        resources = text_resources(source, architecture.text.vocab, chat_template)
        proposal = None if proposal_rows is None else _proposal(resources, proposal_rows, with_mtp)
        left_out = left_out_components(source.tensors)
        notes = (*_notes(architecture, with_mtp, left_out), *resources.notes)
        for line in notes:
            note(line)
        parents = plan_parents(architecture.text, chosen, with_mtp)
        plan = build_plan(
            architecture,
            parents,
            resources,
            metadata={"name": name or checkpoint.resolve().name, **(metadata or {})},
            provenance=_provenance(checkpoint, chosen, notes, left_out),
        )
        if proposal is not None:
            plan = with_proposal(plan, len(proposal), architecture.text.hidden)
        with ArtifactWriter(out, plan, max_file_bytes=max_file_bytes, progress=progress) as writer:
            for planned, parent in zip(plan.tensors, parents, strict=False):
                values = joined(sources[member.name] for member in parent.members)
                _write(writer, planned.id, source, values, parent, rows_per_chunk)
            if proposal is not None:
                head = sources[EMBEDDING if architecture.text.tied else HEAD]
                write_proposal(writer, proposal, head, source, rows_per_chunk)
            writer.publish()
        return Conversion(out, sum(parent.elements for parent in parents), writer.total_bytes, notes)


def _proposal(resources: Resources, rows: int, with_mtp: bool) -> Tokens:
    if not with_mtp:
        raise CheckpointError("--proposal-rows: the checkpoint has no drafter to propose with")
    return proposal_ids(resources.files[TOKENIZER], rows)


def build_plan(
    architecture: Architecture,
    parents: Sequence[Parent],
    resources: Resources,
    *,
    metadata: Mapping[str, object],
    provenance: Mapping[str, object],
) -> ArtifactPlan:
    """The whole directory of an artifact, from config, recipe and frontend files alone."""
    ids = [object_id("weight", index=index) for index in range(len(parents))]
    bindings = _bindings(ids, parents)
    with_mtp = any(name.startswith("mtp/") for name in bindings)
    if architecture.text.tied:
        bindings[HEAD] = bindings[EMBEDDING]
    roles = {role: object_id("resource", component="text", role=role) for role in resources.files}
    components = {"text": Component(architecture.text_config, resources=roles)}
    if with_mtp:
        components["mtp"] = Component(architecture.mtp_config, target="text")
    return ArtifactPlan(
        components=components,
        resources=[PlannedResource(roles[role], content) for role, content in resources.files.items()],
        tensors=[
            PlannedTensor(i, parent.shape, parent.format) for i, parent in zip(ids, parents, strict=True)
        ],
        bindings=bindings,
        uses=_uses(architecture, with_mtp),
        metadata=metadata,
        provenance=provenance,
    )


def _bindings(ids: Iterable[str], parents: Iterable[Parent]) -> dict[str, Binding]:
    bindings: dict[str, Binding] = {}
    for tensor, parent in zip(ids, parents, strict=True):
        if len(parent.members) == 1:
            bindings[parent.members[0].name] = Binding.whole(tensor)
            continue
        width = parent.shape[-1]
        ends = accumulate(member.shape[0] * width for member in parent.members)
        for member, end in zip(parent.members, ends, strict=True):
            begin = end - member.shape[0] * width
            bindings[member.name] = Binding.ranges([(tensor, begin, end)])
    return bindings


def _uses(architecture: Architecture, with_mtp: bool) -> list[Use]:
    policy = spec.document("convert")["activation_policy"]
    text, mtp = text_parameters(architecture.text), mtp_parameters(architecture.text) if with_mtp else ()
    pairs = [(parameter.name, use) for parameter in (*text, *mtp) for use in parameter.uses]
    if with_mtp:  # the draft's logits come from the same head, at another input
        pairs.append((HEAD, "mtp/final_hidden"))
    return [Use(name, use, policy) for name, use in pairs]


def _write(
    writer: ArtifactWriter,
    tensor: str,
    checkpoint: Checkpoint,
    values: Source,
    parent: Parent,
    rows_per_chunk: int,
) -> None:
    geometry = writer.geometry(tensor)
    step = rows_per_chunk if len(parent.shape) > 1 else geometry.rows
    for first in range(0, geometry.rows, step):
        end = min(first + step, geometry.rows)
        rows = values.read(checkpoint, first * geometry.columns, end * geometry.columns)
        try:
            writer.write_rows(tensor, first, rows.reshape(end - first, *parent.shape[1:]))
        except ArtifactError as error:
            members = ", ".join(dict.fromkeys((parent.members[0].name, parent.members[-1].name)))
            raise CheckpointError(f"cannot store {members} as {parent.format}: {error}") from error


def _notes(architecture: Architecture, with_mtp: bool, left_out: Mapping[str, int]) -> list[str]:
    notes = [
        f"{component}: {count} tensors are left out; this component cannot be converted yet"
        for component, count in left_out.items()
    ]
    if architecture.declares_mtp and not with_mtp:
        notes.append("mtp: config.json names an MTP head, the checkpoint has no mtp.* tensors; left out")
    return notes


def _provenance(
    checkpoint: Path, recipe: Recipe, notes: tuple[str, ...], left_out: Mapping[str, int]
) -> dict[str, object]:
    provenance: dict[str, object] = {
        "converter": "ninfer-convert",
        "converter_version": ninfer.__version__,
        "recipe": recipe.name,
        "sources": {"checkpoint": {"path": str(checkpoint)}},
    }
    if left_out:
        provenance["left_out"] = {component: {"tensors": count} for component, count in left_out.items()}
    if notes:
        provenance["notes"] = list(notes)
    return provenance
