"""From parsed options to what the handlers work with: the served model and the services.

Owns what each option of ``ninfer-serve`` means to the server; ``main.py`` owns the process around it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ninfer.engine.interface import EngineHost
from ninfer.prompt.conversation import TemplateOptions
from ninfer.server import log
from ninfer.server.access import Access
from ninfer.server.generation import Services
from ninfer.server.observe.console import Console
from ninfer.server.observe.operations import Operations
from ninfer.server.observe.panel import Panel
from ninfer.server.observe.reports import Reports
from ninfer.server.outstanding import Outstanding
from ninfer.server.resolution import generation_defaults
from ninfer.server.response_store import ResponseStore
from ninfer.server.served_model import ModelChoices, ServedModel, open_served_model
from ninfer.server.transport import TransportLimits, transport_limits

_log = logging.getLogger("ninfer.server")
_PREPARATION_THREADS = 4


def open_model(options: Mapping[str, Any], artifact: Path) -> ServedModel:
    """The model that ``options`` serve. Errors: ``ArtifactError``, ``OptionError``."""
    template = options["chat_template"]
    choices = ModelChoices(
        model_id=options["model_id"],
        chat_template=None if template is None else Path(template),
        max_context=options["max_context"],
        template_defaults=TemplateOptions(
            enable_thinking=False if options["no_thinking"] else None,
            preserve_thinking=True if options["preserve_thinking"] else None,
            reasoning_effort=options["reasoning_effort"],
        ),
        demonstration=options["artifact"] is None,
        copies=options["spec"] is not None and options["ngram_draft_tokens"] > 0,
        early_close_message=options["thinking_budget_message"],
    )
    model = open_served_model(artifact, choices)
    _log.info(
        "model=%s parameters=%d format=%s payload=%.1f MiB max_context=%d",
        model.public_id,
        model.weights.parameters,
        model.weights.dominant_format,
        model.weights.payload_bytes / 2**20,
        model.max_context,
    )
    if model.warning is not None:
        _log.warning(model.warning)
    return model


def build_services(
    options: Mapping[str, Any],
    model: ServedModel,
    host: EngineHost,
    limits: TransportLimits | None = None,
    console: Console | None = None,
) -> Services:
    """What the handlers share; ``limits`` are the spec's unless given (tests), ``console`` shows the panel.

    Errors: ``OptionError`` for a request log that cannot be kept.
    """
    capacity = options["max_concurrency"] + options["max_pending_requests"]
    _log.debug(
        "plan outstanding=%d counting=%d preparation_threads=%d body_mib=%d pending_timeout_ms=%d",
        capacity,
        capacity,
        _PREPARATION_THREADS,
        options["max_request_mib"],
        options["pending_timeout_ms"],
    )
    return Services(
        model=model,
        defaults=generation_defaults(
            options, options["default_max_tokens"], options["default_thinking_budget"]
        ),
        host=host,
        outstanding=Outstanding(capacity),
        counting=Outstanding(capacity),
        responses=ResponseStore(
            options["response_store_max_records"], options["response_store_max_mib"] * 2**20
        ),
        workers=ThreadPoolExecutor(_PREPARATION_THREADS, thread_name_prefix="ninfer-prepare"),
        limits=limits or transport_limits(),
        max_request_bytes=options["max_request_mib"] * 2**20,
        operations=Operations(options, model, host, build_reports(options, console)),
        tolerant_tool_calls=options["tolerant_tool_calls"],
        usage_chunk_choice=options["usage_chunk_choice"],
        access=Access(options["api_key"], options["cors"]),
    )


def build_reports(options: Mapping[str, Any], console: Console | None) -> Reports:
    """The console's records, and the panel where a terminal can show it."""
    shown = (
        console is not None
        and console.interactive
        and options["log_stats_panel"]
        and log.shows_statistics(options["log_level"])
    )
    if not shown:
        return Reports()
    ngram = options["spec"] is not None and options["ngram_draft_tokens"] > 0
    names = {"mtp": "MTP", "dflash": "DFlash", "dflash2": "DFlash2", None: None}
    panel = Panel(names[options["spec"]], ngram=ngram, load=options["log_stats_interval_ms"] > 0)
    return Reports(console, panel, colours=options["log_colours"])
