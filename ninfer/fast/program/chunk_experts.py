"""The routed experts of a chunk: each one chosen is decoded once and multiplies the rows that chose it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import silu

from ninfer.fast.ops.embedding import contract as embedding
from ninfer.fast.program.parameters import GatedMatrices
from ninfer.fast.program.products import decoding
from ninfer.fast.program.round import RoundRunner

MATRICES = 3


class ExpertDecoder:
    """Decodes one expert at a time into memory of its own, by the operations ``begin..`` of the table."""

    def __init__(self, begin: int, hidden: int, width: int, threads: int) -> None:
        self._begin = begin
        self._expand = torch.zeros(2, width, hidden)
        self._contract = torch.zeros(hidden * width)
        self._scratch = torch.zeros(threads, 1)
        self.runner: RoundRunner | None = None

    def decoded(self, matrices: GatedMatrices) -> tuple[Tensor, Tensor, Tensor]:
        """Gate and up [expert width, K], down [hidden, K']; K padded to a step."""
        assert self.runner is not None
        down = self._contract[: matrices.down.rows * matrices.down.width]
        targets = (self._expand[0], self._expand[1], down.view(matrices.down.rows, matrices.down.width))
        for index, (matrix, target) in enumerate(
            zip((matrices.gate, matrices.up, matrices.down), targets, strict=True)
        ):
            (segment,) = matrix.segments
            descriptor = decoding(segment, 0, segment.rows, matrix.width, target, self._scratch)
            self.runner.descriptors[self._begin + index, : embedding.TILE_FIELDS] = descriptor
        self.runner.run(self._begin, self._begin + MATRICES, 0, 0)
        return targets


class Experts:
    """h += Σ_k p_k expert_k(x) + σ(score) · shared, over tensors of whole buffers."""

    def __init__(
        self,
        routed: tuple[GatedMatrices, ...],
        decoder: ExpertDecoder,
        choice: npt.NDArray[np.int64],
        strengths: npt.NDArray[np.float32],
        rows: tuple[Tensor, Tensor, Tensor, Tensor],
    ) -> None:
        """``choice`` and ``strengths`` [rows, k]; ``rows``: x, shared score, shared output, h."""
        self._routed, self._decoder = routed, decoder
        self._choice, self._strengths = torch.from_numpy(choice), torch.from_numpy(strengths)
        self._x, self._score, self._shared, self._h = rows

    def run(self, count: int) -> None:
        """Add the first ``count`` rows' experts."""
        x, chosen = self._x[:count], self._choice.shape[1]
        total = torch.sigmoid(self._score[:count]) * self._shared[:count]
        choice = self._choice[:count].flatten()
        order = torch.argsort(choice, stable=True)
        places, strengths = order // chosen, self._strengths[:count].flatten()[order, None]
        experts, counts = torch.unique_consecutive(choice[order], return_counts=True)
        begin = 0
        for expert, size in zip(experts.tolist(), counts.tolist(), strict=True):
            which = places[begin : begin + size]
            part = self._expert(self._routed[expert], x[which])
            total.index_add_(0, which, part * strengths[begin : begin + size])
            begin += size
        self._h[:count].add_(total)

    def _expert(self, matrices: GatedMatrices, x: Tensor) -> Tensor:
        """One expert over the rows that chose it: [rows, K] → [rows, hidden]."""
        gate, up, down = self._decoder.decoded(matrices)
        product = silu(x @ gate.T).mul_(x @ up.T)
        return product @ down[:, : product.shape[1]].T
