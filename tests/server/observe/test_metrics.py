"""``GET /metrics``: its form, its families from the first scrape on, and what requests add to them."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from conformance.http.client import Client, read_until
from ninfer import spec
from ninfer.engine.inprocess import InProcessHost
from ninfer.engine.interface import SerialEngine
from ninfer.engine.scripted import Play, Script, Step
from tests.server.conftest import MODEL
from tests.server.engines import HeldEngine, RecordingEngine, saying
from tests.server.fast_client import eventually
from tests.server.fast_host import serving_fast
from tests.server.inprocess import serving, serving_host
from tests.server.observe.asking import FAILS, FOREVER, SLOW, messages, responses
from tests.server.observe.fast_stage import slow
from tests.server.observe.lines import Log
from tests.server.observe.scrape import Scrape, scrape

NAME = re.compile(r"ninfer_[a-z0-9_]+")


def running(client: Client, **members: Any) -> Any:
    """A stream that has begun and goes on."""
    sock = client.open_chat(stream=True, max_tokens=FOREVER, **members)
    read_until(sock, b"reasoning_content")
    return sock


@pytest.mark.clause("HTTP-002", "METRIC-001")
def test_the_official_parser_reads_it_before_the_first_request(nano: Path) -> None:
    """And the rules of promtool's linter hold: help for each family, names and suffixes by type."""
    with serving(nano, RecordingEngine(), MODEL) as client:
        answer = client.get("/metrics")
        scraped = scrape(client)
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert answer.body.endswith(b"\n")
    assert not answer.body.startswith((b'"', b"{"))
    assert "NaN" not in scraped.text
    for line in scraped.text.splitlines():
        kind, name = line.split()[1:3] if line.startswith("#") else ("sample", re.split(r"[ {]", line)[0])
        assert NAME.fullmatch(name), line
        assert kind in ("HELP", "TYPE", "sample")
    helps = re.findall(r"^# HELP (\S+) (\S.*)$", scraped.text, re.M)
    types = re.findall(r"^# TYPE (\S+) (counter|gauge|histogram)$", scraped.text, re.M)
    assert [name for name, _ in helps] == [name for name, _ in types]
    assert len({name for name, _ in types}) == len(types)
    for name, kind in types:
        assert name.endswith("_total") == (kind == "counter"), name
        assert not name.endswith(("_info_total", "_bucket", "_count", "_sum"))
        if kind == "histogram":
            assert name.endswith("_seconds")


def test_case_223d_the_form_of_an_exposition(nano: Path) -> None:
    """A server that nobody has used yet: no ratio of nothing, no colon in a name, every type said."""
    with serving(nano, RecordingEngine(), MODEL) as client:
        scraped = scrape(client)
    assert "-nan" not in scraped.text.lower()
    assert not any(":" in name for name, _ in scraped.samples)
    assert set(scraped.types.values()) == {"counter", "gauge", "histogram"}


def test_the_families_are_those_of_the_spec(nano: Path) -> None:
    rows = spec.document("metrics")["families"]
    with serving(nano, RecordingEngine(), MODEL) as client:
        before = scrape(client)
        client.chat()
        after = scrape(client)
    names = re.findall(r"^# TYPE (\S+) ", before.text, re.M)
    assert names == [row["name"] for row in rows]
    assert set(before.samples) == set(after.samples)


@pytest.mark.clause("METRIC-002")
def test_the_key_guards_it(nano: Path) -> None:
    with serving(nano, RecordingEngine(), (*MODEL, "--api-key", "k")) as client:
        assert client.get("/metrics").status == 401
        scrape(client, {"authorization": "Bearer k"})
        scrape(client, {"x-api-key": "k"})


@pytest.mark.clause("METRIC-003")
def test_it_needs_neither_log_nor_intervals(nano: Path) -> None:
    with serving(nano, RecordingEngine(), (*MODEL, "--log-stats-interval-ms", "0")) as client:
        client.chat()
        scraped = scrape(client)
    assert scraped["generation_tokens_total"] == 1
    assert scraped.outcome("completed") == 1


