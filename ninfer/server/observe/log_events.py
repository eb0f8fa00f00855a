"""What the request log's lines say of one request: records in, JSON members out.

Owns names and nesting only; pure functions. Numbers are unrounded.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import msgspec

from ninfer.engine.events import DraftUsage
from ninfer.engine.request_work import FirstOutput, RequestWork, SchedulingTransition, UnitSeconds
from ninfer.engine.statistics import HostSeconds, Transfer, Transfers
from ninfer.output.tools import ToolParse
from ninfer.server.observe.records import (
    Done,
    Errored,
    Preparation,
    PreparedRequest,
    Rejected,
    RequestShape,
)

Members = dict[str, Any]


def request_start(request: PreparedRequest) -> Members:
    return {"request": _request(request), "preparation_seconds": _preparation(request.preparation)}


def request_rejected(rejected: Rejected) -> Members:
    shape = rejected.shape
    return {
        "phase": "prepare",
        "request": {
            "request_id": rejected.number,
            "http_request_id": rejected.http_id,
            "protocol": shape.protocol,
            "model": shape.model,
            **_shape(shape),
        },
        "error": asdict(rejected.error),
    }


def request_done(done: Done) -> Members:
    usage, work, request = done.usage, done.work, done.request
    return {
        "request": _request(request),
        "result": {
            "finish_reason": done.stop,
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "generated_token_ids": list(done.token_ids),
            "computed_prefill_tokens": work.computed_prefill_tokens,
            "prefix_cache_hit_tokens": usage.cached_tokens,
            "prefix_reuse_path": done.reuse_path,
            "thinking_budget": request.thinking_budget,
            "model_thinking_tokens": done.budget.model_thinking_tokens,
            "thinking_control_tokens": done.budget.control_tokens,
            "thinking_control_applied": done.budget.applied,
            "tool_call_count": done.tool_parse.structured_call_count,
            "tool_call_parse": _tool_call_parse(done.tool_parse),
        },
        "timings_seconds": {
            "prepare": request.preparation.total_s,
            "ttft": done.ttft_s,
            "vision": 0.0,
            "prefill": usage.prefill_s,
            "decode": usage.decode_s,
            "total": done.total_s,
        },
        "engine_timing": _engine_timing(work),
        "first_output_timing": None if work.first_output is None else _first_output(work.first_output),
        "speculative": _speculative(usage.draft),
        "generation": {
            "engine_request_id": work.engine_request_id,
            "scheduling": _scheduling(work),
            "admission": {
                "preferred_reused_tokens": work.preferred_reused_tokens,
                "source_wait_seconds": work.source_wait_s,
                "revoked_checkpoints": work.revoked_checkpoints,
                "fallback_reason": work.admission_fallback,
            },
        },
        "constraint": None,
    }


def request_error(errored: Errored) -> Members:
    return {
        "request": _request(errored.request),
        "error": {"code": errored.code or "cancelled", "message": errored.message},
        "timings_seconds": {"total": errored.total_s},
    }


def request_scheduling(request: PreparedRequest, transition: SchedulingTransition) -> Members:
    engine, own = transition.engine, transition.request
    return {
        "request": {"request_id": request.number, "http_request_id": request.http_id},
        "engine_request_id": transition.engine_request_id,
        "transition": transition.transition,
        "route": transition.route,
        "steady_ns": transition.steady_ns,
        "elapsed_ns": transition.elapsed_ns,
        "preemption_index": transition.preemption_index,
        "progress": {
            "global_prefill_tokens": engine.prefill_tokens,
            "global_decode_tokens": engine.decode_tokens,
            "global_replayed_tokens": engine.replayed_tokens,
            "request_prefill_tokens": own.prefill_tokens,
            "request_decode_tokens": own.decode_tokens,
            "request_replayed_tokens": own.replayed_tokens,
        },
    }


def host_seconds(host: HostSeconds) -> Members:
    """The five phases and their sum, which is that of the printed values."""
    return {**msgspec.structs.asdict(host), "total": host.total}


def transfers(moved: Transfers) -> Members:
    """Bytes and copy seconds by kind of context and direction."""
    return {name: _transfer(getattr(moved, name)) for name in ("state", "main_kv", "backend_kv")}


def _transfer(moved: Transfer) -> Members:
    return {
        direction: {
            "bytes": getattr(moved, f"{direction}_bytes"),
            "seconds": getattr(moved, f"{direction}_s"),
        }
        for direction in ("device_to_host", "host_to_device", "device_to_device")
    }


def _request(request: PreparedRequest) -> Members:
    shape = request.shape
    return {
        "request_id": request.number,
        "http_request_id": request.http_id,
        "response_id": request.answer_id,
        "protocol": shape.protocol,
        "model": shape.model,
        **_shape(shape),
        "requested_output_tokens": request.max_tokens,
        "requested_output_tokens_source": "server_default" if shape.max_tokens is None else "client",
        "prompt_tokens": request.prompt_tokens,
        "enable_thinking": request.thinking,
        "thinking_budget": request.thinking_budget,
        "preserve_thinking_semantic_change": shape.semantic_change,
        "sampling": msgspec.structs.asdict(request.sampling),
    }


def _shape(shape: RequestShape) -> Members:
    return {
        "stream": shape.stream,
        "message_count": shape.messages,
        "media_item_count": shape.media_items,
        "tool_count": shape.tools,
        "tool_choice": shape.tool_choice,
        "has_tool_history": shape.tool_history,
        "requested_reasoning_effort": shape.reasoning_effort,
        "preserve_thinking": shape.preserve_thinking,
    }


def _preparation(preparation: Preparation) -> Members:
    return {
        "total": preparation.total_s,
        "acquisition": preparation.acquisition_s,
        "media_preprocess": preparation.media_preprocess_s,
        "media_preprocess_work": preparation.media_preprocess_work_s,
        "tokenize": preparation.tokenize_s,
        "media_bytes": preparation.media_bytes,
        "raw_patches": preparation.raw_patches,
        "vision_tokens": preparation.vision_tokens,
        "patch_bytes": preparation.patch_bytes,
        "cache_hits": preparation.cache_hits,
        "cache_misses": preparation.cache_misses,
        "singleflight_waits": preparation.singleflight_waits,
        "built_patch_bytes": preparation.built_patch_bytes,
        "reused_patch_bytes": preparation.reused_patch_bytes,
    }


def _engine_timing(work: RequestWork) -> Members:
    return {
        "queue_wait_seconds": work.queue_s,
        "host_exposed_seconds": host_seconds(work.host),
        "device_wait_exposed_seconds": work.device_wait_s,
        "constraint_draft_wait_exposed_seconds": work.draft_wait_s,
        "decode": {
            "host_exposed_seconds": work.decode_host_s,
            "device_wait_exposed_seconds": work.decode_device_wait_s,
            "rounds": work.decode_rounds,
        },
        "units": {"prefill": work.prefill_units, "control": work.control_units},
    }


def _first_output(first: FirstOutput) -> Members:
    return {
        "elapsed_seconds": first.elapsed_s,
        "initial_queue_seconds": first.queue_s,
        "initial_binding_seconds": first.binding_s,
        "paused_seconds": first.paused_s,
        "engine": {
            "host_exposed_seconds": host_seconds(first.host),
            "device_wait_exposed_seconds": first.device_wait_s,
        },
        "prefill": _unit(first.prefill),
        "replay": _unit(first.replay),
        "computed_prefill_tokens": first.computed_prefill_tokens,
        "context_transfers": transfers(first.transfers),
    }


def _unit(unit: UnitSeconds) -> Members:
    return {
        "submit_seconds": unit.submit_s,
        "wait_seconds": unit.wait_s,
        "post_seconds": unit.post_s,
        "gpu_seconds": unit.gpu_s,
    }


def _scheduling(work: RequestWork) -> Members:
    return {
        "preemptions": work.preemptions,
        "snapshot_restores": work.snapshot_restores,
        "replay_restores": work.replay_restores,
        "replayed_tokens": work.replayed_tokens,
        "paused_ns": work.paused_ns,
        "device_to_host_bytes": work.device_to_host_bytes,
        "host_to_device_bytes": work.host_to_device_bytes,
    }


def _tool_call_parse(parse: ToolParse) -> Members:
    members = asdict(parse)
    members["schema_mismatch_arguments"] = members.pop("schema_mismatches")
    return members


def _speculative(draft: DraftUsage | None) -> Members:
    found = draft or DraftUsage("none", 0)
    return {
        "backend": found.backend,
        "draft_window": found.draft_window,
        "rounds": found.rounds,
        "drafted_tokens": found.drafted_tokens,
        "accepted_tokens": found.accepted_tokens,
        "fallback_steps": found.fallback_steps,
        "accepted_per_position": list(found.accepted_per_position),
        "ngram_rounds": found.ngram_rounds,
        "ngram_drafted_tokens": found.ngram_drafted_tokens,
        "ngram_accepted_tokens": found.ngram_accepted_tokens,
        "ngram_archive_rounds": 0,
        "ngram_archive_drafted_tokens": 0,
        "ngram_archive_accepted_tokens": 0,
        "tree_rounds": 0,
        "tree_side_rounds": 0,
        "tree_side_accepted_tokens": 0,
        "ngram_archive": {
            "enabled": False,
            "bound": False,
            "published": False,
            "generation": 0,
            "sources": 0,
            "session_bytes": 0,
            "total_bytes": 0,
            "sampling_seed": None,
        },
    }
