"""Measures tiles of the linear kernels on a device and prints the best rows of ``spec/gpu.yaml``.

    python -m tools.gpu_check.tune [--formats bf16,q4] [--workers 12] [--json out.json]

Every candidate is compiled first, by several processes at once; then each shape of the 27B and the 35B-A3B
model is timed over copies of the matrix that together are larger than the cache. Prints GB/s of weights.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from ninfer.fast.ops.attention.encodings import encoding
from ninfer.fast.ops.attention.gpu import SPLITS, Pool, attend
from ninfer.fast.ops.linear import packing
from ninfer.fast.ops.linear.gpu import SWIGLU, Tile, linear, steps_of
from ninfer.fast.ops.linear.packing import Packed, repack
from tools.gpu_check.random_model import FORMATS, random_planes

# Class, rows, columns, whether gate and up are interleaved.
SHAPES = (
    ("wide", 16384, 5120, False),
    ("gated", 34816, 5120, True),
    ("narrow", 5120, 6144, False),
    ("deep", 5120, 17408, False),
    ("wide-2048", 12288, 2048, False),
    ("narrow-2048", 2048, 4096, False),
    ("small", 96, 5120, False),
)
_CACHE_BYTES = 256 << 20


def candidates(number: int) -> Iterator[Tile]:
    """Tiles worth compiling."""
    if number == packing.BF16:
        for rows, k, warps, stages in (
            (32, 128, 4, 4), (32, 256, 4, 3), (32, 256, 4, 4), (32, 128, 2, 5), (64, 64, 4, 5), (64, 128, 4,
            3),
            (64, 128, 4, 4), (64, 256, 4, 3), (128, 64, 4, 4), (128, 128, 8, 3), (16, 256, 4, 4), (16, 512,
            4, 3),
        ):  # fmt: skip
            yield Tile(rows, 1, k, warps, stages)
        return
    for rows, warps in ((32, 2), (64, 1), (64, 2), (64, 4), (128, 2), (128, 4), (128, 8)):
        for stages in (2, 3, 4):
            if not (number == packing.Q5 and rows == 128 and stages > 2):
                yield Tile(rows, 1, 64, warps, stages)


def matrix_of(number: int, rows: int, columns: int, device: torch.device) -> Packed:
    """A random matrix."""
    generator = torch.Generator(device).manual_seed(rows + columns)
    return repack(number, random_planes(number, rows, columns, device, generator))


def compile_all(names: Sequence[str], worker: int, workers: int) -> None:
    """This worker's part of the candidates, into the compiler's cache on disk."""
    device = torch.device("cuda")
    todo = [(FORMATS[name], tile) for name in names for tile in candidates(FORMATS[name])]
    matrices = {number: matrix_of(number, 256, 1024, device) for number in {number for number, _ in todo}}
    x = torch.zeros((16, 1024), dtype=torch.bfloat16, device=device)
    y, product = torch.zeros((8, 16, 256), device=device), x.clone()
    for number, tile in todo[worker::workers]:
        try:
            linear(x, matrices[number], y, tile, 1)
            linear(x, matrices[number], product, tile, 1, SWIGLU)
        except Exception as error:
            print(f"skip {number} {tile}: {type(error).__name__}", flush=True)
    torch.cuda.synchronize()


def time_of(launches: list[object], repetitions: int = 3) -> float:
    """Seconds of one launch: the fastest of some replays of all of them in one graph."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch in launches:
            launch()  # type: ignore[operator]
    best = float("inf")
    for _ in range(repetitions):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        best = min(best, begin.elapsed_time(end) / 1e3)
    return best / len(launches)


