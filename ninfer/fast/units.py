"""The units of work: a prefill or replay chunk, a decode round, and what their results mean for requests.

Each commits in the order preview, commit, account, confirm, publish. Owns no memory and no order.
"""

from __future__ import annotations

from collections.abc import Callable

from ninfer.engine.account import Account, Stage, Work
from ninfer.engine.events import Delta, EngineEvent, Finished, Progress, Usage
from ninfer.fast.active import Active
from ninfer.fast.draft.speculation import Proposal, Speculation
from ninfer.fast.program.program import Program, Row, check_drawn
from ninfer.fast.residents import Residents
from ninfer.fast.schedule.gaps import RoundGaps
from ninfer.fast.schedule.scheduler import Phase

# Who failed, and of what.
Failures = list[tuple[list[Active], Exception]]


class Units:
    """Runs units of ``residents`` on ``program``; ``report`` publishes a snapshot of statistics."""

    def __init__(
        self,
        program: Program,
        residents: Residents,
        account: Account,
        gaps: RoundGaps,
        publish: Callable[[EngineEvent], None],
        clock: Callable[[], float],
        report: Callable[[], None],
        speculation: Speculation | None,
    ) -> None:
        self._program, self._residents, self._account = program, residents, account
        self._gaps, self._publish, self._clock, self._report = gaps, publish, clock, report
        self._speculation = speculation

    # --- chunks ------------------------------------------------------------------------------------

    def chunk_end(self, active: Active) -> int:
        """Where the request's next chunk ends."""
        lane, schedule = active.lane, active.lineage.schedule
        assert lane is not None
        assert schedule is not None
        if lane.frontier < active.replay_to:
            end = lane.frontier // 64 * 64 + self._program.options.prefill_chunk
            return min(active.replay_to, end)
        return schedule.end(lane.frontier)

    def chunk(self, active: Active) -> None:
        """One chunk of a prompt, or of what a paused request had; after a prompt's last, the first token."""
        lane, account = active.lane, active.account
        assert lane is not None
        assert account is not None
        self._gaps.pause()
        begin, end = lane.frontier, self.chunk_end(active)
        replaying = begin < active.replay_to
        tokens, axes = active.tokens(begin, end)
        self._account.enter(Stage.SUBMIT, Work.PREFILL)
        row = self._program.prefill(lane, tokens, axes)
        seconds = self._account.launched(*self._program.last_unit)
        cache = self._residents.cache
        cache.costs.observe(begin, end - begin, seconds)
        cache.committed(active.lineage, lane)
        active.ticket.rest = active.rest
        self._residents.notice()
        if replaying:
            self._account.replayed(account, end - begin)
            self._residents.replayed(active)
            return
        self._account.prefilled(account, end - begin)
        self._residents.progressed(active)
        elapsed = self._clock() - active.began
        self._publish(Progress(active.request.id, active.prompt, active.cached, end, elapsed))
        if end < active.prompt:
            return
        if active.turn.reason is None:
            self._account.enter(Stage.SUBMIT, Work.PREFILL)
            drawn = self._program.first(lane, row, active.sampler)
            self._account.launched(*self._program.last_unit)
            self.settle(active, drawn)
            if self._speculation is not None and active.turn.reason is None:
                self._speculation.begin(active)
        else:  # no output was asked for: the prompt is processed, nothing is drawn
            active.first = active.last = self._clock()
            self.finish(active)
        if active.ticket.phase is Phase.PREFILL:
            self._residents.scheduler.advance(active.ticket, Phase.DECODE)

    # --- rounds ------------------------------------------------------------------------------------

    def round(self, members: list[Active]) -> Failures:
        """One round: every member's pending token in, its next token out. A bad row fails alone."""
        speculation = self._speculation
        self._account.enter(Stage.SUBMIT, Work.DECODE)
        if speculation is not None and speculation.passes(members):
            speculation = None
        if speculation is not None:
            began = self._clock()
            proposals = speculation.propose(members)
            if proposals is not None:
                return self._speculate(members, speculation, proposals, began)
        rows = []
        for active in members:
            assert active.lane is not None
            rows.append(Row(active.lane, active.token, active.sampler))
        failures: Failures = []
        tokens = self._program.round(rows)
        seconds = self._account.launched(*self._program.last_unit)
        self._account.decoded([active.account for active in members if active.account], seconds)
        self._gaps.note(*self._program.last_unit)
        for row, (active, drawn) in enumerate(zip(members, tokens, strict=True)):
            try:
                self.settle(active, drawn, row, speculation)
            except Exception as error:
                failures.append(([active], error))
        if speculation is not None:
            speculation.ended(len(members), None, (1,) * len(members))
        return failures

    def _speculate(
        self, members: list[Active], speculation: Speculation, proposals: list[Proposal], began: float
    ) -> Failures:
        """One round with drafts: every member gets those that the target drew itself, and one token.

        ``began`` is when drafting did.
        """
        results = speculation.verify(members, proposals)
        unit = began, self._clock()
        seconds = self._account.launched(*unit)
        self._account.decoded([active.account for active in members if active.account], seconds)
        self._gaps.note(*unit)
        failures: Failures = []
        for active, result in zip(members, results, strict=True):
            try:
                try:
                    if result.error is None:
                        self._residents.cache.committed(active.lineage, active.bound)
                    self._count(active, result.tokens)
                finally:  # what was drawn reaches the client, whatever else fails
                    self._publish_text(active, result.deltas)
                if result.error is None:
                    self._finish_ended(active)
            except Exception as error:
                failures.append(([active], error))
            else:
                if result.error is not None:
                    _add_failure(failures, active, result.error)
        speculation.ended(len(members), proposals, [result.tokens for result in results])
        return failures

    def settle(
        self, active: Active, drawn: int, row: int = 0, speculation: Speculation | None = None
    ) -> None:
        """Commit a token, publish what became whole, finish when it was the last.

        It is the drawn one, unless the turn says which must follow; ``speculation`` hears that it was drawn
        as ``row`` of a round.
        """
        token = check_drawn(drawn)
        if active.turn.forced is not None:
            token = active.turn.forced
        # The token just taken in has given sound logits: only now may others resume from it.
        self._residents.cache.committed(active.lineage, active.bound)
        deltas = list(active.turn.commit(token, self._clock()))
        try:
            active.took([token])
            if speculation is not None:
                speculation.stepped(active, row, token)
            self._count(active, 1)
        finally:  # what was drawn reaches the client, whatever else fails
            self._publish_text(active, deltas)
        self._finish_ended(active)

    def _count(self, active: Active, tokens: int) -> None:
        """So many tokens were committed just now."""
        active.last = self._clock()
        if active.turn.committed == tokens:
            active.first = active.last
        assert active.account is not None
        self._account.committed(active.account, tokens)
        self._residents.progressed(active)

    def _publish_text(self, active: Active, deltas: list[Delta]) -> None:
        """Publish what committed tokens made whole."""
        for delta in deltas:
            if delta.text and active.account is not None:
                self._account.outputting(active.account)
            self._publish(delta)

    def _finish_ended(self, active: Active) -> None:
        """Finish when the last token ended the answer."""
        if active.turn.reason is not None:
            self.finish(active)

    # --- the end -----------------------------------------------------------------------------------

    def finish(self, active: Active) -> None:
        """Publish the request's good end and give its memory back."""
        now, turn = self._clock(), active.turn
        started = active.account is not None
        prefilled = active.first or now
        for delta in turn.close():
            self._publish(delta)
        if active.account is not None:
            active.account.revoked_checkpoints = active.revoked
        work = None if active.account is None else self._account.settled(active.account)
        path = active.lineage.reuse_path
        self._residents.release(active, whole=True)
        usage = Usage(
            prompt_tokens=active.prompt if started else 0,
            cached_tokens=active.cached,
            completion_tokens=turn.committed,
            reasoning_tokens=turn.reasoning_tokens,
            prefill_s=prefilled - active.began if started else 0.0,
            decode_s=active.last - active.first if active.first else 0.0,
            time_to_first_token_s=prefilled - active.submitted_at if started else 0.0,
            draft=None if active.draft is None else active.draft.tally.usage,
            prefix_reuse_path=path,
        )
        assert turn.reason is not None
        self._report()
        ends = (
            turn.stop_string,
            turn.stop_token,
            work,
            turn.in_thinking,
            turn.control_tokens,
            turn.model_thinking_tokens,
        )
        self._publish(Finished(active.request.id, turn.reason, usage, *ends))


def _add_failure(failures: Failures, active: Active, error: Exception) -> None:
    """Whoever failed of the same thing is one failure: it is told once."""
    for members, known in failures:
        if known is error:
            members.append(active)
            return
    failures.append(([active], error))
