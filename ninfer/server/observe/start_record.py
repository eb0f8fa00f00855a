"""The ``server_start`` record: what this process serves, with what, and how it was asked to.

Owns the members only. The values of secret options never appear, neither in ``argv`` nor in ``options``.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import ninfer
from ninfer.engine.statistics import EngineResources
from ninfer.model.presets import preset
from ninfer.sampling.parameters import SamplingOverrides
from ninfer.server.served_model import ServedModel
from ninfer.spec.options import option_table

Members = dict[str, Any]
REDACTED = "<redacted>"
_PROGRAM = "ninfer-serve"


def server_start(
    options: Mapping[str, Any],
    argv: Sequence[str],
    model: ServedModel,
    resources: EngineResources,
) -> Members:
    """The record's members; ``argv`` without the program's name."""
    return {
        "build": {"version": ninfer.__version__},
        "server": _server(options, model),
        "artifact": {
            "path": str(model.path.resolve()),
            "size_bytes": model.path.stat().st_size,
            "architecture": model.config.architecture,
            "name": model.public_id,
            "formats": list(model.weights.by_format),
            "parameters": model.weights.parameters,
            "payload_bytes": model.weights.payload_bytes,
            "prefill_signature": model.prefill_signature,
        },
        "engine": _engine(options, model, resources),
        "sampling_defaults": {
            "thinking": asdict(preset(model.config, True)),
            "non_thinking": asdict(preset(model.config, False)),
            "server_overrides": {name: options[name] for name in SamplingOverrides.__dataclass_fields__},
            "seed": options["seed"],
            "omitted_seed": "random" if options["seed"] is None else "fixed",
            "greedy": options["greedy"],
        },
        "memory": _memory(resources),
        "environment": {
            "device": resources.device if resources.device_index is None else resources.device_index,
            "gpu_name": resources.device_name or None,
            "gpu_capability": resources.device_capability or None,
            "gpu_memory_bytes": resources.device_bytes or None,
            "cuda_runtime": resources.cuda_runtime or None,
            "cuda_driver": resources.cuda_driver or None,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "processors": os.cpu_count(),
        },
        "options": _visible(options),
        "argv": redacted(argv),
    }


def redacted(argv: Sequence[str]) -> list[str]:
    """``argv`` with the value of every secret option replaced, in either spelling."""
    return list(_redacted(argv))


def _redacted(argv: Sequence[str]) -> Iterator[str]:
    secrets = _secret_names()
    hide_next = False
    for word in argv:
        name, equals, _ = word.partition("=")
        if hide_next:
            yield REDACTED
        elif equals and name in secrets:
            yield f"{name}={REDACTED}"
        else:
            yield word
        hide_next = not hide_next and word in secrets


def _secret_names() -> set[str]:
    return {
        name
        for option in option_table(_PROGRAM).options
        if option.secret
        for name in (option.name, *option.aliases)
    }


def _visible(options: Mapping[str, Any]) -> Members:
    """Every option's effective value by key; a secret one only says whether it was given."""
    return {
        option.key: (options[option.key] is not None) if option.secret else options[option.key]
        for option in option_table(_PROGRAM).options
        if option.topic != "general"
    }


def _server(options: Mapping[str, Any], model: ServedModel) -> Members:
    return {
        "host": options["host"],
        "port": options["port"],
        "public_model_id": model.public_id,
        "demonstration": model.warning is not None,
        "api_key_configured": options["api_key"] is not None,
        "cors_enabled": options["cors"],
        "max_request_bytes": options["max_request_mib"] * 2**20,
        "request_log_jsonl": options["request_log_jsonl"],
        "default_output_tokens": options["default_max_tokens"],
        "default_thinking": not options["no_thinking"],
        "default_thinking_budget": options["default_thinking_budget"],
        "default_preserve_thinking": options["preserve_thinking"],
        "default_reasoning_effort": options["reasoning_effort"],
    }


