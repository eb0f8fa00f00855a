"""What an artifact's weights amount to, from its directory alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import blake2b

from ninfer.artifact.directory import Directory, TensorObject


@dataclass(frozen=True, slots=True)
class FormatSummary:
    """Tensors of one format: how many, their logical elements and their encoded bytes."""

    tensors: int
    parameters: int
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class WeightSummary:
    """Distinct weight tensors, shared ones once; ``by_format`` in order of payload bytes, largest first."""

    tensors: int
    parameters: int
    payload_bytes: int
    dominant_format: str
    by_format: Mapping[str, FormatSummary]


def summarise(directory: Directory) -> WeightSummary:
    """Counts over the distinct tensor objects that ``bindings`` name (auxiliary inputs are no weights)."""
    ids = dict.fromkeys(
        object_id
        for binding in directory.bindings.values()
        for object_id in ([binding.object] if binding.object else [part.object for part in binding.parts])
    )
    weights = [directory.tensor(object_id) for object_id in ids]
    sizes = Counter[str]()
    for tensor in weights:
        sizes[tensor.format] += tensor.bytes
    by_format = {name: _format([t for t in weights if t.format == name]) for name, _ in sizes.most_common()}
    return WeightSummary(
        tensors=len(weights),
        parameters=sum(tensor.elements for tensor in weights),
        payload_bytes=sizes.total(),
        dominant_format=next(iter(by_format), ""),
        by_format=by_format,
    )


def prefill_signature(directory: Directory) -> str:
    """A name for what prefilling costs: the text configuration and what its weights are stored as."""
    weights = {name: asdict(entry) for name, entry in sorted(summarise(directory).by_format.items())}
    facts = {"config": directory.components["text"].config, "weights": weights}
    return blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=12).hexdigest()


def _format(tensors: list[TensorObject]) -> FormatSummary:
    return FormatSummary(
        tensors=len(tensors),
        parameters=sum(tensor.elements for tensor in tensors),
        payload_bytes=sum(tensor.bytes for tensor in tensors),
    )
