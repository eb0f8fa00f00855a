"""The console's sentences about requests and intervals: rounded numbers with units, no text of anyone.

Owns wording only; exact values stand in the request log.
"""

from __future__ import annotations

from ninfer.server.observe.records import Done, Errored, PreparedRequest, Rejected
from ninfer.server.observe.throughput import Interval

_REUSE_PATHS = {
    "root": "root",
    "checkpoint": "checkpoint",
    "hybrid_endpoint": "endpoint",
    "hybrid_snapshot": "snapshot",
}
# Shown only where requests are in them.
_STATES = ("waiting", "paused", "replaying", "materializing", "capture_pending", "terminal_pending")


def started(request: PreparedRequest) -> str:
    shape, sampling = request.shape, request.sampling
    origin = "default" if shape.max_tokens is None else "request"
    parts = [
        f"req#{request.number} start {shape.protocol}",
        "stream" if shape.stream else "whole",
        f"messages {shape.messages}",
        f"prompt {request.prompt_tokens} tok",
        f"max {request.max_tokens} tok ({origin})",
    ]
    if shape.tools:
        parts.append(f"tools {shape.tools} ({shape.tool_choice or 'auto'})")
    parts.append("thinking " + ("on" if request.thinking else "off"))
    if request.thinking_budget is not None:
        parts.append(f"budget {request.thinking_budget} tok")
    parts.append(
        f"sampler {sampling.temperature:g}/{sampling.top_p:g}/{sampling.top_k}/{sampling.min_p:g}"
        f"/{sampling.presence_penalty:g}/{sampling.frequency_penalty:g}"
    )
    return ", ".join(parts)


def ended(done: Done) -> str:
    usage, work = done.usage, done.work
    word = "cancelled" if done.outcome == "cancelled" else f"done {done.stop}"
    share = 100 * usage.cached_tokens / usage.prompt_tokens if usage.prompt_tokens else 0.0
    path = _REUSE_PATHS.get(done.reuse_path, done.reuse_path)
    decoded = max(usage.completion_tokens - 1, 0)
    parts = [
        f"req#{done.request.number} {word}",
        f"prompt {usage.prompt_tokens} tok",
        f"cache {usage.cached_tokens} ({share:.0f}%, {path})",
        f"prefill {rate(work.computed_prefill_tokens, usage.prefill_s)}",
        f"output {usage.completion_tokens} tok",
        f"decode {rate(decoded, usage.decode_s)}",
    ]
    if usage.draft is not None and usage.draft.drafted_tokens:
        accepted = 100 * usage.draft.accepted_tokens / usage.draft.drafted_tokens
        parts.append(f"{usage.draft.backend} {accepted:.0f}% of {usage.draft.drafted_tokens} drafts")
    if work.preemptions:
        parts.append(f"paused {work.preemptions}x ({seconds(work.paused_ns / 1e9)})")
    parts.append(f"queue {seconds(work.queue_s)}")
    parts.append(f"ttft {'-' if done.ttft_s is None else seconds(done.ttft_s)}")
    parts.append(f"total {seconds(done.total_s)}")
    return ", ".join(parts)


def failed(errored: Errored) -> str:
    word = "cancelled before an outcome" if errored.outcome == "cancelled" else f"failed {errored.code}"
    return f"req#{errored.request.number} {word}, total {seconds(errored.total_s)}"


def rejected(refusal: Rejected) -> str:
    error = refusal.error
    param = f" ({error.param})" if error.param is not None else ""
    return f"req#{refusal.number} rejected {error.status} {error.code}{param}"


def tool_parse(done: Done) -> str | None:
    """What a tolerant reading recovered; None where nothing was."""
    parse = done.tool_parse
    if parse.recovered_from_reasoning:
        where = "from thinking that was never closed"
    elif parse.tolerant_recovered:
        where = "a strict reading refuses"
        if parse.fallback_reason != "none":
            where += f" ({parse.fallback_reason})"
    else:
        return None
    return f"req#{done.request.number} tool calls recovered: {parse.structured_call_count} {where}"


def throughput(span: Interval) -> str:
    """Rates and counts that are not zero, what runs, the mean batch and the worker's own time."""
    counted, gauges = span.counted, span.now.scheduler
    parts = []
    if counted.tokens.prefill:
        parts.append(f"prefill {rate(counted.tokens.prefill, span.seconds)} ({counted.tokens.prefill} tok)")
    if counted.tokens.replayed:
        parts.append(f"replay {counted.tokens.replayed} tok")
    if counted.tokens.decode:
        parts.append(f"decode {rate(counted.tokens.decode, span.seconds)} ({counted.tokens.decode} tok)")
    parts.append(f"running {gauges.running} (prefill {gauges.prefilling}, decode {gauges.decode_ready})")
    parts += [f"{name.replace('_', ' ')} {count}" for name in _STATES if (count := getattr(gauges, name))]
    if span.average_batch is not None:
        parts.append(f"batch {span.average_batch:.2f}")
    host = counted.work.host.total
    share = 100 * host / span.seconds if span.seconds > 0 else 0.0
    parts.append(f"host {seconds(host)} ({share:.1f}%)")
    return "throughput " + ", ".join(parts)


def seconds(value: float) -> str:
    """In six characters: ``45 ms``, ``0.42 s``, ``12.3 s``, ``123 s``, ``12 h``."""
    if value < 0.0995:
        return f"{1000 * value:.0f} ms"
    for digits, bound in ((2, 9.995), (1, 99.95)):
        if value < bound:
            return f"{value:.{digits}f} s"
    return f"{value:.0f} s" if value < 9999.5 else f"{min(value / 3600, 9999):.0f} h"


def rate(tokens: float, spent_s: float) -> str:
    """Tokens per second: ``5.62 tok/s``, ``56.2 tok/s``, ``5621 tok/s``, ``56k tok/s``; ``-`` in no time."""
    if spent_s <= 0:
        return "-"
    value = tokens / spent_s
    for digits, bound in ((2, 9.995), (1, 99.95), (0, 9999.5)):
        if value < bound:
            return f"{value:.{digits}f} tok/s"
    if value < 999_500:
        return f"{value / 1000:.0f}k tok/s"
    return f"{min(value / 1e6, 999):.0f}M tok/s"