def _engine(options: Mapping[str, Any], model: ServedModel, resources: EngineResources) -> Members:
    prefill_8bit = "on" if options["prefill_8bit_pv"] else "off" if options["no_prefill_8bit_pv"] else "auto"
    return {
        "engine": options["engine"],
        "device": resources.device,
        "kernels": resources.kernels,
        "threads": resources.threads,
        "activations": resources.activations,
        "max_context": model.max_context,
        "max_concurrency": options["max_concurrency"],
        "max_pending_requests": options["max_pending_requests"],
        "pending_timeout_ms": options["pending_timeout_ms"],
        "prefill_chunk": resources.prefill_chunk or options["prefill_chunk"],
        "kv_cache": resources.kv_format,
        "kv_capacity_mode": "auto" if options["kv_capacity"] in (None, "auto") else "explicit",
        "kv_capacity": resources.kv_capacity_tokens,
        "kv_page_tokens": resources.kv_page_tokens,
        "kv_pages": resources.kv_pages,
        "log_stats_interval_ms": options["log_stats_interval_ms"],
        "vision": options["vision"],
        "cuda_graph": not options["no_cuda_graph"] and resources.device != "cpu",
        "prefix_reuse": resources.prefix_cache is not None,
        "speculative_backend": options["spec"] or "none",
        "speculative_draft_window": options["draft_tokens"] or 0,
        "proposal_head": options["lm_head_draft"],
        "prompt_attention_kernel": resources.kernels,
        "original_int8_prefill_kernel": options["use_original_int8_prefill_kernel"],
        "original_nvfp4_prefill_kernel": options["use_original_nvfp4_prefill_kernel"],
        "prefill_8bit_pv": prefill_8bit,
        "prefill_split_workspace_mib": options["prefill_split_workspace_mib"],
        "draft_tree_nodes": [0] * 8,
        "draft_tree_auto": False,
        "draft_tree_paths": options["draft_tree_paths"],
        "ngram_draft_window": options["ngram_draft_tokens"] if options["spec"] else 0,
        "ngram_min_match": options["ngram_min_match"],
        "ngram_archive_bytes": options["ngram_archive_mib"] * 2**20,
        "ngram_session_bytes": options["ngram_session_mib"] * 2**20,
        "ngram_native_sessions": options["ngram_native_sessions"],
        "context_cost": {"transfer_source": "generic", "prefill_source": "generic", "preset_path": None},
        "context_cache": {
            "kind": resources.prefix_cache,
            "enabled": resources.prefix_cache is not None,
            "device_snapshot_slots": resources.snapshot_slots,
            "device_state_slots": resources.state_slots,
            "host_capacity_bytes": resources.host_capacity_bytes,
        },
    }


def _memory(resources: EngineResources) -> Members:
    sequence = resources.kv_pages * resources.kv_page_bytes + (
        resources.state_slots * resources.state_image_bytes
    )
    return {
        "weights": {"capacity_bytes": resources.weight_bytes},
        "sequence": {"capacity_bytes": sequence},
        "workspace": {"capacity_bytes": resources.workspace_bytes},
        "vision_workspace": None,
        "kv_payload_bytes": resources.kv_pages * resources.kv_page_bytes,
        "kv_page_bytes": resources.kv_page_bytes,
        "kv_sizing": _sizing(resources),
        "state_image_bytes": resources.state_image_bytes,
        "available_after_startup_bytes": resources.available_bytes,
        "cuda_graph_allowance_bytes": resources.graph_allowance_bytes,
        "cuda_graph_measured_bytes": resources.graph_measured_bytes,
        "host_context_capacity_bytes": resources.host_capacity_bytes,
        "host_context_occupied_bytes": 0,
    }


def _sizing(resources: EngineResources) -> Members | None:
    """Automatic sizing on a device: what it found free, and the parts that this became."""
    free = resources.sizing_free_bytes
    if free is None:
        return None
    payload = resources.kv_pages * resources.kv_page_bytes
    return {
        "free_bytes": free,
        "headroom_bytes": resources.sizing_headroom_bytes,
        "cuda_graph_allowance_bytes": resources.graph_allowance_bytes,
        "kv_payload_bytes": payload,
        "unused_bytes": free - resources.sizing_headroom_bytes - resources.graph_allowance_bytes - payload,
    }
