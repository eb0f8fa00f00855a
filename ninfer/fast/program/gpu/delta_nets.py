"""The Gated DeltaNet layers of a round: their buffers, and what is kept of a verification until its fold.

With ``records`` every layer has a set of its own of what ``fold`` reads; else all share one.
"""

from __future__ import annotations

from torch import Tensor

from ninfer.fast.ops.gdn import gpu as gdn
from ninfer.fast.program.gpu.buffers import RoundBuffers
from ninfer.fast.program.gpu.memory import GpuStates
from ninfer.fast.program.gpu.parameters import GdnPart, TextModel
from ninfer.fast.program.gpu.tiles import TileTable
from ninfer.model.config import TextConfig


def delta_net(
    config: TextConfig, states: GpuStates, layer: int, part: GdnPart, projected: Tensor, gates: Tensor | None
) -> gdn.DeltaNet:
    """One layer over ``projected`` rows and, where they lie apart, ``gates``."""
    g = config.gdn
    assert g is not None
    at = part.inputs.at if part.gates is None else part.gates.at
    return gdn.DeltaNet(
        projected, part.inputs.at["z"], projected[None] if gates is None else gates,
        at["a_projection"], at["b_projection"], part.convolution, part.a_log, part.dt_bias, part.norm,
        states.images, states.window_at[layer], states.state_at[layer],
        g.key_heads, g.value_heads, g.key_dim, g.value_dim, config.rms_eps,
    )  # fmt: skip


class DeltaNets:
    """The layers by number: ``nets`` over their rows; ``delta`` and ``fold`` launch."""

    def __init__(
        self,
        config: TextConfig,
        model: TextModel,
        states: GpuStates,
        buffers: RoundBuffers,
        tiles: TileTable,
        records: bool,
    ) -> None:
        self.nets: dict[int, gdn.DeltaNet] = {}
        self._rows: dict[int, gdn.DeltaRows] = {}
        self._records: gdn.Records | None = None
        self._cut = tiles.delta()
        parts = {layer: part.gdn for layer, part in enumerate(model.layers) if part.gdn is not None}
        if not parts:
            return
        assert config.gdn is not None
        sets = len(parts) if records else 1
        projected = buffers.delta_inputs(max(part.inputs.columns for part in parts.values()), sets)
        kept = buffers.delta_rows(config.gdn, sets)
        if records:
            self._records = gdn.Records(projected, kept.keys, kept.decays, kept.deltas)
        for index, (layer, part) in enumerate(parts.items()):
            which = index if records else 0
            gates = None
            if part.gates is not None:
                parts_of_k = tiles.tile(part.gates.parts[0][0]).parts
                gates = buffers.gates(part.gates.columns)[:parts_of_k]
            mine = projected[which, :, : part.inputs.columns]
            self.nets[layer] = delta_net(config, states, layer, part, mine, gates)
            self._rows[layer] = gdn.DeltaRows(
                kept.queries, kept.keys[which], kept.decays[which], kept.rates, kept.meetings,
                kept.deltas[which], kept.outputs, kept.arrived,
            )  # fmt: skip

    def delta(self, layer: int, blocks: Tensor, mixed: Tensor, count: int) -> None:
        """The mixed rows of one layer."""
        gdn.delta(self.nets[layer], self._rows[layer], blocks, mixed, count, self._cut)

    def fold(self, blocks: Tensor, count: int) -> None:
        """Commit the first COLUMNS columns of blocks that were only verified; needs ``records``."""
        if self.nets:
            assert self._records is not None
            gdn.fold(next(iter(self.nets.values())), self._records, blocks, count)
