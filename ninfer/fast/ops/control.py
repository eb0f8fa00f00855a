"""What changes from round to round: one record per row and one per lane block, as int64 tables.

A *row* is one column of one lane (its next token, or a draft to verify); the rows of a lane are
consecutive and form a *block*. Everything else of a round stands in descriptors that are built once.
"""

from __future__ import annotations

# One row. POSITION is the index in the sequence (and in the lane's KV); the rotary axes may differ from it.
# KEPT is where its lane keeps residual rows (``rows``), 0 for nowhere.
TOKEN, POSITION, AXIS_T, AXIS_H, AXIS_W, BLOCK_TABLE, KEPT, ROW_FIELDS = range(8)

# One lane's block of consecutive rows. STATE is the address of its committed state image.
# COMMIT 1: recurrent and conv state advance in place (plain decode); 0: state is only read, columns are kept.
# When kept columns are folded in: ALL where every one of them is.
FIRST_ROW, COLUMNS, STATE, COMMIT, BLOCK_FIELDS = range(5)
ALL = 2

PAGE_TOKENS = 64
MAX_COLUMNS = 64  # columns of one round over all lanes
