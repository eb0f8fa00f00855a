"""Opens a GPU program for the worker: device, weights, sizes, graphs.

Owns what happens once, before the first request. Errors name the option that is wrong.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ninfer.artifact import Artifact
from ninfer.engine.events import LogRecord
from ninfer.engine.settings import EngineSettings
from ninfer.engine.statistics import EngineResources
from ninfer.errors import OptionError
from ninfer.fast.memory.lanes import pages_for
from ninfer.fast.ops.attention.gpu import PAGE
from ninfer.fast.prefix.limits import CacheLimits
from ninfer.fast.program.gpu.device import device_of, environment, free_bytes, sync_mode
from ninfer.fast.program.gpu.memory import page_bytes
from ninfer.fast.program.gpu.mtp_weights import load_mtp_model
from ninfer.fast.program.gpu.parameters import load_text_model
from ninfer.fast.program.gpu.program import GpuOptions, GpuProgram
from ninfer.fast.program.gpu.shapes import widths_of
from ninfer.fast.program.gpu.weights import GpuLoader
from ninfer.model.config import TextConfig

Publish = Callable[[LogRecord], None]


def open_program(
    artifact: Artifact,
    config: TextConfig,
    settings: EngineSettings,
    vocabulary: int,
    limits: CacheLimits,
    listener: Callable[[int], None],
    publish: Publish,
) -> GpuProgram:
    """A program on ``settings.device``, its kernels compiled and its graphs captured.

    Errors: ``OptionError`` for ``--device``, ``--lm-head-draft`` and a KV capacity that cannot hold one
    request.
    """
    device = device_of(settings.device)
    torch.cuda.set_device(device)
    capacity = settings.kv_capacity
    loader, draft = GpuLoader(artifact, device, listener), settings.draft
    model = load_text_model(loader, config)
    head = None if draft is None else load_mtp_model(loader, config, model, draft.proposal_head)
    context_pages = pages_for(settings.max_context)
    options = GpuOptions(
        lanes=settings.lanes,
        max_context=settings.max_context,
        pages=None if capacity is None else pages_for(capacity),
        kv_format=settings.kv_format,
        prefill_chunk=min(pages_for(settings.prefill_chunk), context_pages) * PAGE,
        vocabulary=vocabulary,
        snapshot_slots=limits.snapshot_slots,
        headroom=settings.vram_headroom_mib << 20,
        graphs=settings.cuda_graph,
        widths=widths_of(draft),
        mtp=draft is not None,
        deterministic=settings.deterministic,
        sync=sync_mode(),
    )
    program = GpuProgram(model, config, options, device, head)
    check_capacity(program.options.pages or 0, settings.max_context)
    program.warm_up()
    report_memory(program, publish)
    return program


def report_memory(program: GpuProgram, publish: Publish) -> None:
    """The ledger's line, and a warning when the graphs took more than was set aside for them."""
    publish(LogRecord("info", ledger(program)))
    held = program.ledger
    if held.graphs > held.graph_allowance:
        publish(
            LogRecord(
                "warning",
                f"CUDA graphs took {held.graphs / 2**20:.1f} MiB, more than the "
                f"{held.graph_allowance / 2**20:.1f} MiB set aside",
            )
        )


def check_capacity(pages: int, max_context: int) -> None:
    """Errors: ``OptionError`` naming ``--kv-capacity`` when one request of ``max_context`` does not fit."""
    if pages < pages_for(max_context):
        raise OptionError(
            "--kv-capacity", f"{pages * PAGE} tokens cannot hold one request of --max-context {max_context}"
        )


def ledger(program: GpuProgram) -> str:
    """One line: what the engine holds on the device in MiB, by owner, and the graphs' part exactly."""
    held = program.ledger
    parts = {
        "weights": held.weights,
        "kv": held.kv,
        "states": held.states,
        "workspace": held.workspace,
    }
    text = " ".join(f"{name}={size / 2**20:.1f}" for name, size in parts.items())
    options = program.options
    return (
        f"device_memory_mib {text} total={held.total / 2**20:.1f} "
        f"cuda_graph_allowance_bytes={held.graph_allowance} cuda_graph_measured_bytes={held.graphs} "
        f"kv_capacity_tokens={(options.pages or 0) * PAGE} lanes={options.lanes} device={program.device}"
    )


def resources_of(program: GpuProgram, limits: CacheLimits) -> EngineResources:
    """What ``program`` holds, for the request log."""
    options, held = program.options, program.ledger
    pages = options.pages or 0
    known, sizing = environment(program.device), program.sizing
    return EngineResources(
        device=str(program.device),
        device_index=known.index,
        device_name=known.name,
        device_capability=known.capability,
        device_bytes=known.total_bytes,
        cuda_runtime=known.runtime,
        cuda_driver=known.driver,
        kernels="triton",
        activations="bf16",
        kv_format=options.kv_format,
        kv_capacity_tokens=pages * PAGE,
        kv_page_tokens=PAGE,
        kv_page_bytes=page_bytes(program.config, options.kv_format, options.mtp),
        kv_pages=pages,
        prefill_chunk=options.prefill_chunk,
        state_slots=program.states.slots,
        state_image_bytes=program.states.image_bytes,
        weight_bytes=held.weights,
        workspace_bytes=held.workspace,
        available_bytes=free_bytes(program.device) if program.device.type == "cuda" else 0,
        sizing_free_bytes=None if sizing is None else sizing.free,
        sizing_headroom_bytes=0 if sizing is None else sizing.headroom,
        snapshot_slots=limits.snapshot_slots,
        prefix_cache="hybrid" if limits.reuse else None,
        graph_allowance_bytes=held.graph_allowance,
        graph_measured_bytes=held.graphs,
    )
