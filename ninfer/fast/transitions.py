"""Tells the request log of pauses and ways back, where it asked to be told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from ninfer.engine.account import Account
from ninfer.engine.events import EngineEvent
from ninfer.engine.request_work import SchedulingTransition, TokenProgress, TransitionKind
from ninfer.fast.active import Active


class Transitions:
    """``wanted`` False: nothing is published."""

    def __init__(
        self,
        account: Account,
        publish: Callable[[EngineEvent], None],
        clock: Callable[[], float],
        wanted: bool,
    ) -> None:
        self._account, self._publish, self._clock, self._wanted = account, publish, clock, wanted

    def note(
        self, active: Active, transition: TransitionKind, route: Literal["replay"] | None = None
    ) -> None:
        """Publish one step of a preempted request."""
        if not self._wanted:
            return
        account, mine, now = self._account, active.account, self._clock()
        assert mine is not None
        self._publish(
            SchedulingTransition(
                id=active.request.id,
                transition=transition,
                route=route,
                preemption_index=active.pauses,
                steady_ns=round(now * 1e9),
                elapsed_ns=round((now - active.submitted_at) * 1e9),
                engine=TokenProgress(
                    account.prefill_tokens, account.generation_tokens, account.replayed_tokens
                ),
                request=TokenProgress(
                    mine.computed_prefill_tokens, active.turn.committed, mine.replayed_tokens
                ),
                engine_request_id=mine.number,
            )
        )
