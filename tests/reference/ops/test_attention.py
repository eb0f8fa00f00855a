"""``gated_attention`` against a softmax written out, and against torch's own attention."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from ninfer.reference.ops.attention import gated_attention
from tests.reference.ops.samples import close, normal


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (24, 4), (3, 3), (5, 1)])
def test_equals_torch_s_attention(heads: int, kv_heads: int, dtype: torch.dtype) -> None:
    q, gate = normal(20, heads, 32, seed=1, dtype=dtype), normal(20, heads, 32, seed=2, dtype=dtype)
    k, v = normal(20, kv_heads, 32, seed=3, dtype=dtype), normal(20, kv_heads, 32, seed=4, dtype=dtype)
    attended = scaled_dot_product_attention(
        *(x.transpose(0, 1)[None] for x in (q, k, v)), is_causal=True, enable_gqa=True
    )[0].transpose(0, 1)
    close(
        gated_attention(q, gate, k, v), attended * gate.sigmoid(), 2e-6 if dtype == torch.float32 else 1e-14
    )


def test_written_out() -> None:
    q, gate, k, v = (normal(*s, seed=i) for i, s in enumerate([(2, 2, 4), (2, 2, 4), (5, 1, 4), (5, 1, 4)]))
    found = gated_attention(q, gate, k, v)
    for row in range(2):
        for head in range(2):
            # Row 0 is the fourth of five positions, row 1 the fifth.
            scores = [float(q[row, head] @ k[s, 0]) / 2 for s in range(4 + row)]
            weights = torch.tensor(scores).softmax(0)
            wanted = sum(weights[s] * v[s, 0] for s in range(4 + row)) * gate[row, head].sigmoid()
            close(found[row, head], wanted)


@given(rows=st.integers(1, 9), before=st.integers(0, 9))
def test_rows_of_a_later_piece_equal_those_of_one_pass(rows: int, before: int) -> None:
    total = rows + before
    q, gate = normal(total, 4, 8, seed=1), normal(total, 4, 8, seed=2)
    k, v = normal(total, 2, 8, seed=3), normal(total, 2, 8, seed=4)
    whole = gated_attention(q, gate, k, v)
    close(gated_attention(q[before:], gate[before:], k, v), whole[before:])