@pytest.mark.clause("METRIC-004")
def test_it_outlives_the_engine(nano: Path) -> None:
    """The worker of the in-process host ends with its device."""
    script = Script(plays={"1": Play((Step(fail="device"),))})
    with serving(nano, RecordingEngine(script), MODEL) as client:
        assert scrape(client)["engine_ready"] == 1
        client.chat(seed=2)
        assert client.chat(seed=1).status == 503
        assert client.get("/health").status == 503
        after = scrape(client)
    assert after["engine_ready"] == 0
    assert (after.outcome("completed"), after.outcome("failed")) == (1, 1)


@pytest.mark.clause("METRIC-005")
def test_counters_begin_at_zero_with_each_server(nano: Path, reference_engine: SerialEngine) -> None:
    for _ in range(2):
        with serving(nano, reference_engine, MODEL) as client:
            names = {name: value for (name, _), value in scrape(client).samples.items()}
            assert {value for name, value in names.items() if name.endswith("_total")} <= {0.0}, names
            client.chat(max_tokens=3)
            assert scrape(client)["generation_tokens_total"] > 0


@pytest.mark.clause("METRIC-006", "METRIC-007")
def test_identity_and_limits(nano: Path) -> None:
    arguments = (*MODEL, "--max-concurrency", "2", "--max-context", "4096")
    with serving(nano, RecordingEngine(), arguments) as client:
        scraped = scrape(client)
    ((labels, value),) = (
        (dict(labels), value)
        for (name, labels), value in scraped.samples.items()
        if name == "ninfer_model_info"
    )
    assert value == 1
    assert (labels["model"], labels["speculative_backend"]) == ("nano", "none")
    assert (scraped["max_concurrency"], scraped["max_context_tokens"]) == (2, 4096)


@pytest.mark.clause("METRIC-008")
@pytest.mark.clause_early("METRIC-009")
def test_gauges_follow_the_requests(nano: Path) -> None:
    prefilling = Play((Step(wait_s=0.3), Step(progress=1), Step(wait_s=60)))
    script = Script(plays={"1": SLOW, "2": prefilling})
    with serving(nano, RecordingEngine(script), MODEL) as client:
        with running(client, seed=1), client.open_chat(seed=1), client.open_chat(seed=1):
            eventually(lambda: scrape(client)["requests_waiting"] == 2)
            scraped = scrape(client)
            assert (scraped["requests_running"], scraped["requests_paused"]) == (1, 0)
            assert scraped["requests_decode_ready"] == 1
        eventually(lambda: scrape(client)["requests_running"] == 0)
        with client.open_chat(seed=2, stream=True):
            eventually(lambda: scrape(client)["requests_prefilling"] == 1)
            assert scrape(client)["requests_running"] == 1
        eventually(lambda: scrape(client)["requests_running"] == 0)
        idle = scrape(client)
    gauges = ("waiting", "paused", "prefilling", "decode_ready", "replaying", "materializing")
    assert [idle[f"requests_{name}"] for name in gauges] == [0] * 6


def test_a_request_that_left_is_gone_from_the_gauges(nano: Path) -> None:
    """Report B42: a client that goes away while it is queued was never prefilled."""
    with serving(nano, RecordingEngine(Script(default=SLOW)), MODEL) as client:
        with running(client):
            with client.open_chat():
                eventually(lambda: scrape(client)["requests_waiting"] == 1)
            eventually(lambda: scrape(client)["requests_waiting"] == 0)
            prompts = scrape(client)["prompt_tokens_total"]
        eventually(lambda: scrape(client)["requests_running"] == 0)
        assert scrape(client)["prompt_tokens_total"] == prompts
        client.chat(max_tokens=1)
        assert scrape(client)["prompt_tokens_total"] == 2 * prompts


@pytest.mark.clause("METRIC-015", "METRIC-016")
def test_output_tokens(nano: Path, reference_engine: SerialEngine) -> None:
    """Two answers of 50 tokens, one with the close of its thinking inserted."""
    asked = {"max_tokens": 50, "temperature": 0, "ignore_eos": True}
    budget = ("--default-thinking-budget", "8", "--thinking-budget-message", "ok")
    with serving(nano, reference_engine, (*MODEL, *budget)) as client:
        for thinking in (False, True):
            before = scrape(client)
            usage = client.chat(**asked, enable_thinking=thinking).json["usage"]
            after = scrape(client)
            assert usage["completion_tokens"] == 50
            assert after["generation_tokens_total"] - before["generation_tokens_total"] == 50
            assert after["decode_tokens_total"] - before["decode_tokens_total"] == 49


