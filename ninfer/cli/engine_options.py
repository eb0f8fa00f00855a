"""What the options of ``ninfer-serve`` and ``ninfer`` mean to the engine process.

Owns the translation only; ranges and relations of single options stand in ``spec/options.yaml``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ninfer.engine.settings import CacheSettings, DraftSettings, EngineSettings
from ninfer.errors import OptionError

# The reference engine keeps keys and values as computed and answers one request at a time.
_FAST_ONLY = {
    "max_concurrency": "answers one request at a time",
    "kv_capacity": "takes memory as a request grows",
    "kv_dtype": "keeps keys and values in float32",
    "prefill_chunk": "cuts prompts as it likes",
    "cpu_activations": "computes in float32",
    "device": "runs on the CPU",
    "vram_headroom_mib": "runs on the CPU",
    "no_cuda_graph": "runs on the CPU",
    "device_snapshot_slots": "keeps nothing of earlier prompts",
    "cache_taps_per_request": "keeps nothing of earlier prompts",
    "cache_tap_ladder": "keeps nothing of earlier prompts",
    "cache_tap_min_gap": "keeps nothing of earlier prompts",
    "adaptive_mtp": "drafts the same number of tokens every time",
    "lm_head_draft": "drafts with the full head",
    "lookup_ngram": "drafts with the model's own head alone",
    "ngram_draft_tokens": "drafts with the model's own head alone",
    "ngram_min_match": "drafts with the model's own head alone",
}


def engine_settings(options: Mapping[str, Any], artifact: Path) -> EngineSettings:
    """The settings that ``options`` ask for; members a program lacks keep their defaults.

    Errors: ``OptionError`` for an explicit option that the chosen engine cannot honour.
    """
    if options["engine"] == "reference":
        for key, reason in _FAST_ONLY.items():
            if key in getattr(options, "explicit", ()):
                name = "--" + key.replace("_", "-")
                raise OptionError(name, f"the reference engine {reason}; leave the option out")
    capacity = options.get("kv_capacity")
    timeout_ms = options.get("pending_timeout_ms")
    return EngineSettings(
        engine=options["engine"],
        artifact=str(artifact),
        max_context=options["max_context"],
        lanes=options.get("max_concurrency", 1),
        kv_capacity=None if capacity in (None, "auto") else capacity,
        kv_format=options.get("kv_dtype", "bf16"),
        prefill_chunk=options.get("prefill_chunk", 1024),
        activations=options.get("cpu_activations", "float32"),
        device=options.get("device", 0),
        vram_headroom_mib=options.get("vram_headroom_mib", 1024),
        cuda_graph=not options.get("no_cuda_graph", False),
        deterministic=options.get("deterministic", False),
        report_scheduling=options.get("request_log_jsonl") is not None,
        queue_limit_s=None if timeout_ms is None else timeout_ms / 1000,
        draft=draft_settings(options),
        cache=cache_settings(options),
    )


def cache_settings(options: Mapping[str, Any]) -> CacheSettings | None:
    """The prefix cache that ``options`` ask for; None for a program that answers one prompt and ends."""
    if "no_prefix_reuse" not in options:
        return None
    return CacheSettings(
        reuse=not options["no_prefix_reuse"],
        snapshot_slots=options["device_snapshot_slots"],
        taps_per_request=options["cache_taps_per_request"],
        tap_ladder=options["cache_tap_ladder"],
        tap_min_gap=options["cache_tap_min_gap"],
    )


def draft_settings(options: Mapping[str, Any]) -> DraftSettings | None:
    """The speculation that ``options`` ask for; None without a drafter."""
    backend = options.get("spec")
    if backend is None:
        return None
    return DraftSettings(
        backend=backend,
        tokens=options["draft_tokens"],
        proposal_head=options["lm_head_draft"],
        adaptive=options["adaptive_mtp"],
        lookup=options["lookup_ngram"],
        copy_tokens=options["ngram_draft_tokens"],
        copy_match=options["ngram_min_match"],
    )
