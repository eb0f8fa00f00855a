"""The op table: every operation of the GPU engine on a device beside the reference's in float64.

    python -m tools.gpu_check.ops [--only attend] [--workers 12] [--json out.json]

Shapes are those of the 27B model (mixtures: of 35B-A3B with fewer experts; vocabularies with the rows of
0.8B), activations bf16, tiles from the committed table. An error is the largest difference in any row over
the row's largest value, and its bound says what the operation rounds; results that are integers or copies
must be equal (the error counts those that are not). The delta rule of a prefill chunk, which rounds in many
places, may be 1.5 times as far off as plain PyTorch in bf16 on the same numbers. Exits non-zero on failures.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch

from ninfer.fast.program.gpu.device import architecture
from ninfer.fast.program.gpu.tiles import TileTable
from tools.gpu_check.op_cases import attention, delta, draws, mixture, products
from tools.gpu_check.op_cases.setting import Row, Setting
from tools.gpu_check.random_model import FORMATS, config_of

WIDTHS = (1, 4, 8, 16, 33, 64)
BLOCKS = (4, 8, 16, 33)
KV_FORMATS = ("bf16", "int8", "fp8", "nvfp4", "k8v4")
_FAILED = float("inf")
Case = Callable[[Setting], Iterator[Row]]


def cases() -> dict[str, Case]:
    """Every case by name; a case makes the rows of all its widths."""
    found: dict[str, Case] = {}
    for name in FORMATS:
        found |= _matrices(name)
    found["linear small"] = partial(
        products.products, name="bf16", rows=96, columns=5120, kind=None, widths=WIDTHS
    )
    for name in ("bf16", "fp8", "q8", "nvfp4"):  # what vocabularies are stored in
        found[f"vocabulary {name}"] = partial(_vocabulary, name=name)
    found["swiglu"] = partial(products.activation, columns=17408, widths=(*WIDTHS, 300))
    found["norm"] = partial(products.norms, hidden=5120, parts=8, mixture=False, widths=WIDTHS)
    found["norm mixture"] = partial(products.norms, hidden=2048, parts=8, mixture=True, widths=WIDTHS)
    config = config_of("27B").attention
    assert config is not None
    for kv_format in KV_FORMATS:
        found[f"attention {kv_format}"] = partial(
            attention.cache, config=config, kv_format=kv_format, tokens=4500, widths=WIDTHS, columns=BLOCKS,
            chunks=((0, 300), (1000, 513), (4100, 400)),
        )  # fmt: skip
    heads = delta.Sizes(16, 48, 128, 128)
    found["delta rounds"] = partial(delta.rounds, z=heads, widths=WIDTHS)
    found["delta blocks"] = partial(delta.verified, z=heads, columns=(*BLOCKS, 64))
    for start, count in ((0, 256), (37, 301), (4096, 64)):
        found[f"delta chunk {start}"] = partial(delta.chunk, z=heads, start=start, count=count)
    found["route"] = partial(mixture.router, experts=256, chosen=8, parts=4, widths=WIDTHS)
    found["select"] = partial(draws.tokens, vocabulary=248077, widths=WIDTHS)
    found["rows"] = partial(draws.moved, hidden=5120, widths=WIDTHS)
    found["carry"] = partial(draws.carried, widths=WIDTHS)
    return found


def _matrices(name: str) -> dict[str, Case]:
    """The shapes of the 27B model, and experts of 35B-A3B's."""
    experts = {"name": name, "experts": 32, "chosen": 8, "hidden": 2048, "mlp": 512}
    ends = (1, 64)
    return {
        f"linear narrow {name}": partial(
            products.products, name=name, rows=5120, columns=6144, kind=None, widths=WIDTHS
        ),
        f"linear gated {name}": partial(
            products.gated, name=name, rows=2 * 17408, columns=5120, widths=WIDTHS
        ),
        f"linear deep {name}": partial(
            products.products, name=name, rows=5120, columns=17408, kind=None, widths=ends
        ),
        f"linear wide {name}": partial(
            products.products, name=name, rows=16384, columns=5120, kind="wide", widths=ends
        ),
        f"rows of {name}": partial(products.rounded, name=name, rows=5120, columns=6144, widths=ends),
        f"experts {name}": partial(mixture.experts_of_rounds, **experts, widths=WIDTHS),
        f"chunk experts {name}": partial(mixture.experts_of_a_chunk, **experts, widths=(33, 300)),
    }


def _vocabulary(s: Setting, name: str) -> Iterator[Row]:
    """The output head and the embedding of a whole vocabulary."""
    yield from products.products(s, name, 248320, 1024, "head", WIDTHS)
    yield from products.rounded(s, name, 248320, 1024, WIDTHS)


def rows_of(name: str, case: Case, setting: Setting, seed: int) -> list[Row]:
    """A case's rows; an exception is a row that fails. Prints what was raised."""
    torch.manual_seed(seed + zlib.crc32(name.encode()))
    rows: list[Row] = []
    try:
        with torch.inference_mode(), setting.device:
            rows.extend(case(setting))
    except Exception as error:
        print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        rows.append(Row(name, type(error).__name__, 0, _FAILED, 0))
    return rows


def work(names: Sequence[str], seed: int) -> None:
    """A worker: the rows of these cases as lines of JSON."""
    device = torch.device("cuda", 0)
    setting = Setting(device, torch.bfloat16, TileTable(architecture(device)))
    every = cases()
    for name in names:
        began = time.monotonic()
        for row in rows_of(name, every[name], setting, seed):
            print(json.dumps(asdict(row)), flush=True)
        torch.cuda.empty_cache()
        print(f"{name}: {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)


def shared_out(names: Sequence[str], workers: int, seed: int) -> list[Row]:
    """The rows of all cases, which several processes go through: most of the time is compiling."""
    running = []
    for worker in range(min(workers, len(names))):
        mine = list(names[worker::workers])
        command = [
            sys.executable,
            "-m",
            "tools.gpu_check.ops",
            "--seed",
            str(seed),
            "--work",
            json.dumps(mine),
        ]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    rows = []
    for process in running:
        output, _ = process.communicate()
        rows += [Row(**json.loads(line)) for line in output.splitlines() if line.startswith("{")]
        if process.returncode != 0:
            rows.append(Row("worker", f"rc {process.returncode}", 0, _FAILED, 0))
    return sorted(rows, key=lambda row: (row.op, row.format, row.width))


def main(argv: Sequence[str] | None = None) -> None:
    """Run the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", help="only cases whose name contains this")
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--work", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.work is not None:
        work(arguments.work, arguments.seed)
        return
    chosen = [name for name in cases() if not arguments.only or any(part in name for part in arguments.only)]
    if not chosen:
        parser.error(f"--only {' '.join(arguments.only)}: no case has such a name; there are {list(cases())}")
    began = time.monotonic()
    rows = shared_out(chosen, arguments.workers, arguments.seed)
    print(f"{'op':22} {'format':8} {'width':>6} {'error':>10} {'bound':>10}")
    for row in rows:
        print(row.line())
    failed = [row for row in rows if not row.passes]
    if arguments.json:
        arguments.json.write_text(json.dumps([{**asdict(row), "passes": row.passes} for row in rows]))
    print(f"cases={len(chosen)} rows={len(rows)} failed={len(failed)} {time.monotonic() - began:.1f} s")
    for row in failed:
        print(row.line())
    sys.exit(1 if failed or not rows else 0)


if __name__ == "__main__":
    main()
