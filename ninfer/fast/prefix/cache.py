"""The cache as the worker uses it: lanes begin from it, leave blocks and snapshots in it, and take its pages.

Owns the order of the steps between index and lane memory; whom a request displaces is the scheduler's
business.
"""

from __future__ import annotations

from dataclasses import dataclass

from ninfer.fast.memory.lanes import NO_PAGE, Lane, LaneMemory, Resume, pages_for
from ninfer.fast.ops.control import PAGE_TOKENS
from ninfer.fast.prefix.content import BlockHash, block_hash
from ninfer.fast.prefix.cost import CostModel
from ninfer.fast.prefix.index import PrefixIndex
from ninfer.fast.prefix.limits import CacheLimits
from ninfer.fast.prefix.lineage import Lineage
from ninfer.fast.prefix.snapshots import Kind, Snapshot
from ninfer.fast.prefix.taps import Situation, Tap, TapSchedule, plan_taps
from ninfer.fast.prefix.tree import ABSENT, Node
from ninfer.spec import document


@dataclass(slots=True)
class Selections:
    """Where first bindings began, since the start; ``last_tokens`` that the newest one reused."""

    roots: int = 0
    checkpoints: int = 0
    last_tokens: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Quote:
    """Where a sequence would resume, the blocks up to there, and ``planned``: frontiers it has already."""

    snapshot: Snapshot | None
    path: tuple[Node, ...]
    planned: frozenset[int]

    @property
    def frontier(self) -> int:
        return 0 if self.snapshot is None else self.snapshot.frontier


ROOT = Quote(None, (), frozenset())


