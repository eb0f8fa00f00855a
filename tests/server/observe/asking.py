"""Small requests of each protocol, and plays that last or fail."""

from __future__ import annotations

from typing import Any

from conformance.http.client import Answer, Client
from ninfer.engine.scripted import Play, Step

SLOW = Play((Step(text="x", wait_s=0.02),), repeat=10**6)
FAILS = Play((Step(text="x"), Step(fail="assertion")))
FOREVER = 10**6


def messages(client: Client, **members: Any) -> Answer:
    body = {"model": "any label", "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}]} | members
    return client.request("POST", "/v1/messages", body)


def responses(client: Client, **members: Any) -> Answer:
    return client.request("POST", "/v1/responses", {"model": "nano", "input": "hi"} | members)
