"""Tiles by architecture, weight format and shape class, from the committed table ``spec/gpu.yaml``.

The table is written by ``tools/gpu_check`` on a device; nothing is tuned at run time (law 8).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ninfer import spec
from ninfer.fast.ops.gdn.gpu import DeltaCut
from ninfer.fast.ops.linear.gpu import Tile, steps_of
from ninfer.fast.ops.linear.packing import NAMES, Packed

_FORMATS = {number: name for name, number in NAMES.items()}


@dataclass(frozen=True, slots=True)
class TileTable:
    """The tiles of one architecture (compute capability as an integer, 90 for 9.0; 0: no device).

    ``deterministic``: rounds of more than 16 columns compute a column as narrower ones do.
    """

    architecture: int
    deterministic: bool = False

    def _rows(self) -> dict[str, Any]:
        tables = spec.document("gpu")["tiles"]
        return dict(tables.get(f"sm_{self.architecture}", tables["default"]))

    def tile(self, matrix: Packed, kind: str | None = None) -> Tile:
        """The tile of a matrix; ``kind`` is its shape class where the shape does not say it."""
        classes = self._rows()["linear"][_FORMATS[matrix.format]]
        row = classes.get(kind or shape_class(matrix.rows, matrix.columns), classes["wide"])
        tile = Tile(*row)
        columns = 16 if self.deterministic else tile.columns
        parts = min(tile.parts, steps_of(matrix, tile))
        return Tile(tile.rows, parts, tile.k, tile.warps, tile.stages, columns)

    def delta(self) -> DeltaCut:
        """Slices of a value head of a round's delta rule, and warps of each."""
        return DeltaCut(*self._rows()["delta"])

    def chunk_attention(self) -> tuple[int, int, int, int]:
        """Query rows, keys, warps and stages of a prefill chunk's attention."""
        rows, keys, warps, stages = self._rows()["chunk_attention"]
        return rows, keys, warps, stages


def shape_class(rows: int, columns: int) -> str:
    """``wide`` outputs fill the device alone; ``narrow`` ones want K in parts, ``small`` ones in many."""
    if rows <= 512:
        return "small"
    if rows < 8192:
        return "deep" if columns > 8192 else "narrow"
    return "wide"