class PrefixCache:
    """``page_bytes`` and the image's size rank snapshots; ``hashing`` is replaced by tests only.

    ``lagging``: a drafter's rows of the newest token come with the next one, so a lane that resumes writes
    once more into the last page of its prefix, and gets a copy of it.
    """

    def __init__(
        self,
        memory: LaneMemory,
        limits: CacheLimits,
        page_bytes: int,
        hashing: BlockHash = block_hash,
        lagging: bool = False,
    ) -> None:
        self.limits = limits
        self.costs = CostModel(limits.chunk, memory.states.image_bytes)
        self.index = PrefixIndex(
            memory, limits.snapshot_slots, page_bytes, memory.states.image_bytes, self.costs, hashing
        )
        self.selections = Selections()
        self._memory, self._lagging = memory, lagging
        self._endpoint_tokens = int(document("cache")["endpoint_tokens"])

    # --- beginning ---------------------------------------------------------------------------------

    def quote(self, lineage: Lineage) -> Quote:
        """Where the sequence may resume now; good until anything is published or evicted."""
        if not self.limits.reuse:
            return ROOT
        length = len(lineage.content)
        found = self.index.find(lineage.content, length)
        snapshot = self.index.choose(found, length)
        depth = 0 if snapshot is None else snapshot.anchor.depth
        return Quote(snapshot, found.path[:depth], frozenset(one.frontier for one in found.snapshots))

    def pages_needed(self, quote: Quote, tokens: int) -> int:
        """Available pages that a lane of ``tokens`` tokens takes: blocks in use elsewhere cost none.

        A page that is copied counts beside its copy: it must stay until then.
        """
        shared, copied = self._split(quote)
        used = sum(node.users > 0 for node in shared)
        waiting = copied is not None and not (isinstance(copied, Node) and copied.users > 0)
        return pages_for(max(tokens, quote.frontier)) + waiting - used

    def _split(self, quote: Quote) -> tuple[tuple[Node, ...], Node | Snapshot | None]:
        """The blocks whose pages a lane shares, and the entry whose page it copies."""
        if quote.snapshot is None:
            return (), None
        if quote.snapshot.page != ABSENT:
            return quote.path, quote.snapshot
        return (quote.path[:-1], quote.path[-1]) if self._lagging else (quote.path, None)

    def selected(self, quote: Quote) -> None:
        """A request begins here for the first time: what it reuses is worth more from now on."""
        self.selections.last_tokens = quote.frontier
        if quote.snapshot is None:
            self.selections.roots += 1
        else:
            self.selections.checkpoints += 1
            self.index.hit(quote.snapshot)

    @property
    def available_pages(self) -> int:
        """Pages that are free or cached for nobody."""
        return self.index.available_pages

    def bind(self, lineage: Lineage, lane: Lane, quote: Quote, tokens: int) -> bool:
        """Let an empty lane go on from ``quote``, with pages for ``tokens`` tokens; False: there are none.

        Nothing has changed then, except that the blocks of the quote count as used.
        """
        snapshot, path = quote.snapshot, list(quote.path)
        for node in path:
            self.index.tree.use(node)
        if snapshot is not None:
            snapshot.pins += 1
            self.index.tree.delist(snapshot)
        shared, copied = self._split(quote)
        fits = self.index.evict(pages_for(max(tokens, quote.frontier)) - len(shared))
        if fits:
            if snapshot is not None:
                pages, tail = [node.page for node in shared], NO_PAGE if copied is None else copied.page
                self._memory.resume(
                    lane, Resume(pages, tail, snapshot.slot, snapshot.frontier, snapshot.shift)
                )
            self._memory.grow(lane, tokens)
            lineage.path, lineage.own = path, []
            lineage.resumed, lineage.deepest = snapshot, quote.frontier
        if snapshot is not None:
            snapshot.pins -= 1
            self.index.tree.enlist(snapshot)
        if not fits:
            self.index.release(path)
        return fits

    def plan(self, lineage: Lineage, quote: Quote) -> None:
        """Plan the taps of a prompt that begins at ``quote``."""
        taps: tuple[Tap, ...] = ()
        if self.limits.reuse:
            from_endpoint = quote.snapshot is not None and quote.snapshot.kind is Kind.ENDPOINT
            situation = Situation(
                lineage.prompt,
                quote.frontier,
                quote.planned,
                from_endpoint,
                lineage.content.frontier_at_or_before,
            )
            taps = plan_taps(situation, lineage.hints, self.limits)
        lineage.schedule = TapSchedule(taps, lineage.prompt, self.limits.chunk)

    # --- while it runs -----------------------------------------------------------------------------

    def reserve(self, lane: Lane, tokens: int) -> bool:
        """Have pages for ``tokens`` tokens in all, evicting what nobody uses; False: too few even so."""
        missing = self._memory.missing(lane, tokens)
        if missing and not self.index.evict(missing):
            return False
        self._memory.grow(lane, tokens)
        return True

    def committed(self, lineage: Lineage, lane: Lane) -> None:
        """The lane's frontier has moved: its whole blocks are published, and the taps that are due."""
        if not self.limits.reuse:
            return
        for block in range(len(lineage.path), lane.frontier // PAGE_TOKENS):
            parent = lineage.path[-1] if lineage.path else self.index.tree.root
            node, fresh = self.index.insert(parent, lineage.content, block, lane.pages[block])
            lineage.path.append(node)
            if fresh:
                lineage.own.append(node)
            else:  # somebody was here before: one copy is enough
                self._memory.swap(lane, block, node.page)
        if lineage.schedule is not None and lane.frontier <= lineage.prompt:
            kind = lineage.schedule.due(lane.frontier)
            if kind is not None:
                self._tap(lineage, lane, kind)

    def _tap(self, lineage: Lineage, lane: Lane, kind: Kind) -> None:
        """Copy the lane's state to where others can resume; skipped where there is no room for it."""
        place = self._place(lineage, lane.frontier)
        if self._refresh(lineage, place, lane.frontier, kind):
            return
        anchor, tail, extra = place
        self._supersede(lineage, of_tap=True)
        if tail and not self.index.evict(1):
            self.index.counters.taps_skipped += 1
            return
        if not self.index.make_room(anchor, len(tail) // 4):
            self.index.counters.taps_skipped += 1
            return
        page = self._memory.copy_tail(lane) if tail else ABSENT
        slot = self._memory.copy_state(lane)
        snapshot = self.index.publish(anchor, tail, extra, kind, slot, page, lane.shift)
        lineage.last_tap, lineage.deepest = snapshot, lane.frontier

    # --- the end -----------------------------------------------------------------------------------

    def leave(self, lineage: Lineage, lane: Lane, kind: Kind = Kind.ENDPOINT) -> None:
        """The sequence stops in a whole state, which becomes a snapshot; its path may be evicted."""
        if self.limits.reuse and lane.frontier - lineage.deepest >= self._endpoint_tokens:
            self._end(lineage, lane, kind)
        self._release(lineage)

    def abandon(self, lineage: Lineage) -> None:
        """The sequence went wrong: what it alone has published is forgotten."""
        own = lineage.own
        self._release(lineage)
        self.index.retract(own)

    def _end(self, lineage: Lineage, lane: Lane, kind: Kind) -> None:
        place = self._place(lineage, lane.frontier)
        if self._refresh(lineage, place, lane.frontier, kind):
            return
        anchor, tail, extra = place
        self._supersede(lineage, of_tap=False)
        # Where a client sends the answer back in another form, only the prompt's tap can be resumed from.
        if self.index.make_room(anchor, len(tail) // 4, lineage.last_tap):
            slot, page = self._memory.surrender(lane)
            self.index.publish(
                anchor, tail, extra, kind, slot, ABSENT if page == NO_PAGE else page, lane.shift
            )

    def _release(self, lineage: Lineage) -> None:
        self.index.release(lineage.path)
        lineage.path, lineage.own = [], []
        lineage.resumed = lineage.last_tap = None
        lineage.deepest = 0

    def _place(self, lineage: Lineage, frontier: int) -> tuple[Node, bytes, bytes]:
        assert len(lineage.path) == frontier // PAGE_TOKENS
        anchor = lineage.path[-1] if lineage.path else self.index.tree.root
        return anchor, lineage.content.tail(frontier), lineage.content.tail_extra(frontier)

    def _refresh(self, lineage: Lineage, place: tuple[Node, bytes, bytes], frontier: int, kind: Kind) -> bool:
        """Whether the snapshot is there already; then it is as good as new."""
        known = self.index.known(*place)
        if known is None:
            return False
        self.index.refresh(known, kind)
        lineage.deepest = frontier
        return True

    def _supersede(self, lineage: Lineage, of_tap: bool) -> None:
        """A deeper snapshot comes: the one it resumed from has served, and its last tap if this is one."""
        for old in (lineage.resumed, lineage.last_tap if of_tap else None):
            if old is not None:
                self.index.shelf.supersede(old)

    # --- self-check --------------------------------------------------------------------------------

    @property
    def kept(self) -> tuple[int, int]:
        """Pages and state slots that the cache keeps beside every lane."""
        held = self.index.shelf.held
        tails = sum(snapshot.page != ABSENT for snapshot in held)
        return self.index.tree.blocks + tails, len(held)