def measure(names: Sequence[str], shapes: Sequence[str]) -> list[dict[str, Any]]:
    """Every candidate on every shape."""
    device, results = torch.device("cuda"), []
    for name in names:
        number = FORMATS[name]
        for shape, rows, columns, gated in SHAPES:
            if shape not in shapes or (shape == "small" and name != "bf16"):
                continue
            first = matrix_of(number, rows, columns, device)
            copies = [first] + [
                repack(number, [plane.clone() for plane in packing.unpack(first)])
                for _ in range(min(24, _CACHE_BYTES // first.bytes))
            ]
            x = torch.randn((16, first.width), device=device).bfloat16()
            y = torch.zeros((16, 16, rows), device=device)
            product = torch.zeros((16, rows // 2), dtype=torch.bfloat16, device=device)
            for tile in candidates(number):
                for parts in (1,) if gated or shape.startswith("wide") else (1, 2, 4, 8, 16):
                    cut = Tile(tile.rows, parts, tile.k, tile.warps, tile.stages)
                    if parts > steps_of(first, cut):
                        continue

                    def one(
                        matrix: Packed,
                        cut: Tile = cut,
                        gated: bool = gated,
                        x: Any = x,
                        y: Any = y,
                        p: Any = product,
                    ) -> None:
                        if gated:
                            linear(x, matrix, p, cut, 1, SWIGLU)
                        else:
                            linear(x, matrix, y, cut, 1)

                    try:
                        one(first)
                        seconds = time_of([lambda m=m: one(m) for m in copies])
                    except Exception as error:
                        print(f"skip {name} {shape} {cut}: {type(error).__name__}", flush=True)
                        continue
                    row = [cut.rows, cut.parts, cut.k, cut.warps, cut.stages]
                    rate = first.bytes / seconds / 1e9
                    results.append(
                        {"format": name, "shape": shape, "tile": row, "us": seconds * 1e6, "gb_s": rate}
                    )
            _show(results, name, shape)
    return results


def _show(results: list[dict[str, Any]], name: str, shape: str) -> None:
    rows = sorted((r for r in results if r["format"] == name and r["shape"] == shape), key=lambda r: r["us"])
    for r in rows[:3]:
        print(f"{name:6} {shape:12} {r['tile']!s:22} {r['us']:8.1f} us {r['gb_s']:7.0f} GB/s", flush=True)


def measure_attention() -> None:
    """Tiles of the round's attention on the 27B's heads."""
    device = torch.device("cuda")
    key, value = (encoding("bf16", role, 256) for role in ("key", "value"))
    for context, lanes in ((8192, 1), (8192, 8), (65536, 1)):
        pages = context // 64 + 1
        shape = (lanes * pages, 4, 64, 256)
        empty = torch.empty(0, dtype=torch.float16, device=device)
        pools = [
            Pool(
                torch.randn(shape, device=device).bfloat16().view(torch.int16), empty,
                torch.randn(shape, device=device).half().view(torch.int16), empty, key, value,
            )
            for _ in range(3)
        ]  # fmt: skip
        tables = torch.randperm(lanes * pages, device=device).int().view(lanes, pages)
        blocks = torch.zeros((lanes, 8), dtype=torch.int32, device=device)
        blocks[:, 0] = blocks[:, 5] = torch.arange(lanes, device=device)
        blocks[:, 1], blocks[:, 4] = 1, context
        query = torch.randn((lanes, 24, 256), device=device).bfloat16()
        sums = torch.zeros((lanes, 24, SPLITS, 256), device=device)
        states = torch.zeros((lanes, 24, SPLITS, 2), device=device)
        rows = []
        for bt, warps, stages in (
            (32, 4, 2), (32, 4, 3), (32, 4, 4), (32, 2, 3), (64, 4, 2), (64, 4, 3), (64, 8, 2), (16, 2, 4),
            (16, 4, 4)
        ):  # fmt: skip
            fixed = (blocks, tables, sums, states, lanes)

            def one(
                pool: Pool, cut: Any = (bt, warps, stages, stages), fixed: Any = fixed, q: Any = query
            ) -> None:
                attend(q, pool, *fixed, 1, torch.bfloat16, cut)

            try:
                one(pools[0])
                seconds = time_of([lambda p=p: one(p) for p in pools])
            except Exception as error:
                print(f"skip attend {bt, warps, stages}: {type(error).__name__}", flush=True)
                continue
            rows.append((seconds * 1e6, (bt, warps, stages)))
        floor = 4 * lanes * context * 1024 / 4.27e12 * 1e6
        for us, tile in sorted(rows)[:3]:
            print(f"attend @{context} b{lanes} {tile} {us:.1f} us, copying takes {floor:.1f}", flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Compile in parallel, measure, print the three best of each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--formats", default="bf16,fp8,q8,q4,nvfp4")
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--worker", type=int, default=-1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--shapes", default=",".join(shape for shape, *_ in SHAPES))
    arguments = parser.parse_args(argv)
    names = arguments.formats.split(",")
    if arguments.worker >= 0:
        compile_all(names, arguments.worker, arguments.workers)
        return
    command = [sys.executable, "-m", "tools.gpu_check.tune", "--formats", arguments.formats]
    command += ["--workers", str(arguments.workers), "--worker"]
    workers = [subprocess.Popen([*command, str(i)]) for i in range(arguments.workers)]
    for worker in workers:
        worker.wait()
    measure_attention()
    results = measure(names, arguments.shapes.split(","))
    if arguments.json:
        arguments.json.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
