"""A decode round with drafts: propose, verify, commit what the target drew itself.

Owns the choice of proposals, the split into verifications of at most 64 columns, and the counts.
A draft stays while it equals the target's own draw at its place (law 3), so nothing here can change an
answer. Requests' texts and ends are the turn's, memory and computing the program's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ninfer import spec
from ninfer.engine.requests import GenerationRequest
from ninfer.engine.settings import DraftSettings
from ninfer.engine.statistics import DraftCounters
from ninfer.engine.tally import Tally
from ninfer.engine.turn import Turn
from ninfer.fast.draft.acceptance import Settled, accept
from ninfer.fast.draft.ngram.index import NOTHING, NgramIndex, Tokens
from ninfer.fast.draft.widths import WidthChooser
from ninfer.fast.memory.lanes import Lane
from ninfer.fast.program.mtp_lanes import Text, Wish
from ninfer.fast.program.program import Program, Sampler
from ninfer.fast.program.verify import Block


class Drafter(Protocol):
    """A neural drafter with memory per lane (``MtpLanes``)."""

    untold: int
    """Tokens that a lane may take in without ``committed``, while nothing is drafted."""

    def begin(self, lane: Lane, text: Text) -> None:
        """The prompt is in and its first output token is drawn: it ends ``text``, which grows from now on."""

    def draft(self, wishes: Sequence[Wish]) -> list[Tokens]:
        """At most as many drafts per wish as it asks for."""
        ...

    def committed(self, lane: Lane, first: int, outputs: Sequence[int]) -> None:
        """Columns were committed: those from row ``first`` of the last Forward, and the tokens after them."""

    def settle(self, lane: Lane) -> None:
        """Leave nothing of the lane's prefix in memory of the drafter's own."""

    def forget(self, lane: Lane) -> None:
        """The lane is about to be closed."""


@dataclass(slots=True, eq=False)
class RequestDraft:
    """What speculation keeps of one request: its copy source (None: no copies) and its counts."""

    index: NgramIndex | None
    tally: Tally


class Member(Protocol):
    """A request in a round: ``token`` is committed and not yet taken in."""

    turn: Turn
    sampler: Sampler
    token: int
    draft: RequestDraft | None

    @property
    def bound(self) -> Lane:
        """Its lane."""
        ...

    @property
    def text(self) -> Text:
        """Its prompt and what was committed."""
        ...

    def took(self, tokens: Sequence[int]) -> None:
        """These were committed; the last one is not yet taken in."""
        ...


@dataclass(frozen=True, slots=True)
class Proposal:
    """Drafts of one row; ``copied`` from its text or proposed by the drafter."""

    drafts: Tokens
    copied: bool = False


NO_DRAFTS = Proposal(NOTHING)


@dataclass(frozen=True, slots=True)
class RoundTrace:
    """One round: planned columns per row, and per row its own (anchor included), whether its drafts were
    copied, and the tokens committed.
    """

    width: int
    columns: tuple[int, ...]
    copied: tuple[bool, ...]
    committed: tuple[int, ...]


class Speculation:
    """Drafts for the requests of one program.

    ``drafter`` may be any; ``special`` [ids] bool says which ids end copy sources. ``clock`` is in seconds.
    """

    def __init__(
        self,
        program: Program,
        settings: DraftSettings,
        drafter: Drafter,
        special: npt.NDArray[np.bool_],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._program, self._settings, self._drafter = program, settings, drafter
        self._special, self._clock = special, clock
        self._columns = _most_columns()
        self._reads_text = settings.copy_tokens > 0 or settings.lookup > 0
        self._reach = 1 + settings.most_drafts
        self._widths = WidthChooser(settings.tokens) if settings.adaptive else None
        self._totals = self._new_tally()
        self._began, self._width = 0.0, 0
        # So many rounds of these members, if they come next, are passed over; so many were and not counted.
        self._passing, self._to_pass, self._passed = list[Member](), 0, 0
        self.trace: Callable[[RoundTrace], None] | None = None

    def open(self, request: GenerationRequest, room: int) -> RequestDraft:
        """What a request drafts from, built on the calling thread (it may be any)."""
        return RequestDraft(self._index(request, room), self._new_tally())

    def open_plain(self) -> RequestDraft:
        """As ``open``, for a request that copies nothing."""
        return RequestDraft(None, self._new_tally())

    @property
    def counters(self) -> DraftCounters:
        """Counts over all requests since the start."""
        self._count_passed()
        return self._totals.counters

    def begin(self, member: Member) -> None:
        """The member's first token is committed."""
        self._drafter.begin(member.bound, member.text)
        self._append(member, [member.token])

    def resume(self, member: Member) -> None:
        """The member is back on a new lane, with everything but its pending token taken in again."""
        self._drafter.begin(member.bound, member.text)

    def reach(self, member: Member) -> int:
        """The most tokens that the member may take in in one round."""
        return max(1, min(member.turn.left, self._reach))

    def end(self, lane: Lane, sound: bool = True) -> None:
        """The lane is about to be closed; its pages get all that the drafter knows of a ``sound`` prefix."""
        self._count_passed()
        self._passing = []  # whoever ends is not held on to
        try:
            if sound:
                self._drafter.settle(lane)
        finally:
            self._drafter.forget(lane)

    def passes(self, members: Sequence[Member]) -> bool:
        """Whether the coming round of ``members`` is an ordinary one that nobody here need hear of."""
        if not self._to_pass or members != self._passing:
            return False
        self._to_pass -= 1
        self._passed += 1
        if self.trace is not None:
            self.trace(traced([NO_DRAFTS] * len(members), (1,) * len(members), 0, 0))
        return True

    def propose(self, members: Sequence[Member]) -> list[Proposal] | None:
        """Begin a round: what each member may verify. None: nobody has a draft, the round is an ordinary one.

        Then ``verify`` follows, or ``stepped`` for every member, and ``ended`` at last.
        """
        self._count_passed()
        self._began, self._to_pass, rows = self._clock(), 0, len(members)
        self._width = width = self._neural_width(rows)
        if not width and not self._reads_text:
            self._passing = list(members)
            return None
        proposals = self._propose(members, width)
        return None if all(proposal is NO_DRAFTS for proposal in proposals) else proposals

    def verify(self, members: Sequence[Member], proposals: Sequence[Proposal]) -> list[Settled]:
        """Verify and commit: every member gets at least one token, in their order.

        Errors: whatever the program raises; a member that fails alone carries its error, and so do those of
        a verification that is not the only one: what another has committed stands.
        """
        results: list[Settled] = []
        for begin, end in _groups([1 + len(p.drafts) for p in proposals], self._columns):
            try:
                results += list(self._verify(members[begin:end], proposals[begin:end]))
            except Exception as error:
                if end - begin == len(members):
                    raise
                results += [Settled(0, [], error)] * (end - begin)
        return results

    def stepped(self, member: Member, row: int, token: int) -> None:
        """An ordinary round has taken in the member's pending token as ``row``; ``token`` follows."""
        self._count_fallbacks(member, 1)
        self._drafter.committed(member.bound, row, (token,))
        draft = member.draft
        if draft is not None and draft.index is not None:
            draft.index.append(np.array((token,), np.int32))

    def ended(self, rows: int, proposals: Sequence[Proposal] | None, committed: Sequence[int]) -> None:
        """The round is over for its ``rows`` members, of which each got so many tokens: learn from it."""
        widths = self._widths
        if proposals is None:
            if widths is not None:
                if widths.needs_cost(rows):
                    widths.note(rows, self._width, self._clock() - self._began, ())
                if not self._width and not self._reads_text:
                    self._to_pass = widths.pass_over(rows, self._drafter.untold)
        elif widths is not None and not any(proposal.copied for proposal in proposals):
            accepted = [
                (len(proposal.drafts), max(0, count - 1))
                for proposal, count in zip(proposals, committed, strict=True)
                if proposal is not NO_DRAFTS
            ]
            widths.note(rows, self._width, self._clock() - self._began, accepted)
        if self.trace is not None:
            copies = self._settings.copy_tokens
            self.trace(traced(proposals or [NO_DRAFTS] * rows, committed, self._width, copies))

    # --- proposals ---------------------------------------------------------------------------------

    def _neural_width(self, rows: int) -> int:
        return self._settings.tokens if self._widths is None else self._widths.choose(rows)

    def _propose(self, members: Sequence[Member], width: int) -> list[Proposal]:
        """A copy where the text offers one, else what the suffix looked up, else the drafter's."""
        proposals = [self._from_text(member, width) for member in members]
        if not width:
            return [proposal or NO_DRAFTS for proposal in proposals]
        rows = [row for row, proposal in enumerate(proposals) if proposal is None]
        wishes = [
            Wish(member.bound, member.sampler, min(width, member.turn.left - 1))
            for member in (members[row] for row in rows)
        ]
        drafts = dict(zip(rows, self._drafter.draft(wishes) if wishes else (), strict=True))
        return [
            proposal or (Proposal(drafts[row]) if len(drafts[row]) else NO_DRAFTS)
            for row, proposal in enumerate(proposals)
        ]

    def _from_text(self, member: Member, width: int) -> Proposal | None:
        left = member.turn.left - 1
        if left <= 0:
            return NO_DRAFTS
        index = None if member.draft is None else member.draft.index
        if index is None:
            return None
        settings = self._settings
        window = min(settings.copy_tokens, left)
        copied = index.propose(window, settings.copy_match, settings.tokens)
        if len(copied):
            return Proposal(copied, copied=True)
        if settings.lookup and width:
            found = index.recent(settings.lookup, min(width, left))
            if len(found):
                return Proposal(found)
        return None

    def _index(self, request: GenerationRequest, room: int) -> NgramIndex | None:
        if not self._settings.copy_tokens and not self._settings.lookup:
            return None
        sources = [np.frombuffer(source, "<i4") for source in request.copy_sources]
        return NgramIndex(np.frombuffer(request.tokens, "<i4"), max(room, 0), self._special, sources)

    # --- acceptance --------------------------------------------------------------------------------

    def _verify(self, members: Sequence[Member], proposals: Sequence[Proposal]) -> Iterator[Settled]:
        blocks = [
            Block(member.bound, _columns(member.token, proposal.drafts), member.sampler)
            for member, proposal in zip(members, proposals, strict=True)
        ]
        drawn, at = self._program.verify(blocks), self._clock()
        outputs, results = [], []
        for member, proposal, row in zip(members, proposals, drawn, strict=True):
            tokens, settled = accept(member.turn, proposal.drafts, row, at)
            outputs.append(tokens)
            results.append(settled)
        self._program.commit(blocks, [len(tokens) for tokens in outputs])
        first = 0
        for member, block, proposal, tokens in zip(members, blocks, proposals, outputs, strict=True):
            if tokens:
                self._committed(member, first, tokens)
                self._count(member, proposal, len(tokens) - 1)
            first += len(block.tokens)
        yield from results

    def _committed(self, member: Member, first: int, tokens: list[int]) -> None:
        member.took(tokens)
        self._drafter.committed(member.bound, first, tokens)
        self._append(member, tokens)

    def _append(self, member: Member, tokens: list[int]) -> None:
        if member.draft is not None and member.draft.index is not None:
            member.draft.index.append(np.array(tokens, np.int32))

    def _count(self, member: Member, proposal: Proposal, accepted: int) -> None:
        for tally in self._tallies(member):
            tally.add(len(proposal.drafts), accepted, proposal.copied)

    def _count_passed(self) -> None:
        """Count the rounds that were passed over since the last time."""
        if self._passed:
            for member in self._passing:
                self._count_fallbacks(member, self._passed)
            self._passed = 0

    def _count_fallbacks(self, member: Member, rounds: int) -> None:
        """So many rounds of the member were without drafts."""
        for tally in self._tallies(member):
            tally.add_fallbacks(rounds)

    def _tallies(self, member: Member) -> list[Tally]:
        """Where its rounds are counted."""
        return [self._totals] if member.draft is None else [self._totals, member.draft.tally]

    def _new_tally(self) -> Tally:
        settings = self._settings
        return Tally(settings.backend, settings.tokens, settings.most_drafts)