@pytest.mark.clause_early("METRIC-011", "METRIC-013")
def test_input_tokens(nano: Path, reference_engine: SerialEngine) -> None:
    with serving(nano, reference_engine, MODEL) as client:
        prompt = client.chat(max_tokens=1).json["usage"]["prompt_tokens"]
        scraped = scrape(client)
    assert scraped["prompt_tokens_total"] == scraped["prefill_tokens_total"] == prompt
    assert scraped["prompt_tokens_cached_total"] == scraped["replayed_tokens_total"] == 0


def deltas(client: Client, act: Callable[[], Any]) -> Callable[[str], float]:
    before = scrape(client)
    act()
    after = scrape(client)
    return lambda name: after[name] - before[name]


@pytest.mark.clause("METRIC-032")
def test_each_attempt_has_one_outcome(nano: Path) -> None:
    script = Script(plays={"1": SLOW, "2": FAILS})
    long = [{"role": "user", "content": "a b c " * 400}]
    with serving(nano, RecordingEngine(script), (*MODEL, "--max-context", "512")) as client:
        assert client.chat(seed=3).status == 200
        assert client.chat(seed=2).status == 500
        assert client.chat(messages=long).status == 400
        with running(client, seed=1):
            pass
        eventually(lambda: scrape(client).outcome("cancelled") == 1)
        scraped = scrape(client)
    outcomes = ("completed", "cancelled", "failed", "rejected")
    assert [scraped.outcome(name) for name in outcomes] == [1, 1, 1, 1]


@pytest.mark.clause("METRIC-034")
def test_what_is_no_attempt_is_not_counted(nano: Path) -> None:
    turns = [{"role": "user", "content": "hi"}]
    with serving(nano, RecordingEngine(), MODEL) as client:
        before = scrape(client).counters
        client.request("POST", "/v1/chat/completions", b"{")
        client.chat(model="wrong")
        client.request("POST", "/v1/messages/count_tokens", {"model": "m", "messages": turns})
        client.request("POST", "/v1/responses/input_tokens", {"model": "nano", "input": "hi"})
        assert scrape(client).counters == before


class AskedHost(InProcessHost):
    """Counts what the server asks of its engine."""

    def __init__(self, engine: SerialEngine) -> None:
        super().__init__(engine)
        self.asked = 0

    def submit(self, *arguments: Any) -> None:
        super().submit(*arguments)
        self.asked += 1

    def cancel(self, request_id: str) -> None:
        super().cancel(request_id)
        self.asked += 1


@contextmanager
def behind_another(
    client: Client, engine: HeldEngine, host: AskedHost, seconds: float, **members: Any
) -> Iterator[None]:
    """A stream that has begun after it waited so long for another request, which has ended."""
    first = threading.Thread(target=lambda: client.chat(seed=1))
    first.start()
    eventually(lambda: host.asked == 1)
    with client.open_chat(stream=True, max_tokens=FOREVER, **members) as second:
        eventually(lambda: host.asked == 2)
        time.sleep(seconds)
        engine.going.set()
        read_until(second, b"reasoning_content")
        first.join()
        yield


@pytest.mark.clause("METRIC-035")
def test_the_first_token_is_observed_when_it_comes(nano: Path) -> None:
    """A request that waited two seconds shows them while it still runs; a refused one shows nothing."""
    engine = HeldEngine(saying("x", s2=SLOW))
    host, name = AskedHost(engine), "time_to_first_token_seconds"
    with serving_host(nano, host, ("--port", "0", *MODEL, "--max-context", "512")) as client:
        with behind_another(client, engine, host, 2.0, seed=2):
            scraped = scrape(client)
            assert scraped["requests_running"] == 1
            assert scraped[f"{name}_count"] == 2
            assert scraped.value(f"ninfer_{name}_bucket", le="1.0") == 0
            assert scraped[f"{name}_sum"] >= 2 + 2
        client.chat(messages=[{"role": "user", "content": "a b c " * 400}])
        assert scrape(client)[f"{name}_count"] == 2


