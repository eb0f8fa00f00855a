"""The index of prefixes: look-up, publication, eviction. The one owner of tree, snapshots and their memory.

Memory is injected. Every block and every tail holds one reference to a page, every snapshot one state slot; a
page that no sequence uses is free again as soon as its entry is evicted. Deterministic: no clock, no draw.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from ninfer.fast.ops.control import PAGE_TOKENS
from ninfer.fast.prefix.content import BlockHash, Content, block_hash
from ninfer.fast.prefix.cost import CostModel
from ninfer.fast.prefix.snapshots import Kind, Snapshot, SnapshotShelf
from ninfer.fast.prefix.statistics import CacheCounters, CacheGauges
from ninfer.fast.prefix.tree import ABSENT, BlockTree, Copy, Node


class CacheMemory(Protocol):
    """Pages with counted owners, and state slots."""

    @property
    def free_pages(self) -> int: ...

    def hold_page(self, page: int) -> None:
        """One more owner of a page that has owners."""
        ...

    def drop_page(self, page: int) -> None:
        """One owner less; without any, the page is free."""
        ...

    def drop_slot(self, slot: int) -> None:
        """A state slot is free."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """The known blocks of a prompt in order, and the snapshots on their way where it can resume."""

    path: tuple[Node, ...]
    snapshots: tuple[Snapshot, ...]


class PrefixIndex:
    """``slots`` snapshots; sizes in bytes rank them."""

    def __init__(
        self,
        memory: CacheMemory,
        slots: int,
        page_bytes: int,
        image_bytes: int,
        costs: CostModel,
        hashing: BlockHash = block_hash,
    ) -> None:
        self.tree = BlockTree(hashing)
        self.shelf = SnapshotShelf(slots, page_bytes, image_bytes, costs)
        self.counters = CacheCounters()
        self._memory, self._costs = memory, costs

    @property
    def gauges(self) -> CacheGauges:
        return CacheGauges(
            self.tree.blocks, self.tree.evictable_blocks, self.tree.blocks, len(self.shelf.held)
        )

    @property
    def available_pages(self) -> int:
        """Pages that are free or can be freed at once."""
        return self._memory.free_pages + self.tree.evictable

    # --- look-up -----------------------------------------------------------------------------------

    def find(self, content: Content, length: int) -> Found:
        """What is known of the first ``length`` tokens; at least one of them is always left to compute."""
        path, node = list[Node](), self.tree.root
        snapshots = list(self._resumable(node, content, length))
        for block in range((length - 1) // PAGE_TOKENS):
            child = self.tree.find(node, content.block(block), content.extra(block))
            if child is None or child.device is not Copy.RESIDENT:
                break
            node = child
            path.append(node)
            snapshots += self._resumable(node, content, length)
        return Found(tuple(path), tuple(snapshots))

    def _resumable(self, anchor: Node, content: Content, length: int) -> Iterator[Snapshot]:
        for snapshot in anchor.snapshots.values():
            frontier = snapshot.frontier
            if (
                0 < frontier < length
                and snapshot.tail == content.tail(frontier)
                and snapshot.extra == content.tail_extra(frontier)
                and content.is_frontier(frontier)
            ):
                yield snapshot

    def choose(self, found: Found, length: int) -> Snapshot | None:
        """Where to resume: the deepest snapshot, or the root (None) where that is cheaper."""
        if not found.snapshots:
            return None
        deepest = max(found.snapshots, key=lambda snapshot: snapshot.frontier)
        restored = self._costs.restore_s(bool(deepest.tail)) + self._costs.prefill_s(
            deepest.frontier, length - deepest.frontier
        )
        return deepest if restored <= self._costs.prefill_s(0, length) else None

    def hit(self, snapshot: Snapshot) -> None:
        """A request resumes at ``snapshot``."""
        self.shelf.hit(snapshot)
        self.counters.snapshot_hits += 1
        self.counters.reused_tokens += snapshot.frontier
        if snapshot.page != ABSENT:
            self.tree.enlist(snapshot)

    # --- publication -------------------------------------------------------------------------------

    def insert(self, parent: Node, content: Content, block: int, page: int) -> tuple[Node, bool]:
        """A committed block of a sequence that stands on ``parent``: its node, and whether it is new.

        The sequence stands on the node afterwards. A block that is known keeps its page: the sequence should
        use that one and give its own back.
        """
        tokens, extra = content.block(block), content.extra(block)
        node = self.tree.find(parent, tokens, extra)
        if node is not None:
            self.tree.use(node)
            if node.device is Copy.ABSENT:
                node.page, node.device = page, Copy.RESIDENT
                self._memory.hold_page(page)
                self.counters.blocks_reattached += 1
                return node, True
            self.counters.blocks_duplicate += 1
            return node, False
        node = self.tree.insert(parent, tokens, extra, page)
        self._memory.hold_page(page)
        self.counters.blocks_inserted += 1
        return node, True

    def known(self, anchor: Node, tail: bytes, extra: bytes) -> Snapshot | None:
        """The snapshot of exactly this place."""
        return anchor.snapshots.get((tail, extra))

    def refresh(self, snapshot: Snapshot, kind: Kind) -> None:
        """Published again: as recent as new, and a boundary if either was one."""
        hits = snapshot.hits
        self.shelf.hit(snapshot)
        snapshot.hits = hits
        if kind is Kind.BOUNDARY:
            snapshot.kind = kind
        if snapshot.page != ABSENT:
            self.tree.enlist(snapshot)

    def make_room(self, anchor: Node, tail: int, spared: Snapshot | None = None) -> bool:
        """Have a slot for a snapshot with so many tail tokens; False: all others are worth more.

        ``spared`` goes only where no other could.
        """
        if self.shelf.slots == 0:
            return False
        if self.shelf.is_full:
            victim = self.shelf.victim(lambda: self.shelf.floor + self.shelf.worth(anchor, tail), spared)
            if victim is None:
                return False
            self._drop_snapshot(victim)
            self.counters.evicted_snapshots += 1
        return True

    def publish(
        self, anchor: Node, tail: bytes, extra: bytes, kind: Kind, slot: int, page: int, shift: int
    ) -> Snapshot:
        """Hang up a snapshot; its slot and tail page (ABSENT without a tail) are the index's from now on."""
        assert (page == ABSENT) == (not tail)
        snapshot = Snapshot(anchor, tail, extra, kind, slot, page, shift, self.shelf.moment())
        self.shelf.add(snapshot)
        if page != ABSENT:
            self.tree.enlist(snapshot)
        if kind is Kind.ENDPOINT:
            self.counters.endpoints_created += 1
        else:
            self.counters.taps_created += 1
        return snapshot

    # --- leaving and eviction ----------------------------------------------------------------------

    def release(self, path: list[Node]) -> None:
        """A sequence leaves its path, which may be evicted from now on."""
        self.tree.release(path)

    def retract(self, nodes: Iterable[Node]) -> None:
        """Forget blocks of a sequence that went wrong, with all below, where nobody else stands on them."""
        for node in nodes:
            if not node.removed and all(one.users == 0 for one in node.below()):
                self._remove(node)

    def evict(self, pages: int) -> bool:
        """Free pages until so many are free; False when nothing more can go."""
        while self._memory.free_pages < pages:
            entry = next(self.tree.unused(), None)
            if entry is None:
                return False
            self._evict_entry(entry)
        return True

    def clear(self) -> None:
        """Evict everything that is not in use."""
        while (entry := next(self.tree.unused(), None)) is not None:
            self._evict_entry(entry)
        for snapshot in [one for one in self.shelf.held if one.anchor.users == 0 and not one.pins]:
            self._drop_snapshot(snapshot)

    def _evict_entry(self, entry: Node | Snapshot) -> None:
        if isinstance(entry, Snapshot):
            self._drop_snapshot(entry)
            self.counters.evicted_snapshots += 1
            return
        self.counters.evicted_blocks += 1
        if entry.backed:
            self.tree.delist(entry)
            self._memory.drop_page(entry.page)
            entry.page, entry.device = ABSENT, Copy.ABSENT
            return
        self.counters.unbacked_node_losses += 1
        self._remove(entry)

    def _remove(self, node: Node) -> None:
        for gone in self.tree.remove(node):
            for snapshot in list(gone.snapshots.values()):
                self._drop_snapshot(snapshot)
            if gone.page != ABSENT:
                self._memory.drop_page(gone.page)
                gone.page, gone.device = ABSENT, Copy.ABSENT

    def _drop_snapshot(self, snapshot: Snapshot) -> None:
        self.shelf.remove(snapshot)
        self.tree.delist(snapshot)
        self._memory.drop_slot(snapshot.slot)
        if snapshot.page != ABSENT:
            self._memory.drop_page(snapshot.page)

    # --- self-check --------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """The invariants of the tree, whoever stands on it; for tests: it visits everything, often.

        Errors: ``AssertionError``.
        """
        nodes = list(self.tree.root.below())[1:]
        assert len(nodes) == self.tree.blocks
        listed = set(self.tree.unused())
        held = [snapshot for node in (self.tree.root, *nodes) for snapshot in node.snapshots.values()]
        assert sorted(map(id, held)) == sorted(map(id, self.shelf.held)), "a snapshot hangs nowhere"
        assert len(held) <= self.shelf.slots
        slots = [snapshot.slot for snapshot in held]
        assert len(set(slots)) == len(slots), "two snapshots share an image"
        pages = [node.page for node in nodes if node.page != ABSENT]
        pages += [snapshot.page for snapshot in held if snapshot.page != ABSENT]
        assert len(set(pages)) == len(pages), "two entries share a page"
        for node in nodes:
            assert node.parent is not None
            assert node.depth == node.parent.depth + 1
            before = node.parent
            assert before is self.tree.root or before.users >= node.users, "a block before a used one is not"
            assert (node.device is Copy.RESIDENT) == (node.page != ABSENT)
            assert node.users == 0 or node.device is Copy.RESIDENT, "a block in use is not on the device"
            assert (node in listed) == (node.users == 0 and node.page != ABSENT)
        for node in (self.tree.root, *nodes):
            below = sum(not one.superseded for n in node.below() for one in n.snapshots.values())
            assert node.live == below, "a live snapshot is not counted"
        for snapshot in held:
            assert 0 <= len(snapshot.tail) < 4 * PAGE_TOKENS
            assert (snapshot.page == ABSENT) == (not snapshot.tail)
            assert (snapshot in listed) == (snapshot.page != ABSENT)
