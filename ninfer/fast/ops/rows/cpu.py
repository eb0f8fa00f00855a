"""``rows`` on CPUs: a task is one row."""

from __future__ import annotations

from ninfer.fast.ops.compiled import part
from ninfer.fast.ops.control import KEPT, POSITION
from ninfer.fast.ops.rows.contract import HIDDEN, HIDDEN_STRIDE, PLACES, N
from ninfer.fast.ops.views import copy


@part
def keep(d, rows, task):
    """Row ``task`` to where its lane keeps the row of its place."""
    kept = rows[task, KEPT]
    if kept != 0:
        place = rows[task, POSITION] % d[PLACES]
        copy(d[HIDDEN] + task * d[HIDDEN_STRIDE], kept + 4 * place * d[N], d[N])
