"""A system message between turns is an ordinary suffix: what is cached before it stays usable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fast.conftest import COLD_LIMIT_S, compiled  # noqa: F401  (kernels before any server)
from tests.server.fast_host import serving_fast

pytestmark = pytest.mark.timeout(COLD_LIMIT_S)


def said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


@pytest.mark.clause("TMPL-002")
def test_a_system_message_between_turns_leaves_the_cache_before_it(nano: Path) -> None:
    plain: dict[str, Any] = {"enable_thinking": False, "temperature": 0, "max_tokens": 4}
    opening = said("user", "the quick brown fox " * 20)
    with serving_fast(nano) as (client, _):
        first = client.chat(messages=[opening], **plain).json["usage"]
        late = [opening, said("assistant", "two"), said("system", "three"), said("user", "four")]
        second = client.chat(messages=late, **plain).json["usage"]
        ahead = client.chat(messages=[late[2], *late[:2], late[3]], **plain).json["usage"]
    assert first["prompt_tokens"] > 128
    cached = second["prompt_tokens_details"]["cached_tokens"]
    # All of the opening turn but the opener of the answer, which may be taken in again.
    assert cached >= 64 * (first["prompt_tokens"] // 64) - 64
    assert ahead["prompt_tokens_details"]["cached_tokens"] < 64
