"""The index against a plain dictionary, whatever happens in whatever order."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ninfer.fast.prefix.content import Content, block_hash
from ninfer.fast.prefix.snapshots import Kind, Snapshot
from ninfer.fast.prefix.tree import ABSENT, Node
from tests.fast.prefix.memory import Memory, new_index, tokens


@dataclass(eq=False)
class Sequence:
    """A lane as the index sees it: its pages, and the nodes it stands on."""

    content: Content
    pages: list[int] = field(default_factory=list)
    path: list[Node] = field(default_factory=list)
    frontier: int = 0
    resumed: Snapshot | None = None
    last: Snapshot | None = None


class Machine(RuleBasedStateMachine):
    """Insert, hit, snapshot, cancel, pause, evict, restore; the model is a dictionary by exact tokens.

    ``known`` maps the token bytes of a snapshot's whole prefix to what its image held. Pages hold the token
    bytes of their block and of everything before it.
    """

    collide = False

    @initialize(pages=st.integers(12, 40), slots=st.integers(1, 6))
    def start(self, pages: int, slots: int) -> None:
        self.memory = Memory(pages, slots + 4)
        hashing = (lambda tokens, extra: 0) if self.collide else block_hash
        self.index = new_index(self.memory, slots, hashing)
        self.lanes: list[Sequence] = []

    # --- a lane's life -------------------------------------------------------------------------------

    @precondition(lambda self: len(self.lanes) < 4)
    @rule(
        values=st.lists(st.integers(0, 2), min_size=1, max_size=6),
        tail=st.integers(1, 63),
        cut=st.integers(0, 70),
    )
    def begin(self, values: list[int], tail: int, cut: int) -> None:
        """A request comes: it resumes at the best place, which holds exactly its own prefix."""
        whole = tokens(*values, tail=tail)
        whole[max(0, len(whole) - cut) :] += 1
        lane = Sequence(Content(whole))
        found = self.index.find(lane.content, len(whole))
        snapshot = self.index.choose(found, len(whole))
        self._check_found(found.snapshots, whole)
        if snapshot is not None:
            self._resume(lane, snapshot, list(found.path[: snapshot.anchor.depth]))
        self.lanes.append(lane)

    def _check_found(self, found: tuple[Snapshot, ...], whole: np.ndarray) -> None:
        """By the dictionary: every snapshot of a proper beginning is found, and no other."""
        held = {self.memory.slot_holds[snapshot.slot] for snapshot in self.index.shelf.held}
        expected = {prefix for prefix in held if whole[: len(whole) - 1].tobytes().startswith(prefix)}
        assert {self.memory.slot_holds[snapshot.slot] for snapshot in found} == expected
        for snapshot in found:
            assert snapshot.frontier <= len(whole) - 1
            assert self.memory.slot_holds[snapshot.slot] == whole[: snapshot.frontier].tobytes()

    def _resume(self, lane: Sequence, snapshot: Snapshot, path: list[Node]) -> None:
        whole = lane.content.tokens(0, len(lane.content))
        for node in path:
            self.index.tree.use(node)
            self.memory.hold_page(node.page)
            assert self.memory.page_holds[node.page] == whole[: 64 * node.depth].tobytes()
        if snapshot.page != ABSENT:
            assert self.memory.page_holds[snapshot.page] == whole[: snapshot.frontier].tobytes()
        self.index.hit(snapshot)
        lane.path, lane.pages = path, [node.page for node in path]
        lane.frontier, lane.resumed = snapshot.frontier, snapshot

    @precondition(lambda self: self.lanes)
    @rule(which=st.integers(0, 3), step=st.integers(1, 100))
    def advance(self, which: int, step: int) -> None:
        """A lane takes in tokens; whole blocks are published. Without pages it waits."""
        lane = self.lanes[which % len(self.lanes)]
        end = min(lane.frontier + step, len(lane.content))
        missing = -(-end // 64) - len(lane.pages)
        if missing > 0 and not self.index.evict(missing):
            return
        whole = lane.content.tokens(0, end)
        for page in range(len(lane.pages), -(-end // 64)):
            lane.pages.append(self.memory.new_page(whole[: 64 * page].tobytes()))
        for block in range(len(lane.path), end // 64):
            prefix = whole[: 64 * (block + 1)].tobytes()
            parent = lane.path[-1] if lane.path else self.index.tree.root
            node, fresh = self.index.insert(parent, lane.content, block, lane.pages[block])
            if fresh:
                self.memory.page_holds[node.page] = prefix
            else:
                assert self.memory.page_holds[node.page] == prefix, "a block with other tokens was met"
                self.memory.hold_page(node.page)
                self.memory.drop_page(lane.pages[block])
                lane.pages[block] = node.page
            lane.path.append(node)
        lane.frontier = end

    @precondition(lambda self: self.lanes)
    @rule(which=st.integers(0, 3), boundary=st.booleans())
    def tap(self, which: int, boundary: bool) -> None:
        """A snapshot is copied from a lane."""
        lane = self.lanes[which % len(self.lanes)]
        if lane.frontier:
            self._publish(lane, Kind.BOUNDARY if boundary else Kind.TAP)

    def _publish(self, lane: Sequence, kind: Kind) -> None:
        anchor = lane.path[-1] if lane.path else self.index.tree.root
        tail, extra = lane.content.tail(lane.frontier), lane.content.tail_extra(lane.frontier)
        known = self.index.known(anchor, tail, extra)
        if known is not None:
            held = len(self.index.shelf.held)
            self.index.refresh(known, kind)
            assert len(self.index.shelf.held) == held
            assert not known.superseded
            return
        for old in (lane.resumed, lane.last if kind is not Kind.ENDPOINT else None):
            if old is not None:
                self.index.shelf.supersede(old)
        floor = self.index.shelf.floor
        if (tail and not self.index.evict(1)) or not self.index.make_room(anchor, len(tail) // 4):
            return
        assert self.index.shelf.floor >= floor, "the floor fell"
        prefix = lane.content.tokens(0, lane.frontier).tobytes()
        page = self.memory.new_page(prefix) if tail else ABSENT
        slot = self.memory.new_slot(prefix)
        lane.last = self.index.publish(anchor, tail, extra, kind, slot, page, 0)

    @precondition(lambda self: self.lanes)
    @rule(which=st.integers(0, 3), way=st.sampled_from(["finish", "pause", "cancel", "fail"]))
    def leave(self, which: int, way: str) -> None:
        """A lane ends, is paused, cancelled, or goes wrong; only the last leaves nothing new."""
        lane = self.lanes.pop(which % len(self.lanes))
        if way != "fail" and lane.frontier:
            self._publish(lane, Kind.TAP if way == "pause" else Kind.ENDPOINT)
        path = lane.path
        self.index.release(path)
        for page in lane.pages:
            self.memory.drop_page(page)
        if way == "fail":
            self.index.retract(path[-1:])

    # --- pressure ------------------------------------------------------------------------------------

    @rule(pages=st.integers(0, 20))
    def evict(self, pages: int) -> None:
        """Room is made as far as nobody stands in the way; deeper blocks go before those above them."""
        free, evictable = self.memory.free_pages, self.index.tree.evictable
        order = [id(entry) for entry in self.index.tree.unused()]
        served = self.index.evict(pages)
        assert served == (pages <= free + evictable)
        left = [id(entry) for entry in self.index.tree.unused()]
        assert left == [entry for entry in order if entry in set(left)], "the order changed"
        if served:
            assert self.memory.free_pages >= pages

    @rule()
    def clear(self) -> None:
        self.index.clear()
        assert self.index.tree.evictable == 0

    # --- invariants ----------------------------------------------------------------------------------

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "index"):
            return
        self.index.check_integrity()
        used = {id(node) for lane in self.lanes for node in lane.path}
        for node in list(self.index.tree.root.below())[1:]:
            users = sum(any(node is one for one in lane.path) for lane in self.lanes)
            assert node.users == users
            assert (id(node) in used) == (users > 0)
            holders = 1 + sum(node.page in lane.pages for lane in self.lanes)
            assert self.memory.owners[node.page] == holders
            assert self.memory.page_holds[node.page] == _prefix(node), "a block changed"
        for snapshot in self.index.shelf.held:
            prefix = _prefix(snapshot.anchor) + snapshot.tail
            assert self.memory.slot_holds[snapshot.slot] == prefix, "an image changed"
            if snapshot.page != ABSENT:
                assert self.memory.page_holds[snapshot.page] == prefix
        entries = self.index.tree.blocks + sum(one.page != ABSENT for one in self.index.shelf.held)
        lanes_own = sum(
            1 for lane in self.lanes for page in lane.pages if page not in {node.page for node in lane.path}
        )
        assert len(self.memory.owners) - self.memory.free_pages == entries + lanes_own, "a page leaked"
        assert sum(self.memory.slot_taken) == len(self.index.shelf.held), "an image leaked"

    def teardown(self) -> None:
        if hasattr(self, "index"):
            while self.lanes:
                self.leave(0, "cancel")
            self.index.clear()
            assert self.memory.free_pages == len(self.memory.owners)
            assert not any(self.memory.slot_taken)


class CollidingMachine(Machine):
    """All blocks have one hash: equality alone decides."""

    collide = True


def _prefix(node: Node) -> bytes:
    return b"".join(one.tokens for one in node.path())


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=40, stateful_step_count=50, deadline=None)
TestCollidingMachine = CollidingMachine.TestCase
TestCollidingMachine.settings = settings(max_examples=25, stateful_step_count=50, deadline=None)


@pytest.mark.campaign
@pytest.mark.parametrize("machine", [Machine, CollidingMachine])
def test_many_steps(machine: type[Machine]) -> None:
    """At least 50,000 steps of the two machines together."""
    steps = 0

    class Counting(machine):  # type: ignore[valid-type, misc]
        @invariant()
        def count(self) -> None:
            nonlocal steps
            steps += 1

    case = Counting.TestCase
    case.settings = settings(max_examples=600, stateful_step_count=60, deadline=None)
    case().runTest()
    print(f"machine={machine.__name__} steps={steps}")
    assert steps >= 25_000
