"""Every KV format that can be chosen starts on a CPU, answers, and takes the memory that the spec says."""

from __future__ import annotations

from pathlib import Path

import pytest

from ninfer.spec import document
from tests.fast.conftest import COLD_LIMIT_S, compiled  # noqa: F401  (kernels before any server)
from tests.server.fast_host import serving_fast

pytestmark = pytest.mark.timeout(COLD_LIMIT_S)

# The nano model: head size 64, one KV head in each of its attention layers.
BYTES = {
    row["format"]: row["key"] + row["value"]
    for row in document("kv_formats")["bytes_per_token_and_head"]
    if row["head_dim"] == 64
}


@pytest.mark.clause_early("OPT-042")
@pytest.mark.parametrize("kv_format", ["bf16", "int8", "fp8", "nvfp4", "k8v4"])
def test_a_format_starts_and_answers(nano: Path, kv_format: str) -> None:
    with serving_fast(nano, ("--kv-dtype", kv_format), endless=False, kv_format=kv_format) as (client, host):
        answer = client.chat(messages=[{"role": "user", "content": "hello" * 40}], max_tokens=20)
        assert answer.status == 200
        assert answer.json["usage"]["completion_tokens"] > 0
        resources = host.resources
    assert resources.kv_format == kv_format
    assert resources.kv_page_bytes % (64 * BYTES[kv_format]) == 0
