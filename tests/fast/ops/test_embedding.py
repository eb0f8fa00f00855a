"""``embedding`` is the artifact's own decoding, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ninfer.fast.ops.control import ROW_FIELDS
from ninfer.fast.ops.embedding import contract
from ninfer.fast.program.table import DECODE, EMBED
from tests.support.fast import (
    STORED_FORMATS,
    WIDTHS,
    Poisoned,
    address,
    assert_same_bits,
    fields,
    padded_rows,
    random_weights,
    run,
    store,
)


@pytest.mark.parametrize("columns", [64, 130, 512])
@pytest.mark.parametrize("format_name", STORED_FORMATS)
def test_rows_are_the_decoded_weights(format_name: str, columns: int) -> None:
    random = np.random.default_rng(columns)
    table = store(format_name, random_weights(random, 70, columns))
    wanted = padded_rows(table.decoded)
    for width in WIDTHS:
        tokens = random.integers(0, 70, width)
        tokens[-1] = 69
        y = Poisoned(width, table.width)
        io = {"Y": y.address, "Y_STRIDE": y.stride, "N": table.width, "FORMAT": table.number}
        operation = (EMBED, fields(contract, **io, **table.plane_fields()))
        run([operation], rows=[(token, *[0] * (ROW_FIELDS - 1)) for token in tokens], threads=1 + width % 2)
        y.check_margin()
        assert_same_bits(y.values, wanted[tokens])


@pytest.mark.parametrize("columns", [64, 130, 512])
@pytest.mark.parametrize("format_name", STORED_FORMATS)
def test_tiles_are_the_decoded_weights(format_name: str, columns: int) -> None:
    """As float32, and rounded to the nearest bfloat16 as torch does it."""
    stored = store(format_name, random_weights(np.random.default_rng(columns), 151, columns))
    for begin, rows, threads in ((0, 151, 2), (3, 1, 1), (100, 51, 2)):
        wanted = padded_rows(stored.decoded[begin : begin + rows])
        y = Poisoned(rows, stored.width)
        words = np.full((rows + 2, stored.width), 0x7FC1, np.uint16)
        scratch = np.full((threads, stored.width), np.nan, np.float32)
        planes = {"N": stored.width, "FORMAT": stored.number, "ROWS": rows, **stored.plane_fields(begin)}
        memory = {"SCRATCH": address(scratch), "SCRATCH_STRIDE": scratch.strides[0]}
        exact = {"Y": y.address, "Y_STRIDE": y.stride}
        rounded = {"Y": address(words[1:]), "Y_STRIDE": words.strides[0], "ROUNDED": 1}
        operations = [
            (DECODE, fields(contract, "TILE_FIELDS", **planes, **memory, **target))
            for target in (exact, rounded)
        ]
        run(operations, threads=threads)
        y.check_margin()
        assert_same_bits(y.values, wanted)
        assert (words[[0, -1]] == 0x7FC1).all(), "written outside"
        nearest = torch.from_numpy(wanted).bfloat16().view(torch.int16).numpy().view(np.uint16)
        assert (words[1:-1] == nearest).all()