@pytest.mark.clause("METRIC-036", "METRIC-037", "METRIC-038")
def test_durations_of_settled_requests(nano: Path) -> None:
    """Completed and cancelled ones; a failure is only counted. One had waited for a second."""
    engine = HeldEngine(saying("x", s2=FAILS, s3=SLOW))
    host, began = AskedHost(engine), time.monotonic()
    with serving_host(nano, host, ("--port", "0", *MODEL)) as client:
        with behind_another(client, engine, host, 1.0, seed=3):
            elapsed = time.monotonic() - began
        eventually(lambda: scrape(client).outcome("cancelled") == 1)
        client.chat(seed=2)
        scraped = scrape(client)
    assert scraped["request_duration_seconds_count"] == 2
    assert scraped["request_queue_seconds_count"] == 2
    assert 1 <= scraped["request_queue_seconds_sum"] < 2 * elapsed
    for name in ("time_to_first_token", "request_duration", "request_queue"):
        check_buckets(scraped, f"ninfer_{name}_seconds")


def check_buckets(scraped: Scrape, name: str) -> None:
    """Cumulative, up to +Inf, which is the count."""
    buckets = [
        (float(dict(labels)["le"]), value)
        for (sample, labels), value in scraped.samples.items()
        if sample == f"{name}_bucket"
    ]
    assert buckets == sorted(buckets)
    assert [value for _, value in buckets] == sorted(value for _, value in buckets)
    assert buckets[-1] == (float("inf"), scraped.value(f"{name}_count"))


@pytest.mark.clause("METRIC-039")
def test_labels_are_bounded(nano: Path) -> None:
    """Report 224e: made-up models, paths and texts leave the series as they were."""
    with serving(nano, RecordingEngine(), MODEL) as client:
        before = scrape(client)
        for number in range(250):
            secret = f"made-up-{number}"
            client.chat(model=secret)
            client.get(f"/v1/{secret}")
            messages(client, model=secret, metadata={"user_id": secret}, max_tokens=1)
            client.chat(user=secret, messages=[{"role": "user", "content": secret}], max_tokens=1)
        after = scrape(client)
    assert set(after.samples) == set(before.samples)
    assert "made-up" not in after.text
    assert after.outcome("completed") == 500


@pytest.mark.clause_early("METRIC-040")
def test_scrapes_ask_nothing_of_the_engine_and_reset_nothing(nano: Path) -> None:
    """The units of an answer are the same beside 100 scrapes a second, and at idle there are none.

    What scraping costs in tokens a second is measured by ``tools.bench.scrape``.
    """
    asked = {"temperature": 0, "max_tokens": 300}
    with serving_fast(nano, ("--no-prefix-reuse",)) as (client, host):
        slow(host, 0.002)
        units: list[list[tuple[str, int]]] = []
        for scraping in (False, True):
            before = len(host.program.units)
            with ThreadPoolExecutor(1) as pool:
                answer = pool.submit(client.chat, **asked)
                while scraping and not answer.done():
                    scrape(client)
                    time.sleep(0.005)
                assert answer.result().status == 200
            units.append(host.program.units[before:])
        assert units[0] == units[1]
        eventually(lambda: scrape(client)["requests_running"] == 0)
        idle, worked = scrape(client), len(host.program.units)
        for _ in range(100):
            assert scrape(client).counters == idle.counters
        assert len(host.program.units) == worked
        assert host.submitted == 2


def test_responses_are_counted_like_chat(nano: Path, log: Log) -> None:
    with serving(nano, RecordingEngine(), (*MODEL, *log.arguments)) as client:
        for act in (client.chat, lambda: messages(client), lambda: responses(client)):
            added = deltas(client, act)
            assert added("generation_tokens_total") == 1
            assert added("time_to_first_token_seconds_count") == 1
        assert len(log.done(3)) == 3
