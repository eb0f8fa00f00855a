"""What changes from round to round on the GPU: one int32 record per row and one per block, as on CPUs.

Row: token, position, axes T, H, W, lane of the block table, block, place of the block's first row.
Block: first row, columns, state slot, commit, position of the first row, lane, sampler, unused.
"""

from __future__ import annotations

TOKEN, POSITION, AXIS_T, AXIS_H, AXIS_W, LANE, BLOCK, FIRST, ROW_WORDS = range(9)
FIRST_ROW, COLUMNS, SLOT, COMMIT, START, BLOCK_LANE, SPARE, SPARE_2, BLOCK_WORDS = range(9)
