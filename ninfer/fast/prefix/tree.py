"""Blocks of 64 tokens in a tree: who follows whom, which page holds it, who uses it, what may go first.

A block is used while a sequence stands on it or below; others are evicted the least recently used first,
deeper ones before those above them. Snapshots with a page of their own stand in the same order, before their
block. A block whose last copy goes takes everything below with it. Owns the tree and its order only: pages
are numbers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from ninfer.fast.prefix.content import BlockHash, block_hash

if TYPE_CHECKING:
    from ninfer.fast.prefix.snapshots import Snapshot

ABSENT = -1


class Copy(Enum):
    """State of one tier's copy. A filling one is still being written: neither mapped nor a source."""

    ABSENT = "absent"
    FILLING = "filling"
    RESIDENT = "resident"


@dataclass(slots=True, eq=False)
class Node:
    """A block, or the root (depth 0). Immutable but for copies, children, snapshots and counts.

    ``page`` on the device, ``slab`` in a second tier. ``users`` are sequences that stand on it or below.
    ``live`` counts snapshots at or below that are not superseded.
    """

    parent: Node | None
    tokens: bytes
    extra: bytes
    depth: int
    page: int = ABSENT
    device: Copy = Copy.ABSENT
    slab: int = ABSENT
    host: Copy = Copy.ABSENT
    users: int = 0
    live: int = 0
    removed: bool = False
    children: dict[int, list[Node]] = field(default_factory=dict)
    snapshots: dict[tuple[bytes, bytes], Snapshot] = field(default_factory=dict)

    def path(self) -> list[Node]:
        """From the first block to this one; the root is not in it."""
        nodes, node = [], self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    def below(self) -> Iterator[Node]:
        """This node and all below it, parents first."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            for bucket in node.children.values():
                waiting += bucket

    @property
    def backed(self) -> bool:
        """Whether eviction from the device leaves a copy elsewhere."""
        return self.host is Copy.RESIDENT

    @property
    def is_chain(self) -> bool:
        """Whether no two sequences part below this node."""
        node = self
        while node.children:
            (bucket, *others) = node.children.values()
            if others or len(bucket) > 1:
                return False
            (node,) = bucket
        return True


class BlockTree:
    """The tree, and the unused entries (blocks, tail pages of snapshots) in the order of their eviction."""

    def __init__(self, hashing: BlockHash = block_hash) -> None:
        self.root = Node(None, b"", b"", 0)
        self.blocks = self.evictable_blocks = 0
        self._hash = hashing
        # Entries with a second copy go first: they can come back.
        self._backed: OrderedDict[Node | Snapshot, None] = OrderedDict()
        self._unbacked: OrderedDict[Node | Snapshot, None] = OrderedDict()

    @property
    def evictable(self) -> int:
        """Device pages that eviction may free now."""
        return len(self._backed) + len(self._unbacked)

    def find(self, parent: Node, tokens: bytes, extra: bytes) -> Node | None:
        """The child that is exactly this block."""
        for node in parent.children.get(self._hash(tokens, extra), ()):
            if node.tokens == tokens and node.extra == extra:
                return node
        return None

    def insert(self, parent: Node, tokens: bytes, extra: bytes, page: int) -> Node:
        """A new block on the device, used by its one sequence."""
        assert self.find(parent, tokens, extra) is None
        assert not parent.removed
        node = Node(parent, tokens, extra, parent.depth + 1, page, Copy.RESIDENT, users=1)
        parent.children.setdefault(self._hash(tokens, extra), []).append(node)
        self.blocks += 1
        return node

    def use(self, node: Node) -> None:
        """A sequence now stands on this block too."""
        assert not node.removed
        node.users += 1
        self.delist(node)

    def release(self, path: list[Node]) -> None:
        """A sequence leaves its path: unused blocks become the most recent ones, deeper before shallower."""
        for node in reversed(path):
            assert node.users > 0
            node.users -= 1
            if node.users == 0 and not node.removed:
                for snapshot in node.snapshots.values():
                    self.enlist(snapshot)
                self.enlist(node)

    def enlist(self, entry: Node | Snapshot) -> None:
        """This entry may be evicted, the most recent one of all; entries without a page never stand here."""
        self.delist(entry)
        if entry.page != ABSENT:
            (self._backed if entry.backed else self._unbacked)[entry] = None
            self.evictable_blocks += isinstance(entry, Node)

    def delist(self, entry: Node | Snapshot) -> None:
        """This entry may not be evicted."""
        for listed in (self._backed, self._unbacked):
            if entry in listed:
                del listed[entry]
                self.evictable_blocks -= isinstance(entry, Node)

    def unused(self) -> Iterator[Node | Snapshot]:
        """What may be evicted, in that order."""
        yield from self._backed
        yield from self._unbacked

    def remove(self, node: Node) -> list[Node]:
        """Take a block and all below it out of the tree; returns them. None of them may be in use."""
        assert node.parent is not None
        gone = list(node.below())
        for one in gone:
            assert one.users == 0, "a block in use is removed"
            one.removed = True
            self.delist(one)
        key = self._hash(node.tokens, node.extra)
        bucket = node.parent.children[key]
        bucket.remove(node)
        if not bucket:
            del node.parent.children[key]
        self.blocks -= len(gone)
        return gone
