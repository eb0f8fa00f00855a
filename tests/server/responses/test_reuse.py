"""Continuation over the fast engine and its cache: what a child, a branch and a deletion leave to reuse."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.http.client import Client
from ninfer import bundled
from tests.fast.conftest import COLD_LIMIT_S, compiled  # noqa: F401  (kernels before any server)
from tests.server.fast_host import serving_fast
from tests.server.responses.stage import PATH, logged

pytestmark = pytest.mark.timeout(COLD_LIMIT_S)

LONG = "Count to five. " * 400


@pytest.fixture
def fresh(compiled: None, tmp_path: Path) -> Iterator[tuple[Client, Path]]:  # noqa: F811
    """A server of the bundled model whose cache is empty, and its request log."""
    log = tmp_path / "requests.jsonl"
    options = ("--request-log-jsonl", str(log), "--max-context", "8192")
    with serving_fast(bundled.path(), options, endless=False) as (client, _):
        yield client, log


def create(client: Client, **members: Any) -> dict[str, Any]:
    body = {"model": "nano", "temperature": 0, "max_output_tokens": 1} | members
    answer = client.request("POST", PATH, body)
    assert answer.status == 200, answer.body
    response: dict[str, Any] = answer.json
    return response


def cached(response: dict[str, Any]) -> int:
    tokens: int = response["usage"]["input_tokens_details"]["cached_tokens"]
    return tokens


@pytest.mark.clause("RESP-068", "RSTORE-007")
def test_a_continuation_reuses_what_the_engine_holds(fresh: tuple[Client, Path]) -> None:
    client, log = fresh
    first = create(client, input=LONG, max_output_tokens=30)
    second = create(client, input="Again.", previous_response_id=first["id"])
    assert first["usage"]["input_tokens"] > 2000
    assert cached(second) > 0.8 * first["usage"]["input_tokens"]
    result = logged(log, second)["result"]
    assert cached(second) == result["prefix_cache_hit_tokens"]
    tokens = second["usage"]["input_tokens"]
    assert cached(second) + result["computed_prefill_tokens"] == tokens == result["prompt_tokens"]


@pytest.mark.clause("RSTORE-010")
def test_another_preserve_thinking_drops_no_checkpoint(fresh: tuple[Client, Path]) -> None:
    client, _ = fresh
    root = create(client, input=LONG, preserve_thinking=True, max_output_tokens=30)
    kept, dropped, again = (
        create(client, input="Go on.", previous_response_id=root["id"], preserve_thinking=keep)
        for keep in (True, False, True)
    )
    assert cached(again) >= cached(kept) > 0.8 * root["usage"]["input_tokens"]
    assert dropped["usage"]["input_tokens"] < kept["usage"]["input_tokens"]


@pytest.mark.clause("RSTORE-015")
@pytest.mark.parametrize("how", ["deleted", "never kept"])
def test_a_forgotten_response_leaves_the_engines_checkpoint(fresh: tuple[Client, Path], how: str) -> None:
    client, _ = fresh
    first = create(client, input=LONG, store=how == "deleted")
    if how == "deleted":
        assert client.request("DELETE", f"{PATH}/{first['id']}").status == 200
    assert client.get(f"{PATH}/{first['id']}").status == 404
    assert cached(create(client, input=LONG)) > 1000
