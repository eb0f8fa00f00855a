"""One sequence on its way through the cache: the blocks it stands on, where it resumed, what it has left."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ninfer.engine.requests import CacheHints
from ninfer.fast.prefix.content import Content
from ninfer.fast.prefix.snapshots import Kind, Snapshot
from ninfer.fast.prefix.taps import TapSchedule
from ninfer.fast.prefix.tree import Node

ReusePath = Literal["root", "hybrid_endpoint", "hybrid_snapshot"]


@dataclass(slots=True, eq=False)
class Lineage:
    """``prompt`` tokens of ``content`` were asked, the rest is the committed answer.

    ``path`` are the blocks of its lane that the tree knows, all in use by it; ``own`` of them it has made.
    ``deepest`` is the frontier of the deepest snapshot on its way.
    """

    content: Content
    prompt: int
    hints: CacheHints = field(default_factory=CacheHints)
    path: list[Node] = field(default_factory=list)
    own: list[Node] = field(default_factory=list)
    resumed: Snapshot | None = None
    last_tap: Snapshot | None = None
    deepest: int = 0
    schedule: TapSchedule | None = None

    @property
    def reuse_path(self) -> ReusePath:
        """How the reused prefix is reported."""
        if self.resumed is None:
            return "root"
        return "hybrid_endpoint" if self.resumed.kind is Kind.ENDPOINT else "hybrid_snapshot"
