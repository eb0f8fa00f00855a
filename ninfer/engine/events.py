"""What an engine answers: events of one request, and records about the engine itself.

Owns the frames that cross the process border away from the engine. An event is published only after its
tokens are committed; every request ends with exactly one ``Finished`` or ``Failed``.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ninfer.engine.request_work import RequestWork, SchedulingTransition
from ninfer.engine.statistics import EngineResources, EngineStatistics

FinishReason = Literal["stop", "length", "cancelled"]


class Started(msgspec.Struct, frozen=True, tag="started"):
    """The request left the queue; ``cached_tokens`` prompt tokens were reused."""

    id: str
    prompt_tokens: int
    cached_tokens: int
    queue_s: float


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """``processed`` of ``total`` prompt tokens are in the cache."""

    id: str
    total: int
    cached: int
    processed: int
    elapsed_s: float


class Delta(msgspec.Struct, frozen=True, tag="delta"):
    """Whole text of one channel: never half a character nor part of a stop string.

    ``token_ids`` are the committed ids since the previous delta (they may be ahead of ``text``).
    ``committed`` counts the answer's tokens up to the newest one, 0 where an engine does not say;
    ``prompt_s`` runs from admission to the first of them, ``decode_s`` from there to the newest.
    """

    id: str
    channel: Literal["reasoning", "content"]
    text: str
    token_ids: tuple[int, ...] = ()
    committed: int = 0
    prompt_s: float = 0.0
    decode_s: float = 0.0


class DraftUsage(msgspec.Struct, frozen=True):
    """What a drafter did for one request, or for all of them since the start.

    ``rounds`` are rounds of the target that verified at least one draft, ``fallback_steps`` those without
    one. ``*_per_position`` count by place in the chain of drafts, first draft first, and sum to their totals.
    The ``ngram_*`` members are the copied part of ``rounds``, ``drafted_tokens`` and ``accepted_tokens``.
    ``draft_window`` is the widest neural proposal.
    """

    backend: str
    draft_window: int
    rounds: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    fallback_steps: int = 0
    drafted_per_position: tuple[int, ...] = ()
    accepted_per_position: tuple[int, ...] = ()
    ngram_rounds: int = 0
    ngram_drafted_tokens: int = 0
    ngram_accepted_tokens: int = 0


class Usage(msgspec.Struct, frozen=True):
    """Token counts and stage seconds of one finished request; ``draft`` is None without a drafter.

    ``prefix_reuse_path`` says from where ``cached_tokens`` came: a name of ``spec/cache.yaml``.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    prefill_s: float
    decode_s: float
    time_to_first_token_s: float
    draft: DraftUsage | None = None
    prefix_reuse_path: str = "root"


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """The request's only good end. ``stop_string`` names the matched stop, if one ended it.

    ``stop_token_id`` is the committed, unpublished id that ended it. ``work`` is None where none was done or
    counted. ``in_thinking``: the answer ended without leaving its thinking.
    ``control_tokens`` of its output were inserted, not drawn; ``model_thinking_tokens`` of its thinking were
    drawn (None: all of it).
    """

    id: str
    reason: FinishReason
    usage: Usage
    stop_string: str | None = None
    stop_token_id: int | None = None
    work: RequestWork | None = None
    in_thinking: bool = False
    control_tokens: int = 0
    model_thinking_tokens: int | None = None


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The request's only bad end; ``code`` is a key of ``spec/http/errors.yaml``."""

    id: str
    code: str
    message: str
    param: str | None = None


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The engine has loaded and can take work."""

    engine: str
    load_s: float
    resources: EngineResources = EngineResources()


class LoadProgress(msgspec.Struct, frozen=True, tag="load_progress"):
    """Weight elements loaded so far, for the start-up line."""

    loaded: int
    total: int


class LogRecord(msgspec.Struct, frozen=True, tag="log"):
    """One operational record of the engine process; never prompt or answer text."""

    level: str
    message: str


class StartFailed(msgspec.Struct, frozen=True, tag="start_failed"):
    """The engine could not load; the process ends after this record."""

    message: str


class Fatal(msgspec.Struct, frozen=True, tag="fatal"):
    """A device error that nothing in this process can repair; the server ends too."""

    message: str


RequestEvent = Started | Progress | Delta | Finished | Failed | SchedulingTransition
EngineRecord = Ready | LoadProgress | LogRecord | StartFailed | Fatal | EngineStatistics
EngineEvent = RequestEvent | EngineRecord
