"""Times of a random model on a device: rounds, verify blocks and prefill, beside the bytes they must read.

    python -m tools.gpu_check.cells 27B:bf16 35B-A3B:bf16 27B:q4 [--contexts 0,8192,65536] [--json out.json]

A round is timed as the worker runs it: control filled, two graphs, one wait. Fractions are of
the rate at which this device copies (bytes read and written), measured in the same run. A lane stands at its
context over pages of random keys; nothing is prefilled for that.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from ninfer.fast.memory.lanes import pages_for
from ninfer.fast.program.gpu.memory import page_bytes
from ninfer.fast.program.gpu.parameters import TextModel
from ninfer.fast.program.gpu.program import GpuOptions, GpuProgram
from ninfer.model.config import TextConfig
from ninfer.sampling.parameters import SamplingParameters
from tools.gpu_check.random_model import random_model

GREEDY = SamplingParameters(0.0, 1.0, 0, 0.0, 0.0, 0.0, 1)


def copy_rate() -> float:
    """Bytes read and written a second by a large copy."""
    source = torch.empty(4 << 30, dtype=torch.uint8, device="cuda").random_(0, 255)
    target = torch.empty_like(source)
    times = []
    for _ in range(12):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return 2 * source.numel() / statistics.median(times)


def gemm_rate() -> float:
    """FLOP/s of a large bf16 product."""
    a = torch.randn((8192, 8192), device="cuda").bfloat16()
    times = []
    for _ in range(8):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        a @ a
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return 2 * 8192**3 / statistics.median(times)


def weight_bytes(config: TextConfig, model: TextModel, tokens: int) -> float:
    """Bytes of weights that a round of ``tokens`` rows must read: experts are expected to be drawn evenly."""
    total = float(model.bytes - (0 if config.tied else model.embedding.bytes))
    if config.moe is not None:
        missed = (1 - config.moe.experts_per_token / config.moe.experts) ** tokens
        for layer in model.layers:
            assert layer.mixture is not None
            total -= missed * (layer.mixture.inputs.matrix.bytes + layer.mixture.outputs.matrix.bytes)
    return total


class Bench:
    """One model on the device with up to eight lanes at any context."""

    def __init__(self, size: str, weights: str, kv_format: str, longest: int, lanes: int, chunk: int) -> None:
        self.device = torch.device("cuda", 0)
        self.config, self.model = random_model(size, weights, self.device)
        per_lane = pages_for(longest + 512)
        options = GpuOptions(
            lanes=lanes, max_context=longest + 512, pages=lanes * per_lane, kv_format=kv_format,
            prefill_chunk=chunk, vocabulary=self.config.vocab, columns=32, records=True,
        )  # fmt: skip
        self.kv_format = kv_format
        self.program = GpuProgram(self.model, self.config, options, self.device)
        pages = self.program.pages
        for pool in pages.layers.values() if pages is not None else ():
            for words, kind in ((pool.keys, torch.bfloat16), (pool.values, torch.float16)):
                if words.dtype == torch.int16:
                    words.view(kind).normal_()
                else:
                    words.random_(-64, 64)
            for scales in (pool.key_scales, pool.value_scales):
                if scales.numel():
                    scales.fill_(0.01) if scales.dtype == torch.float16 else scales.fill_(0x20)
        self.program.states.images.normal_(0, 0.1)
        self.lanes = [self.program.open_lane(longest + 512) for _ in range(lanes)]
        began = time.monotonic()
        self.program.warm_up()
        self.warm_up_s = time.monotonic() - began

    def floor_bytes(self, rows: int, lanes: int, context: int) -> float:
        """What a round must read: weights, keys and values, states."""
        kv = context / 64 * page_bytes(self.config, self.kv_format)
        return weight_bytes(self.config, self.model, rows) + lanes * (kv + self.program.states.image_bytes)

    def decode(self, lanes: int, context: int, rounds: int = 24) -> tuple[float, float]:
        """Median seconds of a round, and of the host's part of it."""
        sampler = SimpleNamespace(parameters=GREEDY, counts=np.zeros(1, np.int32))
        rows = [SimpleNamespace(lane=lane, token=7, sampler=sampler) for lane in self.lanes[:lanes]]
        for lane in self.lanes:
            lane.frontier, lane.shift = context, 0
        times, gaps, ended = [], [], 0.0
        for index in range(rounds + 4):
            began = time.monotonic()
            self.program.round(rows)
            launched, now = self.program.last_unit
            if index >= 4:
                times.append(now - (ended or began))
                gaps.append(launched - (ended or began))
            ended = now
        return statistics.median(times), statistics.median(gaps)

    def profile(self, what: str, launch: Callable[[], object], rounds: int) -> None:
        """Print where the device time of a launch of ``rounds`` rounds goes, by kernel."""
        launch()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            launch()
        events = sorted(profile.key_averages(), key=lambda event: -event.self_device_time_total)
        for event in events[:11]:
            each, total = event.self_device_time_total / event.count, event.self_device_time_total / rounds
            name, count = event.key[:30], event.count / rounds
            print(f"  {what:10} {name:30} {count:6.1f} x {each:8.2f} us = {total:9.1f} us", flush=True)

    def profiles(self, columns: Sequence[int]) -> None:
        """Kernels of a single step and of verify blocks, at 8K."""
        # A decode has four rounds in front of those it counts; a verification two, and one launch by itself.
        self.profile("step", lambda: self.decode(1, 8192, 4), 8)
        for count in columns:
            self.profile(f"verify {count}", lambda count=count: self.verify(count, 8192, 4), 7)  # type: ignore[misc]

    def verify(self, columns: int, context: int, rounds: int = 12) -> float:
        """Median seconds of Forward, Finish and fold of one block."""
        return self.program.time_verify(self.lanes[0], columns, context, rounds)

    def prefill(self, tokens: int, repetitions: int = 3) -> float:
        """Fastest seconds of a prompt in the program's chunks."""
        lane, times = self.lanes[0], []
        ids = np.random.default_rng(0).integers(0, 200000, tokens).astype(np.int32) % self.config.vocab
        chunk = self.program.options.prefill_chunk
        for _ in range(repetitions):
            lane.frontier, lane.shift = 0, 0
            began = time.monotonic()
            for begin in range(0, tokens, chunk):
                end = min(tokens, begin + chunk)
                axes = np.tile(np.arange(begin, end, dtype=np.int32), (3, 1))
                self.program.prefill(lane, ids[begin:end], axes)
            times.append(time.monotonic() - began)
        return min(times)


