"""A round's workspace on a device: one row per column of the widest round, taken once.

Rows are padded to a K step with zeros that no kernel ever writes. Kernels of different layers share a buffer
by name; what a verification must keep until its ``fold`` has a set per layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ninfer.fast.ops.attention.gpu import SPLITS
from ninfer.fast.ops.gdn.gpu import DeltaRows
from ninfer.fast.ops.linear.packing import padded
from ninfer.fast.ops.select.contract import CANDIDATES
from ninfer.fast.ops.select.gpu import slices_of
from ninfer.fast.program.gpu.staging import Told
from ninfer.model.config import GdnConfig, TextConfig

# Every packed K is a multiple of 256 or 512.
STEP = 512


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the buffers are sized by: rows of a round, parts of a product, ids that may be drawn."""

    rows: int
    parts: int
    small_parts: int
    vocabulary: int


class Workspace:
    """Named tensors of one device; ``bytes`` is what they hold."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._tensors: dict[str, Tensor] = {}

    def tensor(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The zeroed tensor ``name``; the first call decides its shape, which later ones must fit."""
        if name not in self._tensors:
            self._tensors[name] = torch.zeros(shape, dtype=dtype, device=self.device)
        tensor = self._tensors[name]
        assert all(have >= want for have, want in zip(tensor.shape, shape, strict=True)), (
            f"{name} is too small"
        )
        return tensor

    def held(self, name: str) -> Tensor:
        """The tensor ``name``, which exists."""
        return self._tensors[name]

    @property
    def bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self._tensors.values())


class RoundBuffers:
    """The buffers of a round of ``sizes.rows`` rows."""

    def __init__(
        self,
        config: TextConfig,
        sizes: Sizes,
        activations: torch.dtype,
        query: torch.dtype,
        device: torch.device,
    ) -> None:
        self._begin(config, sizes, activations, device)
        rows, hidden, make = sizes.rows, config.hidden, self.workspace.tensor
        self.logits = make("logits", (1, rows, config.vocab), torch.float32)
        slices = slices_of(sizes.vocabulary)
        self.best = make("best", (rows, slices, CANDIDATES), torch.int64)
        self.flags = make("flags", (rows, slices), torch.int32)
        self.drawn = make("drawn", (rows,), torch.int32)
        self.told = Told((rows,), device)
        if config.attention is not None:
            a = config.attention
            self.attended = make("attended", (rows, padded(a.query_heads * a.head_dim, STEP)), activations)
            self.query = make("query", (rows, a.query_heads, a.head_dim), query)
            self.split_sums = make("split_sums", (rows, a.query_heads, SPLITS, a.head_dim), torch.float32)
            self.split_states = make("split_states", (rows, a.query_heads, SPLITS, 2), torch.float32)
            # What padding rows merge must be numbers.
            self.split_states.fill_(1)
        if config.gdn is not None:
            self.mixed = make(
                "mixed", (rows, padded(config.gdn.value_heads * config.gdn.value_dim, STEP)), activations
            )
        if config.mlp is not None:
            self.product = make("product", (rows, padded(config.mlp, STEP)), activations)
        if config.moe is not None:
            m = config.moe
            chosen = m.experts_per_token
            self.router = make("router", (sizes.small_parts, rows, m.experts + 1), torch.float32)
            self.choice = make("choice", (rows, chosen), torch.int32)
            self.strengths = make("strengths", (rows, chosen), torch.float32)
            self.products = make("products", (rows * chosen, padded(m.expert_mlp, STEP)), activations)
            self.expert_sums = make("expert_sums", (rows, chosen, hidden), torch.float32)
            self.shared_product = make("shared_product", (rows, padded(m.shared_mlp, STEP)), activations)
            self.shared_sums = make("shared_sums", (sizes.parts, rows, hidden), torch.float32)

    def _begin(
        self, config: TextConfig, sizes: Sizes, activations: torch.dtype, device: torch.device
    ) -> None:
        """The residual rows, their norm and the parts of what is added to them."""
        self.workspace, self.sizes = Workspace(device), sizes
        rows, hidden, make = sizes.rows, config.hidden, self.workspace.tensor
        self.hidden = make("hidden", (rows, hidden), torch.float32)
        self.normed = make("normed", (rows, padded(hidden, STEP)), activations)
        self.sums = make("sums", (sizes.parts, rows, hidden), torch.float32)

    def projected(self, columns: int) -> Tensor:
        """Rows of an attention layer's projections."""
        return self.workspace.tensor("projected", (self.sizes.rows, columns), torch.float32)

    def delta_inputs(self, columns: int, sets: int) -> Tensor:
        """Rows of Gated DeltaNet projections: one set for all layers, or one each that is kept."""
        return self.workspace.tensor("delta_inputs", (sets, self.sizes.rows, columns), torch.float32)

    def delta_rows(self, config: GdnConfig, sets: int) -> DeltaRows:
        """Rows of Gated DeltaNet layers; what a fold reads has a leading axis of ``sets``."""
        rows, make = self.sizes.rows, self.workspace.tensor
        keys, values = config.key_heads * config.key_dim, config.value_heads * config.value_dim
        return DeltaRows(
            make("delta_queries", (rows, keys), torch.float32),
            make("delta_keys", (sets, rows, keys), torch.float32),
            make("delta_decays", (sets, rows, config.value_heads), torch.float32),
            make("delta_rates", (rows, config.value_heads), torch.float32),
            make("delta_meetings", (rows, config.value_heads), torch.float32),
            make("delta_deltas", (sets, rows, values), torch.float32),
            make("delta_outputs", (rows, values), torch.float32),
            make("delta_arrived", (rows, config.value_heads), torch.int32),
        )

    def gates(self, columns: int) -> Tensor:
        """Parts of a and b where they are projected apart."""
        shape = (self.sizes.small_parts, self.sizes.rows, columns)
        return self.workspace.tensor("gates", shape, torch.float32)
