"""Snapshots: places where a sequence can resume, each with a whole state image and a tail of 0..63 tokens.

A fixed number of image slots; when they are full, one that another snapshot of its conversation has
superseded goes first, then the one of least value: what it saves (seconds of prefill since the nearest one
above it) per byte that it keeps, times its uses, above a floor that rises with every such loss (GDSF). The
newcomer may be the one of least value: that is a loss too, or what was used often once would stay for ever.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from ninfer.fast.ops.control import PAGE_TOKENS
from ninfer.fast.prefix.cost import CostModel
from ninfer.fast.prefix.tree import Copy, Node

# Hits that count: with few slots a conversation that nobody goes on with must not outlive many that come
# (measured 2026-12-01, ``tools.bench.agentic --scale 0.3`` with the default slots, share of the ideal: 0.71
# when refused newcomers did not count as losses; since then 0.82 with all hits and with three, 0.76 with two,
# 0.80 with one).
_MOST_HITS = 3


class Kind(Enum):
    """Why a snapshot was taken: in passing, at a boundary that others may share, at an answer's end."""

    TAP = "tap"
    BOUNDARY = "boundary"
    ENDPOINT = "endpoint"


@dataclass(slots=True, eq=False)
class Snapshot:
    """``tail`` tokens behind the block ``anchor``; ``page`` holds their keys, ``slot`` the state image.

    ``shift`` is the rotary position of the next token minus its place. ``superseded`` and ``published`` are
    moments of the shelf's own count; ``superseded`` 0: it is not.
    """

    anchor: Node
    tail: bytes
    extra: bytes
    kind: Kind
    slot: int
    page: int
    shift: int
    published: int
    level: float = 0.0
    hits: int = 0
    pins: int = 0
    superseded: int = 0
    host: Copy = Copy.ABSENT
    removed: bool = False

    @property
    def frontier(self) -> int:
        """Tokens of the prefix."""
        return PAGE_TOKENS * self.anchor.depth + len(self.tail) // 4

    @property
    def backed(self) -> bool:
        return self.host is Copy.RESIDENT


class SnapshotShelf:
    """At most ``slots`` snapshots. ``page_bytes`` and ``image_bytes`` are what they keep."""

    def __init__(self, slots: int, page_bytes: int, image_bytes: int, costs: CostModel) -> None:
        self.slots = slots
        self.held: list[Snapshot] = []
        self.floor = 0.0
        self._page_bytes, self._image_bytes, self._costs = page_bytes, image_bytes, costs
        self._moments: Iterator[int] = itertools.count(1)

    @property
    def is_full(self) -> bool:
        return len(self.held) >= self.slots

    def moment(self) -> int:
        return next(self._moments)

    def add(self, snapshot: Snapshot) -> None:
        """Hang a new snapshot on its anchor. There is a slot for it, and none like it."""
        assert not self.is_full
        key = (snapshot.tail, snapshot.extra)
        assert key not in snapshot.anchor.snapshots
        snapshot.level = self.floor
        snapshot.anchor.snapshots[key] = snapshot
        self.held.append(snapshot)
        _count_live(snapshot.anchor, 1)

    def remove(self, snapshot: Snapshot) -> None:
        """Take a snapshot off; its slot and page are the caller's to free."""
        assert snapshot.pins == 0, "a snapshot in use is removed"
        if not snapshot.superseded:
            _count_live(snapshot.anchor, -1)
        del snapshot.anchor.snapshots[snapshot.tail, snapshot.extra]
        self.held.remove(snapshot)
        snapshot.removed = True

    def hit(self, snapshot: Snapshot) -> None:
        """A request resumes here: worth more, and wanted again if it was superseded."""
        if snapshot.superseded:
            snapshot.superseded = 0
            _count_live(snapshot.anchor, 1)
        snapshot.hits += 1
        snapshot.level = self.floor

    def supersede(self, snapshot: Snapshot) -> None:
        """Its conversation has gone on: first to go, unless others still branch below a boundary."""
        if snapshot.superseded or snapshot.removed:
            return
        if snapshot.kind is Kind.BOUNDARY and not snapshot.anchor.is_chain:
            return
        snapshot.superseded = self.moment()
        _count_live(snapshot.anchor, -1)

    def victim(self, value: Callable[[], float], spared: Snapshot | None = None) -> Snapshot | None:
        """Whom to take the slot from, for a new snapshot of ``value()``; None: the new one is worth less.

        ``spared`` is taken only where no other could be. The floor rises to the least value, whoever has it.
        """
        unused = [snapshot for snapshot in self.held if not snapshot.pins]
        free = [snapshot for snapshot in unused if snapshot is not spared] or unused
        superseded = [snapshot for snapshot in free if snapshot.superseded]
        if superseded:
            return min(superseded, key=lambda snapshot: snapshot.superseded)
        if not free:
            return None
        least = min(free, key=self.priority)
        priority, newcomer = self.priority(least), value()
        self.floor = max(self.floor, min(priority, newcomer))
        return None if newcomer < priority else least

    def priority(self, snapshot: Snapshot) -> float:
        """H = L + F · C / Z, see ``worth``; F counts the uses, the first _MOST_HITS hits and the prefill."""
        worth = self.worth(snapshot.anchor, len(snapshot.tail) // 4)
        return snapshot.level + (1 + min(snapshot.hits, _MOST_HITS)) * worth

    def worth(self, anchor: Node, tail: int) -> float:
        """C / Z: seconds saved against the nearest retained snapshot above, per byte kept for it alone.

        Those are image and tail. Blocks are no price of a slot: they go in an order of their own, and a long
        conversation would be the first to lose its place to short ones.
        """
        frontier = PAGE_TOKENS * anchor.depth + tail
        above = self._above(anchor, frontier)
        saved = self._costs.prefill_s(above, frontier - above) - self._costs.restore_s(tail > 0)
        return max(0.0, saved) / (self._image_bytes + self._page_bytes * (tail > 0))

    @staticmethod
    def _above(anchor: Node, frontier: int) -> int:
        """The deepest retained snapshot's frontier before ``frontier`` on the way to the root."""
        node: Node | None = anchor
        while node is not None:
            depths = [s.frontier for s in node.snapshots.values() if not s.superseded]
            before = [depth for depth in depths if depth < frontier]
            if before:
                return max(before)
            node = node.parent
        return 0


def _count_live(anchor: Node, change: int) -> None:
    node: Node | None = anchor
    while node is not None:
        node.live += change
        node = node.parent
