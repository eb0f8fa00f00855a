"""Opens the fast engine: artifact, memory, kernels, worker.

Owns what happens once, before the first request: sizes are resolved, memory is taken, kernels are compiled
(some ten seconds on a machine's first start, nothing later) and run once.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import llvmlite.binding as llvm
import numpy as np
import torch

from ninfer.artifact import Artifact
from ninfer.engine.events import EngineEvent, LogRecord
from ninfer.engine.settings import CacheSettings, DraftSettings, EngineSettings
from ninfer.engine.statistics import EngineResources
from ninfer.errors import ArtifactError, OptionError
from ninfer.fast.draft.ngram.index import warm_up
from ninfer.fast.draft.speculation import Speculation, verified_columns
from ninfer.fast.engine import FastWorker
from ninfer.fast.memory.lanes import pages_for
from ninfer.fast.memory.ledger import available_bytes, ledger, page_bytes, resolve_pages
from ninfer.fast.memory.pages import FORMATS
from ninfer.fast.ops.cache import cache_directory
from ninfer.fast.ops.control import PAGE_TOKENS
from ninfer.fast.prefix.limits import CacheLimits, describe, resolve_limits
from ninfer.fast.program.gpu import device as gpu
from ninfer.fast.program.program import Program, ProgramOptions
from ninfer.model.config import TextConfig, check_mtp_config, parse_text_config
from ninfer.prompt import Tokenizer

Publish = Callable[[EngineEvent], None]
_REPORT_S = 5.0


def open_worker(
    settings: EngineSettings, listener: Callable[[int, int], None], publish: Publish
) -> FastWorker:
    """Load ``settings.artifact`` and stand ready to answer.

    ``listener`` hears weight bytes loaded and in all. Errors: ``ArtifactError`` naming what is wrong,
    ``OptionError`` for a KV capacity that cannot hold one request.
    """
    with Artifact.open(Path(settings.artifact)) as artifact:
        component = artifact.directory.components.get("text")
        if component is None:
            raise ArtifactError("components.text", "missing: there is no text model to serve")
        config = parse_text_config(component.config)
        tokenizer = Tokenizer.from_resources(
            artifact.resource("text", "tokenizer.json"), artifact.resource("text", "tokenizer_config.json")
        )
        check_drafter(settings.draft, artifact, config)
        vocabulary = min(tokenizer.vocabulary_size, config.vocab)
        gpu.sync_mode()
        if gpu.available():
            return _open_gpu(artifact, config, tokenizer, settings, vocabulary, listener, publish)
        if settings.device != 0:
            gpu.device_of(settings.device)
        options = resolve_options(settings, config, vocabulary)
        torch.set_num_threads(options.threads)
        total = artifact.weight_summary().payload_bytes
        loaded = 0

        def report(count: int) -> None:
            nonlocal loaded
            loaded += count
            listener(loaded, total)

        with _compiling(publish):
            program = Program(artifact, config, options, report)
            program.warm_up()
            speculation = open_speculation(settings.draft, program, tokenizer.special_ids)
    limits = cache_limits(settings, options.prefill_chunk)
    publish(LogRecord("info", ledger(program, total)))
    publish(LogRecord("info", describe(limits)))
    publish(LogRecord("debug", plan(program)))
    return FastWorker(
        program,
        tokenizer.token_bytes,
        publish,
        settings.queue_limit_s,
        resources=resources_of(program, total, limits),
        speculation=speculation,
        limits=limits,
        page_bytes=page_bytes(config, options.kv_format, options.mtp),
        report_scheduling=settings.report_scheduling,
    )


def plan(program: Program) -> str:
    """One line: the sizes that everything else follows from."""
    options = program.options
    return (
        f"plan threads={options.threads} prefill_chunk={options.prefill_chunk} pages={options.pages} "
        f"page_bytes={page_bytes(program.config, options.kv_format)} "
        f"state_image_bytes={program.states.image_bytes} vocabulary={options.vocabulary}"
    )


def _open_gpu(
    artifact: Artifact,
    config: TextConfig,
    tokenizer: Tokenizer,
    settings: EngineSettings,
    vocabulary: int,
    listener: Callable[[int, int], None],
    publish: Publish,
) -> FastWorker:
    """The same worker over a program on a CUDA device."""
    # Its modules need Triton, which a machine without a GPU need not have.
    from ninfer.fast.program.gpu import memory
    from ninfer.fast.program.gpu.open import open_program
    from ninfer.fast.program.gpu.open import resources_of as gpu_resources

    if settings.activations != "float32":
        raise OptionError("--cpu-activations", "this server computes on a GPU, in bf16; leave the option out")
    total, loaded = artifact.weight_summary().payload_bytes, 0

    def report(count: int) -> None:
        nonlocal loaded
        loaded += count
        listener(min(loaded, total), total)

    chunk = -(-min(settings.prefill_chunk, settings.max_context) // PAGE_TOKENS) * PAGE_TOKENS
    limits = cache_limits(settings, chunk)
    program = open_program(artifact, config, settings, vocabulary, limits, report, publish)
    served = cast(Program, program)  # the same members
    speculation = open_speculation(settings.draft, served, tokenizer.special_ids)
    publish(LogRecord("info", describe(limits)))
    return FastWorker(
        served,
        tokenizer.token_bytes,
        publish,
        settings.queue_limit_s,
        resources=gpu_resources(program, limits),
        speculation=speculation,
        limits=limits,
        page_bytes=memory.page_bytes(config, settings.kv_format, settings.draft is not None),
        report_scheduling=settings.report_scheduling,
    )


def check_drafter(draft: DraftSettings | None, artifact: Artifact, config: TextConfig) -> None:
    """Errors: ``ArtifactError`` where the artifact lacks the drafter, ``OptionError`` for another backend."""
    if draft is None:
        return
    if draft.backend != "mtp":
        raise OptionError("--spec", f"{draft.backend} does not work yet; only mtp does")
    component = artifact.directory.components.get("mtp")
    if component is None:
        raise ArtifactError(
            "components.mtp", "missing: the artifact holds no MTP head, which --spec mtp drafts with"
        )
    check_mtp_config(component.config, config)


def open_speculation(
    draft: DraftSettings | None, program: Program, special_ids: Iterable[int]
) -> Speculation | None:
    """Drafts for the program's rounds, its kernels compiled."""
    if draft is None:
        return None
    assert program.mtp is not None
    special = np.zeros(program.config.vocab, np.bool_)
    special[[index for index in special_ids if index < len(special)]] = True
    if draft.copy_tokens or draft.lookup:
        warm_up(special)
    return Speculation(program, draft, program.mtp, special)


