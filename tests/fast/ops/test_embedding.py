"""``embedding`` is the artifact's own decoding, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from ninfer.fast.ops.embedding import contract
from ninfer.fast.program.table import EMBED
from tests.support.fast import (
    STORED_FORMATS,
    WIDTHS,
    Poisoned,
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
        run([operation], rows=[(token, 0, 0, 0, 0, 0) for token in tokens], threads=1 + width % 2)
        y.check_margin()
        assert_same_bits(y.values, wanted[tokens])
