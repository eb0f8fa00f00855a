"""Where the time to the first token of agentic turns goes, from the server's own request log.

Client and server know a request by its ``x-request-id``. The parts are disjoint and sum up to what the client
saw.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.bench.agentic_drive import Result

PARTS = ("prepare", "queue", "bind", "prefill", "stalled", "http")


def read_log(path: Path) -> dict[str, dict[str, Any]]:
    """The records of ended requests by their HTTP id."""
    records = map(json.loads, path.read_text().splitlines())
    done = (record for record in records if record["event"] == "request_done")
    return {record["request"]["http_request_id"]: record for record in done}


def parts_of(result: Result, record: Mapping[str, Any] | None) -> dict[str, float] | None:
    """Milliseconds of one request's wait for its first token by part; None where it had none.

    ``queue`` is the wait for a lane, ``stalled`` the time for which the engine ran others' units between
    binding and first token, ``http`` what lies outside of preparation and engine.
    """
    first = None if record is None else record["first_output_timing"]
    if record is None or first is None or result.ttft is None:
        return None
    seconds = {
        "prepare": record["timings_seconds"]["prepare"],
        "queue": first["initial_queue_seconds"],
        "bind": first["initial_binding_seconds"],
        "prefill": sum(first["prefill"][f"{name}_seconds"] for name in ("submit", "wait", "post")),
    }
    seconds["stalled"] = first["elapsed_seconds"] - sum(
        seconds[name] for name in ("queue", "bind", "prefill")
    )
    seconds["http"] = result.ttft - first["elapsed_seconds"] - seconds["prepare"]
    return {name: 1e3 * seconds[name] for name in PARTS}


def breakdown(results: Iterable[Result], records: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Means of the parts in milliseconds, and what a turn computes before it answers."""
    found: Sequence[tuple[Result, dict[str, float]]] = [
        (one, parts) for one in results if (parts := parts_of(one, records.get(one.request_id))) is not None
    ]
    if not found:
        return {}
    figures = {f"{name}_ms": statistics.fmean(parts[name] for _, parts in found) for name in PARTS}
    tails = [one.prompt_tokens - one.cached for one, _ in found]
    figures["computed_tokens"] = statistics.fmean(tails)
    figures["prefill_ms_per_token"] = sum(parts["prefill"] for _, parts in found) / sum(tails)
    return figures