def resources_of(program: Program, weight_bytes: int, limits: CacheLimits) -> EngineResources:
    """What ``program`` holds, for the request log."""
    options = program.options
    return EngineResources(
        kernels="numba",
        threads=options.threads,
        activations=options.activations,
        kv_format=options.kv_format,
        kv_capacity_tokens=options.pages * PAGE_TOKENS,
        kv_page_tokens=PAGE_TOKENS,
        kv_page_bytes=page_bytes(program.config, options.kv_format, options.mtp),
        kv_pages=options.pages,
        prefill_chunk=options.prefill_chunk,
        state_slots=program.states.slots,
        state_image_bytes=program.states.image_bytes,
        weight_bytes=weight_bytes,
        workspace_bytes=program.workspace_bytes,
        available_bytes=available_bytes(),
        snapshot_slots=limits.snapshot_slots,
        prefix_cache="hybrid" if limits.reuse else None,
    )


def resolve_options(settings: EngineSettings, config: TextConfig, vocabulary: int) -> ProgramOptions:
    """Sizes from settings, model and machine. Errors: ``OptionError`` naming ``--kv-capacity``."""
    draft = settings.draft
    if settings.kv_format not in FORMATS:
        works = ", ".join(name for name in FORMATS if name != "float32")
        raise OptionError("--kv-dtype", f"{settings.kv_format} needs a GPU; on CPU there are {works}")
    per_page = page_bytes(config, settings.kv_format, mtp=draft is not None)
    pages = resolve_pages(
        settings.kv_capacity, settings.max_context, settings.lanes, per_page, available_bytes()
    )
    if pages < pages_for(settings.max_context):
        raise OptionError(
            "--kv-capacity",
            f"{pages * 64} tokens cannot hold one request of --max-context {settings.max_context}",
        )
    chunk = -(-settings.prefill_chunk // 64) * 64
    chunk = min(chunk, -(-settings.max_context // 64) * 64)
    return ProgramOptions(
        lanes=settings.lanes,
        max_context=settings.max_context,
        pages=pages,
        kv_format=settings.kv_format,
        prefill_chunk=chunk,
        snapshot_slots=cache_limits(settings, chunk).snapshot_slots,
        threads=settings.threads or len(os.sched_getaffinity(0)),
        vocabulary=vocabulary,
        activations=check_activations(settings.activations),
        mtp=draft is not None,
        proposal_head=draft is not None and draft.proposal_head,
        verified=0 if draft is None else verified_columns(draft, settings.lanes),
    )


def cache_limits(settings: EngineSettings, chunk: int) -> CacheLimits:
    """Sizes of the prefix cache for prefill chunks of ``chunk`` tokens."""
    return resolve_limits(settings.cache or CacheSettings(reuse=False), settings.lanes, chunk)


def check_activations(name: str) -> str:
    """``name``, if this processor multiplies in that type. Errors: ``OptionError``."""
    features = llvm.get_host_cpu_features()
    if name == "bf16" and not any(features.get(feature) for feature in ("avx512bf16", "amx-bf16", "bf16")):
        raise OptionError("--cpu-activations", "this processor has no bf16 products; leave the option out")
    return name


@contextmanager
def _compiling(publish: Publish) -> Iterator[None]:
    """A progress line every few seconds while kernels compile; silent when they come from the cache."""
    if any(cache_directory().rglob("*.nbc")):
        yield
        return
    done, began = threading.Event(), time.monotonic()

    def report() -> None:
        publish(LogRecord("info", "compiling kernels for this processor, once (about ten seconds)"))
        while not done.wait(_REPORT_S):
            publish(LogRecord("info", f"compiling kernels: {time.monotonic() - began:.0f} s"))

    reporter = threading.Thread(target=report, name="ninfer-compile-report", daemon=True)
    reporter.start()
    try:
        yield
    finally:
        done.set()
        reporter.join()
