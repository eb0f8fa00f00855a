"""The op table's own cases, small, in Triton's interpreter (bf16 is proved on devices only)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
import torch

from ninfer.fast.ops.linear.gpu import Tile, linear
from ninfer.fast.program.gpu.tiles import TileTable
from ninfer.model.config import AttentionConfig, RopeConfig
from tests.fast.gpu.weights import FORMATS, matrix
from tools.gpu_check.op_cases import attention, delta, draws, mixture, products
from tools.gpu_check.op_cases.setting import Row, Setting, distance, poison
from tools.gpu_check.ops import Case, cases, rows_of

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

SETTING = Setting(torch.device("cpu"), torch.float32, TileTable(0))
HEADS = AttentionConfig(4, 2, 64, RopeConfig(1e4, 0.25, (3, 3, 2)))
DELTA = delta.Sizes(2, 4, 32, 64)
EXPERTS = {"experts": 3, "chosen": 2, "hidden": 256, "mlp": 64}


def small(name: str) -> dict[str, Case]:
    """The cases of one weight format."""
    return {
        f"linear {name}": partial(
            products.products, name=name, rows=200, columns=640, kind=None, widths=(5,)
        ),
        f"gated {name}": partial(products.gated, name=name, rows=128, columns=320, widths=(3,)),
        f"rows {name}": partial(products.rounded, name=name, rows=128, columns=320, widths=(3,)),
    }


SMALL: dict[str, Case] = {
    "swiglu": partial(products.activation, columns=40, widths=(3,)),
    "norm": partial(products.norms, hidden=96, parts=4, mixture=False, widths=(3,)),
    "norm mixture": partial(products.norms, hidden=96, parts=4, mixture=True, widths=(3,)),
    "route": partial(mixture.router, experts=33, chosen=4, parts=2, widths=(6,)),
    "experts bf16": partial(mixture.experts_of_rounds, name="bf16", **EXPERTS, widths=(2,)),
    "experts q4": partial(mixture.experts_of_rounds, name="q4", **EXPERTS, widths=(2,)),
    "chunk experts q8": partial(mixture.experts_of_a_chunk, name="q8", **EXPERTS, widths=(9,)),
    "delta rounds": partial(delta.rounds, z=DELTA, widths=(2,)),
    "delta blocks": partial(delta.verified, z=DELTA, columns=(3,)),
    "delta chunk": partial(delta.chunk, z=DELTA, start=37, count=60),
    "select": partial(draws.tokens, vocabulary=2900, widths=(7,)),
    "rows": partial(draws.moved, hidden=40, widths=(5,)),
    "carry": partial(draws.carried, widths=(1, 30)),
}
for _format in FORMATS:
    SMALL |= small(_format)
for _format, _columns in (
    ("bf16", (3, 12)), ("int8", (12,)), ("fp8", (3,)), ("nvfp4", (12,)), ("k8v4", (3,))
):  # fmt: skip
    SMALL[f"attention {_format}"] = partial(
        attention.cache, config=HEADS, kv_format=_format, tokens=80, widths=(2,), columns=_columns,
        chunks=((30, 50),),
    )  # fmt: skip


@pytest.mark.parametrize("name", SMALL)
def test_an_operation_is_within_its_bound(name: str) -> None:
    rows = rows_of(name, SMALL[name], SETTING, 0)
    assert rows
    assert [row.line() for row in rows if not row.passes] == []


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "nvfp4"])
def test_products_of_fp16_activations(name: str) -> None:
    """Not nvfp4: its codes times scales pass the range of fp16."""
    setting = Setting(torch.device("cpu"), torch.float16, TileTable(0))
    assert all(row.passes for row in rows_of(name, small(name)[f"linear {name}"], setting, 0))


@pytest.mark.parametrize("name", FORMATS)
def test_a_row_of_linear_does_not_know_its_neighbours(name: str) -> None:
    packed, _ = matrix(FORMATS[name], 64, 320)
    x = torch.randn(16, packed.width)
    alone, together = poison(1, 1, 64), poison(1, 16, 64)
    linear(x[3:4], packed, alone, Tile(64, 1, 64), 1)
    linear(x, packed, together, Tile(64, 1, 64), 16)
    assert distance(together[0, 3:4], alone[0]) <= 1e-6


def test_every_case_of_the_table_is_one_of_these() -> None:
    def work(case: Case) -> object:
        return case.func if isinstance(case, partial) else case

    proved = {work(case) for case in SMALL.values()} | {work(cases()["vocabulary bf16"])}
    assert {work(case) for case in cases().values()} <= proved


def test_what_is_raised_fails_and_so_does_a_result_that_is_no_number() -> None:
    def broken(setting: Setting) -> Iterator[Row]:
        yield Row("a", "", 1, 0.0, 0.0)
        raise ValueError("no such tile")

    assert [row.passes for row in rows_of("broken", broken, SETTING, 0)] == [True, False]
    assert not Row("a", "", 1, float("nan"), 1.0).passes
