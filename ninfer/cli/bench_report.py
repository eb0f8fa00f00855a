"""The report of ``ninfer-bench`` in its three forms: a table to read, JSON with everything, CSV per test.

Owns layout and names of members; ``bench_figures`` says what each number means.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

import ninfer
from ninfer.cli.bench_figures import (
    DRAFT_COUNTERS,
    Repetition,
    Report,
    RequestTimes,
    Spread,
    TestResult,
    process_memory,
)

SCHEMA_VERSION = 1
_RATES = ("prefill", "decode", "output")


def render(report: Report, form: str) -> str:
    """The report as ``table``, ``json`` or ``csv``, ending in a line break."""
    return _FORMS[form](report)


def _table(report: Report) -> str:
    drafts = DRAFT_COUNTERS if report.settings.draft is not None else ()
    rows = [("test", "requests", *(f"{rate} tok/s" for rate in _RATES), "first token ms", *drafts)]
    rows += [
        (
            result.test.name,
            str(result.concurrency),
            *(_shown(spread) for spread in _spreads(result)),
            _shown(result.time_to_first_token, 1000),
            *(str((result.drafts or {}).get(name, 0)) for name in drafts),
        )
        for result in report.results
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(_aligned(row, widths)).rstrip() for row in rows]
    return "\n".join([_headline(report), "", *lines]) + "\n"


def _headline(report: Report) -> str:
    weights, settings = report.weights, report.settings
    return (
        f"{report.model}: {weights.parameters / 1e6:,.1f} M parameters, {weights.dominant_format}"
        f" {weights.payload_bytes / 2**20:,.1f} MiB, kv {settings.kv_format}, activations"
        f" {settings.activations}, {_threads(report)} threads, loaded in {report.load.seconds:.1f} s"
    )


def _aligned(row: tuple[str, ...], widths: list[int]) -> list[str]:
    """Names to the left, figures to the right."""
    name, *figures = (
        text.ljust(width) if column == 0 else text.rjust(width)
        for column, (text, width) in enumerate(zip(row, widths, strict=True))
    )
    return [name, *figures]


def _shown(spread: Spread | None, scale: float = 1.0) -> str:
    if spread is None:
        return "-"
    return f"{spread.mean * scale:,.2f} ± {spread.deviation * scale:,.2f}"


def _spreads(result: TestResult) -> tuple[Spread | None, ...]:
    return result.prefill, result.decode, result.output


def _threads(report: Report) -> int:
    return report.settings.threads or len(os.sched_getaffinity(0))


def _json(report: Report) -> str:
    weights, settings, load = report.weights, report.settings, report.load
    members = {
        "artifact_type": "ninfer_bench",
        "schema_version": SCHEMA_VERSION,
        "version": ninfer.__version__,
        "model": {
            "name": report.model,
            "path": settings.artifact,
            "parameters": weights.parameters,
            "payload_bytes": weights.payload_bytes,
            "formats": {name: row.payload_bytes for name, row in weights.by_format.items()},
        },
        "engine": {
            "name": settings.engine,
            "threads": _threads(report),
            "max_context": settings.max_context,
            "lanes": settings.lanes,
            "kv_capacity": settings.kv_capacity,
            "kv_dtype": settings.kv_format,
            "prefill_chunk": settings.prefill_chunk,
            "cpu_activations": settings.activations,
            "speculation": None if settings.draft is None else msgspec.structs.asdict(settings.draft),
        },
        "load": {"seconds": load.seconds, "weight_bytes": load.weight_bytes},
        "memory": {"engine_mib": load.ledger, **process_memory()},
        "tests": [_json_test(result) for result in report.results],
    }
    return json.dumps(members, indent=1, ensure_ascii=False) + "\n"


def _json_test(result: TestResult) -> dict[str, Any]:
    spreads = zip(_RATES, _spreads(result), strict=True)
    return {
        "test": result.test.name,
        "prompt_tokens": result.test.prompt_tokens,
        "output_tokens": result.test.output_tokens,
        "concurrency": result.concurrency,
        **{f"{rate}_tok_s": _json_spread(spread) for rate, spread in spreads},
        "time_to_first_token_s": _json_spread(result.time_to_first_token),
        "computed_prefill_tokens": result.prefilled[0],
        "reused_tokens": result.prefilled[1],
        "speculative": result.drafts,
        "repetitions": [_json_repetition(repetition) for repetition in result.repetitions],
    }


def _json_spread(spread: Spread | None) -> dict[str, float] | None:
    return None if spread is None else {"mean": spread.mean, "stddev": spread.deviation}


def _json_repetition(repetition: Repetition) -> dict[str, Any]:
    return {
        "prefill_s": repetition.prefill_s,
        "decode_s": repetition.decode_s,
        "total_s": repetition.total_s,
        "requests": [_json_request(request) for request in repetition.requests],
    }


def _json_request(request: RequestTimes) -> dict[str, float]:
    return {
        "queue_s": request.began,
        "prefill_s": request.first - request.began,
        "decode_s": request.last - request.first,
        "time_to_first_token_s": request.first,
        "total_s": request.last,
    }


def _csv(report: Report) -> str:
    rows = [_csv_row(report, result) for result in report.results]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _csv_row(report: Report, result: TestResult) -> dict[str, object]:
    row: dict[str, object] = {
        "model": report.model,
        "format": report.weights.dominant_format,
        "kv_dtype": report.settings.kv_format,
        "cpu_activations": report.settings.activations,
        "threads": _threads(report),
        "test": result.test.name,
        "prompt_tokens": result.test.prompt_tokens,
        "output_tokens": result.test.output_tokens,
        "concurrency": result.concurrency,
        "repetitions": len(result.repetitions),
    }
    named = (*(f"{rate}_tok_s" for rate in _RATES), "time_to_first_token_s")
    for name, spread in zip(named, (*_spreads(result), result.time_to_first_token), strict=True):
        row[f"{name}_mean"] = "" if spread is None else spread.mean
        row[f"{name}_stddev"] = "" if spread is None else spread.deviation
    row["computed_prefill_tokens"], row["reused_tokens"] = result.prefilled
    counters = result.drafts or {}
    return row | {name: counters.get(name, "") for name in DRAFT_COUNTERS}


_FORMS: Mapping[str, Callable[[Report], str]] = {"table": _table, "json": _json, "csv": _csv}
