"""Where the values of each logical parameter lie in a checkpoint.

Owns the check that a checkpoint holds exactly the tensors of its architecture, in their shapes, and
reading a parameter's elements through them. Everything but the depthwise kernel is a list of element
runs: splitting heads, thirds, gate/up halves and experts is only arithmetic.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import accumulate
from typing import Any

import numpy as np

from ninfer import spec
from ninfer.convert.checkpoint import Checkpoint
from ninfer.convert.tensor_table import SourceTensor, expected_tensors
from ninfer.convert.weights_file import StoredTensor
from ninfer.errors import CheckpointError
from ninfer.model.config import TextConfig

Values = np.ndarray[Any, np.dtype[np.float32]]
_NAMED_AT_MOST = 8
_COMPARED_AT_ONCE = 1 << 22


@dataclass(frozen=True, slots=True)
class Run:
    """Elements ``[begin, end)`` of one flattened source tensor."""

    tensor: str
    begin: int
    end: int

    def __len__(self) -> int:
        return self.end - self.begin


class Source:
    """The elements of one or more parameters, one after another, read from runs of a checkpoint."""

    def __init__(self, runs: Iterable[Run], transposed: tuple[int, int] | None = None) -> None:
        self.runs = tuple(_merged(runs))
        self.transposed = transposed
        self._ends = tuple(accumulate(len(run) for run in self.runs))

    @property
    def elements(self) -> int:
        return self._ends[-1]

    def read(self, checkpoint: Checkpoint, begin: int, end: int) -> Values:
        """Elements ``[begin, end)`` as float32 [end - begin]."""
        if self.transposed is not None:
            kernel = checkpoint.read(self.runs[0].tensor, 0, self.elements).reshape(self.transposed)
            return np.ascontiguousarray(kernel.T).reshape(-1)[begin:end]
        values, done = np.empty(end - begin, np.float32), 0
        index = bisect_right(self._ends, begin)
        while done < len(values):
            run = self.runs[index]
            start = run.end - (self._ends[index] - (begin + done))
            stop = min(run.end, start + len(values) - done)
            values[done : done + stop - start] = checkpoint.read(run.tensor, start, stop)
            done, index = done + stop - start, index + 1
        return values


def joined(sources: Iterable[Source]) -> Source:
    """One source whose elements are those of ``sources`` in order."""
    rows = tuple(sources)
    if len(rows) == 1:
        return rows[0]
    return Source(run for source in rows for run in source.runs)


def has_mtp(tensors: Iterable[str]) -> bool:
    """Whether a checkpoint carries an MTP head."""
    prefix = spec.document("convert")["mtp_prefix"]
    return any(name.startswith(prefix) for name in tensors)


def left_out_components(tensors: Iterable[str]) -> dict[str, int]:
    """Components whose tensors are there but not converted, with their tensor counts."""
    rows = [row for row in spec.document("convert")["left_out"] if "component" in row]
    names = tuple(tensors)
    counts = {row["component"]: sum(fnmatchcase(name, row["pattern"]) for name in names) for row in rows}
    return {component: count for component, count in counts.items() if count}


def locate(checkpoint: Checkpoint, config: TextConfig, with_mtp: bool) -> Mapping[str, Source]:
    """Every stored logical parameter's source.

    Errors: ``CheckpointError`` naming tensors that are missing, unknown or of another shape.
    """
    present = checkpoint.tensors
    expected = {row.name: row for row in expected_tensors(config, with_mtp, present)}
    _refuse("missing", [name for name in expected if name not in present])
    for name, row in expected.items():
        _check_stored(present[name], row)
    extra = set(present) - set(expected)
    if config.tied:
        extra -= _tied_head(checkpoint, embedding=next(iter(expected)))
    patterns = [row["pattern"] for row in spec.document("convert")["left_out"]]
    _refuse("unknown", [name for name in sorted(extra) if not any(fnmatchcase(name, p) for p in patterns)])
    return _sources(expected.values())


def _check_stored(found: StoredTensor, expected: SourceTensor) -> None:
    if found.shape != expected.shape:
        shapes = f"has shape {list(found.shape)}, config.json asks for {list(expected.shape)}"
        raise CheckpointError(f"tensor {found.name} {shapes}")
    readable = spec.document("convert")["dtypes"]
    if found.dtype not in readable:
        raise CheckpointError(
            f"tensor {found.name} has dtype {found.dtype}, not one of {', '.join(readable)}"
        )


def _sources(tensors: Iterable[SourceTensor]) -> dict[str, Source]:
    runs: dict[str, list[Run]] = {}
    kernels: dict[str, tuple[int, int]] = {}
    for tensor in tensors:
        for parameter, begin, end in tensor.cut():
            runs.setdefault(parameter, []).append(Run(tensor.name, begin, end))
            if tensor.transpose:
                kernels[parameter] = (tensor.shape[0], tensor.shape[-1])
    return {parameter: Source(rows, kernels.get(parameter)) for parameter, rows in runs.items()}


def _tied_head(checkpoint: Checkpoint, embedding: str) -> set[str]:
    """A tied checkpoint may still store its head; it must then be the embedding, value for value."""
    head = spec.document("convert")["tensors"]["untied"][0]["tensor"]
    if head not in checkpoint.tensors:
        return set()
    if _same_values(checkpoint, head, embedding):
        return {head}
    raise CheckpointError(f"config.json says tie_word_embeddings, but {head} differs from {embedding}")


def _same_values(checkpoint: Checkpoint, left: str, right: str) -> bool:
    if checkpoint.tensors[left].shape != checkpoint.tensors[right].shape:
        return False
    count = checkpoint.tensors[left].elements
    for begin in range(0, count, _COMPARED_AT_ONCE):
        end = min(begin + _COMPARED_AT_ONCE, count)
        if not np.array_equal(checkpoint.read(left, begin, end), checkpoint.read(right, begin, end)):
            return False
    return True


def _merged(runs: Iterable[Run]) -> Iterator[Run]:
    held: Run | None = None
    for run in runs:
        if held is not None and held.tensor == run.tensor and held.end == run.begin:
            held = Run(held.tensor, held.begin, run.end)
            continue
        if held is not None:
            yield held
        held = run
    if held is not None:
        yield held


def _refuse(problem: str, names: list[str]) -> None:
    if names:
        listed = ", ".join(names[:_NAMED_AT_MOST])
        more = f" and {len(names) - _NAMED_AT_MOST} more" if len(names) > _NAMED_AT_MOST else ""
        raise CheckpointError(f"{problem} tensors: {listed}{more}")
