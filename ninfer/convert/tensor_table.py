"""Which tensors a checkpoint of one architecture holds, and which logical parameters their rows are.

Owns the expansion of ``spec/convert.yaml``'s tensor table: layers, experts, spellings, dimensions.
Touches no file.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from math import prod

from ninfer import spec
from ninfer.errors import CheckpointError
from ninfer.model.config import LayerType, TextConfig


@dataclass(frozen=True, slots=True)
class SourceTensor:
    """One expected tensor: its rows, cut by ``parts`` over and over, make logical parameters.

    ``by_expert``: the n-th round of parts belongs to expert n, named by ``{e}`` in the parameter.
    ``transpose``: a depthwise kernel [C, 1, T] whose parameter is [T, C].
    """

    name: str
    shape: tuple[int, ...]
    parts: tuple[tuple[str, int], ...]
    by_expert: bool
    transpose: bool

    def cut(self) -> Iterator[tuple[str, int, int]]:
        """(parameter, begin, end) in elements of the flattened tensor, in its order."""
        width = self.shape[-1] if len(self.shape) > 1 else 1
        rows = prod(self.shape) // width
        begin = 0
        for turn in range(rows // sum(count for _, count in self.parts)):
            for parameter, count in self.parts:
                name = parameter.format(e=turn) if self.by_expert else parameter
                yield name, begin * width, (begin + count) * width
                begin += count


def expected_tensors(config: TextConfig, with_mtp: bool, present: Container[str]) -> Iterator[SourceTensor]:
    """The tensors a checkpoint of this architecture holds, token embedding first.

    ``present`` decides between spellings: the root prefix, and fused or single experts.
    """
    root = find_root(present)
    whole = _Expander(config, "", "", {"root": root})
    yield from whole.rows("text")
    if not config.tied:
        yield from whole.rows("untied")
    for index, kind in enumerate(config.layer_types):
        prefix = text_layer_prefix(present, index)
        yield from _Expander(config, prefix, f"text/layers/{index}/", {}).layer(kind, present)
    if with_mtp:
        yield from whole.rows("mtp")
        prefix = spec.document("convert")["layer_prefix"]["mtp"]
        yield from _Expander(config, prefix, "mtp/layers/0/", {}).layer("full_attention", present)


def text_layer_prefix(present: Container[str], index: int) -> str:
    """What the names of one text layer's tensors begin with."""
    prefix: str = spec.document("convert")["layer_prefix"]["text"]
    return prefix.format(root=find_root(present), i=index)


def find_root(present: Container[str]) -> str:
    """The prefix of the text tensors: with or without the vision model's infix.

    Errors: ``CheckpointError`` when the token embedding is under neither.
    """
    tables = spec.document("convert")
    embedding = tables["tensors"]["text"][0]["tensor"]
    for root in tables["roots"]:
        if embedding.format(root=root) in present:
            return str(root)
    names = " nor ".join(embedding.format(root=root) for root in tables["roots"])
    raise CheckpointError(f"missing tensors: the checkpoint holds neither {names}")


@dataclass(frozen=True, slots=True)
class _Expander:
    """Expands table rows with one prefix for tensors and one for parameters; ``names`` fill tensor names."""

    config: TextConfig
    tensor_prefix: str
    parameter_prefix: str
    names: Mapping[str, str]

    def layer(self, kind: LayerType, present: Container[str]) -> Iterator[SourceTensor]:
        for table in ("layer", kind, self.config.feed_forward):
            yield from self.rows(table)
        if self.config.moe is None:
            return
        fused = spec.document("convert")["tensors"]["experts_fused"]
        if self.tensor_prefix + fused[0]["tensor"] in present:
            yield from self.rows("experts_fused")
            return
        for expert in range(self.config.moe.experts):
            yield from self.rows("experts_single", expert)

    def rows(self, table: str, expert: int | None = None) -> Iterator[SourceTensor]:
        sizes = self.config.dimensions()
        for row in spec.document("convert")["tensors"][table]:
            yield SourceTensor(
                name=self.tensor_prefix + row["tensor"].format(**self.names, e=expert),
                shape=tuple(_dimension(text, sizes) for text in row["shape"]),
                parts=tuple(
                    (self.parameter_prefix + _named(part, expert), sizes[count])
                    for part, count in row["parts"].items()
                ),
                by_expert=row.get("experts", False),
                transpose=row.get("transpose", False),
            )


def _named(part: str, expert: int | None) -> str:
    return part if expert is None else part.format(e=expert)


def _dimension(text: str, sizes: Mapping[str, int]) -> int:
    factor, _, name = text.rpartition("*")
    return int(factor or 1) * sizes[name]
