"""How many KV pages a device holds beside everything else. Source: contract, ``--kv-capacity auto``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizing:
    """Automatic sizing, in bytes; ``free`` is what the complete runtime without the pool leaves.

    ``page_bytes`` 0: the model keeps no keys and values. The parts of ``free`` are ``headroom``,
    ``graph_allowance``, ``payload`` and ``unused``, which is less than a page where anything fits.
    """

    free: int
    headroom: int
    graph_allowance: int
    page_bytes: int

    @property
    def pages(self) -> int:
        """Whole pages of what is left; 0 where not one fits."""
        left = self.free - self.headroom - self.graph_allowance
        return max(0, left // self.page_bytes) if self.page_bytes else 0

    @property
    def payload(self) -> int:
        return self.pages * self.page_bytes

    @property
    def unused(self) -> int:
        """What is over; negative where headroom and allowance alone do not fit."""
        return self.free - self.headroom - self.graph_allowance - self.payload
