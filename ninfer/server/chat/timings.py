"""The llama.cpp-compatible observations of a chat request: ``timings`` and ``prompt_progress``.

Owns their members and rates; times are measured by the engine. Every rate is finite: what took no time or
counts nothing has rate 0.
"""

from __future__ import annotations

from typing import Any

from ninfer.engine.events import Usage
from ninfer.server.answer.pieces import Prompted, TimingSnapshot


def usage_timings(usage: Usage) -> dict[str, Any]:
    """``timings`` of a finished answer, with the drafts where any were made."""
    timings = timings_object(
        TimingSnapshot(
            usage.prompt_tokens,
            usage.cached_tokens,
            usage.completion_tokens,
            usage.prefill_s,
            usage.decode_s,
        )
    )
    if usage.draft is not None and usage.draft.drafted_tokens:
        timings["draft_n"] = usage.draft.drafted_tokens
        timings["draft_n_accepted"] = usage.draft.accepted_tokens
    return timings


def timings_object(snapshot: TimingSnapshot) -> dict[str, Any]:
    """``timings`` of an answer so far; the first output token belongs to the prompt's time."""
    prompt = snapshot.prompt_tokens - snapshot.cached_tokens
    predicted = snapshot.completion_tokens
    prompt_ms, predicted_ms = 1000 * snapshot.prompt_s, 1000 * snapshot.decode_s
    intervals = max(predicted - 1, 0)
    return {
        "cache_n": snapshot.cached_tokens,
        "prompt_n": prompt,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": _ratio(prompt_ms, prompt),
        "prompt_per_second": _ratio(1000 * prompt, prompt_ms),
        "predicted_n": predicted,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": _ratio(predicted_ms, intervals),
        "predicted_per_second": _ratio(1000 * intervals, predicted_ms),
    }


def progress_object(progress: Prompted) -> dict[str, int]:
    """``prompt_progress``: cumulative, in tokens and whole milliseconds since admission."""
    return {
        "total": progress.total,
        "cache": progress.cached,
        "processed": progress.processed,
        "time_ms": round(1000 * progress.elapsed_s),
    }


def _ratio(amount: float, per: float) -> float:
    return amount / per if per > 0 else 0.0