def verified_columns(settings: DraftSettings, lanes: int) -> int:
    """The most columns of one verification: of every lane its pending token and the most drafts of a kind."""
    return min(_most_columns(), lanes * (1 + settings.most_drafts))


def _most_columns() -> int:
    return int(spec.document("speculation")["verify"]["columns"])


def traced(
    proposals: Sequence[Proposal], committed: Sequence[int], width: int, copy_tokens: int
) -> RoundTrace:
    """The trace of a round that planned ``width`` neural drafts."""
    copied = tuple(proposal.copied for proposal in proposals)
    return RoundTrace(
        width=1 + (copy_tokens if any(copied) else width),
        columns=tuple(1 + len(proposal.drafts) for proposal in proposals),
        copied=copied,
        committed=tuple(committed),
    )


def _columns(token: int, drafts: Tokens) -> Tokens:
    """What a row verifies: its pending token, then its drafts."""
    columns = np.empty(1 + len(drafts), np.int32)
    columns[0], columns[1:] = token, drafts
    return columns


def _groups(columns: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Neighbouring rows that fit one verification of ``most`` columns, as ranges."""
    begin, total = 0, 0
    for row, count in enumerate(columns):
        if total + count > most:
            yield begin, row
            begin, total = row, 0
        total += count
    yield begin, len(columns)
