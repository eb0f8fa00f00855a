"""The judgement of the follow-up bench, by hand."""

from __future__ import annotations

import pytest

from tools.bench.follow_up import _judge


@pytest.mark.parametrize(("longest", "failed"), [(0.050, 0), (0.0575, 0), (0.0591, 1)])
def test_growth_beyond_what_attention_explains_fails(longest: float, failed: int) -> None:
    # The bare program takes 40 ms longer, so 48 ms more are allowed.
    assert _judge([(4096, 0.010, 0.009), (65_536, longest, 0.049)]) == failed
