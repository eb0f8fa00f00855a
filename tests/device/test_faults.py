"""A device error ends the server: planted from outside, the product has no switch for it."""

from __future__ import annotations

import re

import pytest

from conformance.http.client import chat_body
from tests.device.server import MODEL, Servers

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("cuda")]


@pytest.mark.clause("FAIL-010", "FAIL-011")
def test_an_illegal_address_ends_the_process(servers: Servers) -> None:
    sizes = ("--kv-capacity", "8192", "--max-context", "4096", "--max-concurrency", "2")
    server = servers.start(*sizes, "--prefill-chunk", "256", plant="wild:400")
    assert "42" in server.text()
    long = chat_body(model=MODEL, max_tokens=2000, ignore_eos=True, stream=True)
    with server.client.open_chat(**long), server.client.open_chat(**long):
        assert server.process.wait(60) != 0
    last = server.log.strip().splitlines()[-1]
    print(last)
    assert re.fullmatch(r"CUDA_CHECK\(\.\.\.\) failed: .*illegal memory access.*", last)
    events = [line["event"] for line in server.records]
    ended = [event for event in events if event in ("request_done", "request_error")]
    assert events.count("request_start") == 3
    assert len(ended) == 1, "only the first answer had ended"
