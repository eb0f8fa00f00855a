"""Each KV format within its bound: 1.5 times the error of plain PyTorch in bf16 on the same positions."""

from __future__ import annotations

import pytest

from tools.gpu_check.campaign import KV_FORMATS, run_case

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("cuda")]


@pytest.mark.clause("OPT-042")
@pytest.mark.parametrize("kv_format", KV_FORMATS)
def test_logits_are_within_the_bound(kv_format: str) -> None:
    outcome = run_case("heads", "bf16", kv_format, rounds=40, seed=1, lanes=4)
    print(outcome.line())
    assert outcome.positions > 50
    assert outcome.passes