def run_cell(name: str, contexts: Sequence[int], copy: float, arguments: Any) -> list[dict[str, Any]]:
    """Every phase of one model and weight format."""
    size, weights, *rest = name.split(":")
    kv_format = rest[0] if rest else "bf16"
    began = time.monotonic()
    bench = Bench(size, weights, kv_format, max([*contexts, 8192]), arguments.lanes, arguments.chunk)
    rows: list[dict[str, Any]] = []

    def note(phase: str, seconds: float, count: float, floor: float | None, **more: float) -> None:
        row: dict[str, Any] = {
            "cell": name,
            "phase": phase,
            "ms": seconds * 1e3,
            "tok_s": count / seconds,
            **more,
        }
        if floor is not None:
            row |= {"floor_ms": floor / copy * 1e3, "fraction": floor / copy / seconds}
        rows.append(row)
        extra = " ".join(f"{key}={value:.3f}" for key, value in row.items() if isinstance(value, float))
        print(f"{name:18} {phase:20} {extra}", flush=True)

    print(f"{name} loaded in {time.monotonic() - began:.1f} s, warm-up {bench.warm_up_s:.1f} s "
          f"weights_gb={bench.model.bytes / 1e9:.2f}", flush=True)  # fmt: skip
    phases: list[tuple[str, Callable[[], None]]] = []
    for context in contexts:
        for lanes in arguments.batches:

            def decode(context: int = context, lanes: int = lanes) -> None:
                seconds, gap = bench.decode(lanes, context)
                note(
                    f"decode b{lanes} @{context}",
                    seconds,
                    lanes,
                    bench.floor_bytes(lanes, lanes, context),
                    gap_ms=gap * 1e3,
                )

            phases.append((f"decode b{lanes} @{context}", decode))
    for columns in arguments.verify:

        def verify(columns: int = columns) -> None:
            seconds = bench.verify(columns, 8192)
            note(f"verify {columns} @8192", seconds, columns, bench.floor_bytes(columns, 1, 8192))

        phases.append((f"verify {columns}", verify))
    if arguments.prefill:

        def prefill() -> None:
            note(f"prefill {arguments.prefill}", bench.prefill(arguments.prefill), arguments.prefill, None)

        phases.append(("prefill", prefill))
    if arguments.profile:
        phases.append(("profile", lambda: bench.profiles([c for c in arguments.verify if c in (8, 32)])))
    for phase, action in phases:
        try:
            action()
        except Exception as error:
            print(f"{name} {phase} FAILED {type(error).__name__}: {error}", flush=True)
            torch.cuda.synchronize()
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Measure cells and print them; everything to ``--json``."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cells", nargs="+")
    parser.add_argument("--contexts", default="0,8192")
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--verify", default="4,8,16,32")
    parser.add_argument("--prefill", type=int, default=8192)
    parser.add_argument("--chunk", type=int, default=8192)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    contexts = [int(part) for part in arguments.contexts.split(",")]
    arguments.batches = [int(part) for part in arguments.batches.split(",") if part]
    arguments.verify = [int(part) for part in arguments.verify.split(",") if part]
    copy, gemm = copy_rate(), gemm_rate()
    torch.cuda.empty_cache()
    print(
        f"{torch.cuda.get_device_name()} copy_tb_s={copy / 1e12:.3f} bf16_gemm_tflop_s={gemm / 1e12:.0f}",
        flush=True,
    )
    rows = []
    for name in arguments.cells:
        try:
            rows += run_cell(name, contexts, copy, arguments)
        except Exception as error:
            print(f"{name} FAILED {type(error).__name__}: {error}", flush=True)
        gc.collect()
        torch.cuda.empty_cache()
    if arguments.json:
        document = {
            "device": torch.cuda.get_device_name(),
            "copy_b_s": copy,
            "gemm_flop_s": gemm,
            "cells": rows,
        }
        arguments.json.write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
