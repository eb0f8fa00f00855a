"""Counts one request of a serial engine from its events: nothing else is known of such an engine.

Owns the reading of events; the arithmetic stands in ``account.py``.
"""

from __future__ import annotations

import msgspec

from ninfer.engine.account import Account, RequestAccount
from ninfer.engine.events import Delta, Finished, Progress, RequestEvent, Started


class EventAccount:
    """One request; ``prefilling`` until its first token."""

    def __init__(self, account: Account, submitted_at: float) -> None:
        self._account = account
        self._submitted_at = submitted_at
        self._request: RequestAccount | None = None
        self._processed = 0
        self._prompt_tokens = 0
        self.prefilling = True

    def count(self, event: RequestEvent) -> RequestEvent:
        """The event as it is published: ``Finished`` gets the request's work."""
        if isinstance(event, Started):
            binding_at = self._submitted_at + event.queue_s
            self._request = self._account.bound(
                self._submitted_at, binding_at, event.prompt_tokens, event.cached_tokens
            )
            self._processed, self._prompt_tokens = event.cached_tokens, event.prompt_tokens
        elif self._request is not None and isinstance(event, Progress):
            self._prefilled(self._request, event.processed)
        elif self._request is not None and isinstance(event, Delta):
            self._committed(self._request, self._request.committed + len(event.token_ids))
            if event.text:
                self._account.outputting(self._request)
        elif self._request is not None and isinstance(event, Finished):
            return self._finished(self._request, event)
        return event

    def _finished(self, request: RequestAccount, event: Finished) -> Finished:
        usage = event.usage
        if event.reason != "cancelled" or usage.completion_tokens:
            self._prefilled(request, self._prompt_tokens)
        self._committed(request, usage.completion_tokens)
        work = self._account.settled(request)
        return msgspec.structs.replace(
            event, work=msgspec.structs.replace(work, decode_s=usage.decode_s, decode_share_s=usage.decode_s)
        )

    def _prefilled(self, request: RequestAccount, processed: int) -> None:
        if processed > self._processed:
            self._account.prefilled(request, processed - self._processed)
            self._processed = processed

    def _committed(self, request: RequestAccount, committed: int) -> None:
        """So many output tokens in all; each one after the first is a round of its own."""
        self.prefilling = self.prefilling and committed == 0
        for _ in range(committed - max(request.committed, 1)):
            self._account.decoded([request], 0.0)
        self._account.committed(request, max(0, committed - request.committed))
