"""Mixed load over the three protocols: metrics, request log and clients agree to the token."""

from __future__ import annotations

import random
import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from conformance.http.client import Client, dechunked, read_until
from conformance.http.streams import payloads
from ninfer import spec
from tests.server.fast_client import eventually
from tests.server.fast_host import serving_fast
from tests.server.observe.lines import Line, Log
from tests.server.observe.scrape import Scrape, scrape

Tokens = tuple[int, int, int]  # prompt, cached, output
PENDING = ("--max-concurrency", "8", "--max-pending-requests", "100", "--pending-timeout-ms", "600000")
CANCELLED = "cancelled"


def ask(client: Client, seed: int) -> Tokens | str:
    """One request of the mix; what the client read of it."""
    chance = random.Random(seed)
    text = "7" * chance.choice((3, 40, 300)) + str(seed % 5)
    turns = [{"role": "user", "content": text}]
    most = chance.randint(1, 12)
    kind = chance.choice(("chat", "stream", "responses", "messages", "cancel"))
    if kind == "chat":
        return chat_usage(client.chat(messages=turns, max_tokens=most).json["usage"])
    if kind in ("stream", "cancel"):
        options = {"stream_options": {"include_usage": True}}
        length = 2000 if kind == "cancel" else most
        sock = client.open_chat(messages=turns, max_tokens=length, stream=True, **options)
        return streamed(sock, kind == "cancel")
    if kind == "responses":
        body = {"model": "nano", "input": text, "max_output_tokens": most}
        usage = client.request("POST", "/v1/responses", body).json["usage"]
        cached = usage["input_tokens_details"]["cached_tokens"]
        return usage["input_tokens"], cached, usage["output_tokens"]
    body = {"model": "m", "messages": turns, "max_tokens": most}
    usage = client.request("POST", "/v1/messages", body).json["usage"]
    cached = usage["cache_read_input_tokens"]
    return usage["input_tokens"] + cached, cached, usage["output_tokens"]


def chat_usage(usage: dict[str, Any]) -> Tokens:
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return usage["prompt_tokens"], cached, usage["completion_tokens"]


def streamed(sock: socket.socket, leave: bool) -> Tokens | str:
    with sock:
        if leave:
            read_until(sock, b"data: ")
            return CANCELLED
        data = read_until(sock, b"\r\n0\r\n\r\n")
    (last,) = (entry for entry in payloads(dechunked(data)) if isinstance(entry, dict) and entry.get("usage"))
    return chat_usage(last["usage"])


def check_sums(client: Client, log: Log, answers: list[Tokens | str]) -> None:
    """Every number that two of the three tell is the same."""
    eventually(lambda: len(terminals(log)) == len(answers))
    eventually(lambda: scrape(client)["requests_running"] == 0)
    scraped = scrape(client)
    done = log.lines("request_done")
    completed = [line["result"] for line in done if line["result"]["finish_reason"] != CANCELLED]
    read = [answer for answer in answers if not isinstance(answer, str)]
    assert Counter(read) == Counter(
        (result["prompt_tokens"], result["prefix_cache_hit_tokens"], result["completion_tokens"])
        for result in completed
    )
    check_metrics(scraped, done, len(read), len(answers) - len(read))
    by_id = Counter(line["request"]["request_id"] for line in terminals(log))
    assert by_id == Counter(range(1, len(answers) + 1))


def terminals(log: Log) -> list[Line]:
    return [line for line in log.lines() if line["event"] in ("request_done", "request_error")]


def check_metrics(scraped: Scrape, done: list[Line], completed: int, cancelled: int) -> None:
    results = [line["result"] for line in done]

    def summed(name: str) -> int:
        return sum(result[name] for result in results)

    assert scraped["prompt_tokens_total"] == summed("prompt_tokens")
    assert scraped["prompt_tokens_cached_total"] == summed("prefix_cache_hit_tokens")
    assert scraped["prefill_tokens_total"] == summed("computed_prefill_tokens")
    assert scraped["generation_tokens_total"] == summed("completion_tokens")
    begun = sum(result["completion_tokens"] > 0 for result in results)
    assert scraped["decode_tokens_total"] == summed("completion_tokens") - begun
    assert scraped.outcome("completed") == completed
    assert scraped.outcome("cancelled") == cancelled
    assert scraped.outcome("failed") == scraped.outcome("rejected") == 0
    assert scraped["request_duration_seconds_count"] == completed + cancelled
    assert scraped["time_to_first_token_seconds_count"] == begun
    assert all(len(result["generated_token_ids"]) == result["completion_tokens"] for result in results)


def mixed_load(nano: Path, log: Log, clients: int, requests: int, seed: int) -> None:
    with serving_fast(nano, (*PENDING, "--log-stats-interval-ms", "200", *log.arguments)) as (client, _):
        with ThreadPoolExecutor(clients) as pool:
            answers = list(pool.map(lambda number: ask(client, seed + number), range(requests)))
        check_sums(client, log, answers)
    intervals = log.lines("throughput")
    done = [line["result"] for line in log.lines("request_done")]
    decoded = sum(result["completion_tokens"] - (result["completion_tokens"] > 0) for result in done)
    assert sum(line["tokens"]["committed_decode"] for line in intervals) == decoded
    computed = sum(result["computed_prefill_tokens"] for result in done)
    assert sum(line["tokens"]["computed_prefill"] for line in intervals) == computed


def test_sixteen_clients_add_up(nano: Path, log: Log) -> None:
    mixed_load(nano, log, 16, 120, 0)


@pytest.mark.clause("JLOG-041")
@pytest.mark.campaign
@pytest.mark.timeout(1800)
def test_sixty_four_clients_add_up(nano: Path, log: Log, campaign_seed: int) -> None:
    mixed_load(nano, log, 64, 10_000, campaign_seed)


@pytest.mark.clause("JLOG-014")
def test_the_kinds_of_events_are_seven(nano: Path, log: Log) -> None:
    """The schema knows no other, and a mixed run has none."""
    kinds = {
        "server_start",
        "request_start",
        "request_rejected",
        "request_done",
        "request_scheduling",
        "request_error",
        "throughput",
    }
    with serving_fast(nano, ("--max-context", "256", *log.arguments)) as (client, _):
        client.chat(max_tokens=3)
        client.chat(messages=[{"role": "user", "content": "7" * 500}])
        with client.open_chat(max_tokens=200, stream=True) as sock:
            read_until(sock, b"data: ")
        log.done(2)
    assert {line["event"] for line in log.lines()} <= kinds
    assert set(spec.document("request_log.schema")["properties"]["event"]["enum"]) == kinds
