"""Measures tiles of the linear kernels on a device and prints the best rows of ``spec/gpu.yaml``.

    python -m tools.gpu_check.tune [--formats bf16,q4] [--workers 12] [--json out.json]

Every candidate is compiled first, by several processes at once; then each shape of the 27B and the 35B-A3B model
is timed over copies of the matrix that together are larger than the cache. Prints GB/s of weights.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

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
            (32, 128, 4, 4), (32, 256, 4, 3), (32, 256, 4, 4), (32, 128, 2, 5), (64, 64, 4, 5), (64, 128, 4, 3),
            (64, 128, 4, 4), (64, 128, 4, 5), (64, 256, 4, 3), (64, 256, 8, 3), (128, 64, 4, 4), (128, 64, 8, 5),
            (128, 128, 8, 3), (128, 128, 4, 3), (16, 256, 4, 4), (16, 512, 4, 3),
        ):  # fmt: skip
            yield Tile(rows, 1, k, warps, stages)
        return
    for rows in (32, 64, 128):
        for warps in (2, 4, 8):
            if rows // warps < 8 or rows // warps > 32:
                continue
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
        for parts in (1, 2):
            try:
                linear(x, matrices[number], y, Tile(tile.rows, parts, tile.k, tile.warps, tile.stages), 1)
            except Exception as error:
                print(f"skip {number} {tile}: {type(error).__name__}", flush=True)
                break
        else:
            linear(x, matrices[number], product, tile, 1, SWIGLU)
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


def measure(names: Sequence[str]) -> list[dict[str, object]]:
    """Every candidate on every shape."""
    device, results = torch.device("cuda"), []
    for name in names:
        number = FORMATS[name]
        for shape, rows, columns, gated in SHAPES:
            if shape == "small" and name != "bf16":
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

                    def one(matrix: Packed, cut: Tile = cut, gated: bool = gated) -> None:
                        if gated:
                            linear(x, matrix, product, cut, 1, SWIGLU)
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
    return results


def main(argv: Sequence[str] | None = None) -> None:
    """Compile in parallel, measure, print the three best of each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--formats", default="bf16,fp8,q8,q4,nvfp4")
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--worker", type=int, default=-1)
    parser.add_argument("--json", type=Path)
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
    results = measure(names)
    for name in names:
        for shape, *_ in SHAPES:
            rows = sorted(
                (r for r in results if r["format"] == name and r["shape"] == shape), key=lambda r: r["us"]
            )
            for r in rows[:3]:
                print(
                    f"{name:6} {shape:12} {r['tile']!s:22} {r['us']:8.1f} us {r['gb_s']:7.0f} GB/s",
                    flush=True,
                )
    if arguments.json:
        arguments.json.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
