"""``rows``: what lanes keep of a round is the residual stream, bit for bit, and nothing else is written."""

from __future__ import annotations

import numpy as np
import pytest

from ninfer.fast.ops.control import KEPT, POSITION, ROW_FIELDS
from ninfer.fast.ops.rows import contract
from ninfer.fast.program.table import KEEP
from tests.support.fast import WIDTHS, address, assert_same_bits, fields, run

PLACES = 128


@pytest.mark.parametrize("columns", [64, 320])
@pytest.mark.parametrize("width", WIDTHS)
def test_rows_are_kept_by_their_places(columns: int, width: int) -> None:
    """Two lanes whose places go round the end, and rows between them that nobody keeps."""
    random = np.random.default_rng(columns)
    hidden = random.standard_normal((width, columns)).astype(np.float32)
    # One more than places, so that what is written beyond them shows.
    kept = [np.full((PLACES + 1, columns), np.nan, np.float32) for _ in range(2)]
    owner, places = random.integers(-1, 2, width), np.arange(width) + 3 * PLACES - width // 2
    rows = np.zeros((width, ROW_FIELDS), np.int64)
    rows[:, POSITION] = places
    rows[:, KEPT] = [0 if lane < 0 else address(kept[lane]) for lane in owner]
    source = {"HIDDEN": address(hidden), "HIDDEN_STRIDE": hidden.strides[0], "N": columns, "PLACES": PLACES}
    run([(KEEP, fields(contract, **source))], rows=rows.tolist(), threads=1 + width % 2)
    for lane, found in enumerate(kept):
        wanted = np.full_like(found, np.nan)
        wanted[places[owner == lane] % PLACES] = hidden[owner == lane]
        assert_same_bits(found, wanted)
