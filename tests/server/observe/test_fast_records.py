"""The fast engine in the request log, the metrics and the console: growth, time, intervals."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest

from ninfer.server.main import main
from tests.server.fast_client import Stream, eventually
from tests.server.fast_host import HELD_S, FastHost, serving_fast
from tests.server.observe.fast_stage import ASKED, slow, totals, turn
from tests.server.observe.lines import Line, Log
from tests.server.observe.scrape import scrape


@pytest.mark.clause("JLOG-018", "OPT-008")
def test_resolved_capacities(
    nano: Path, log: Log, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--max-concurrency", "2", "--max-context", "4096")
    with serving_fast(nano, (*arguments, *log.arguments)) as (_, host):
        engine, memory = log.start["engine"], log.start["memory"]
        capacity = int(host.ledger.partition("kv_capacity_tokens=")[2].split()[0])
    assert (engine["max_concurrency"], engine["max_context"]) == (2, 4096)
    assert (engine["kv_capacity_mode"], engine["kv_capacity"]) == ("auto", capacity)
    assert engine["context_cache"]["kind"] == "hybrid"
    assert engine["context_cache"]["device_snapshot_slots"] == 4
    assert engine["context_cache"]["host_capacity_bytes"] == 0
    assert memory["kv_payload_bytes"] == engine["kv_pages"] * memory["kv_page_bytes"]
    explicit = Log(tmp_path / "explicit.jsonl")
    with serving_fast(nano, ("--kv-capacity", "16384", *explicit.arguments)):
        engine = explicit.start["engine"]
    assert (engine["kv_capacity_mode"], engine["kv_capacity"]) == ("explicit", 16384)
    assert main([str(nano), "--kv-capacity", "banana"]) == 2
    assert "--kv-capacity" in capsys.readouterr().err


@pytest.mark.clause("OPT-009")
def test_capacity_without_reuse(nano: Path, log: Log) -> None:
    with serving_fast(nano, ("--no-prefix-reuse", "--max-context", "4096", *log.arguments)):
        engine = log.start["engine"]
    assert engine["kv_capacity"] == 4096
    assert engine["context_cache"]["enabled"] is False


@pytest.mark.clause("OPT-016")
def test_prefill_chunk(nano: Path, log: Log, tmp_path: Path) -> None:
    with serving_fast(nano, log.arguments):
        assert log.start["engine"]["prefill_chunk"] == 1024
    small = Log(tmp_path / "small.jsonl")
    with serving_fast(nano, ("--prefill-chunk", "256", *small.arguments)) as (client, _):
        assert small.start["engine"]["prefill_chunk"] == 256
        asked = ASKED | {"messages": turn(2500), "max_tokens": 1, "return_progress": True}
        with Stream(client, **asked) as stream:
            payloads = stream.payloads()
    done = [entry["prompt_progress"]["processed"] for entry in payloads if "prompt_progress" in entry]
    assert len(done) >= 10
    assert all(0 < after - before <= 256 for before, after in pairwise(done))


@pytest.mark.clause("JLOG-070", "JLOG-073", "JLOG-075", "LOG-015")
def test_where_a_requests_time_went(nano: Path, log: Log, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ninfer.server")
    with serving_fast(nano, log.arguments) as (client, _):
        count = client.chat(**ASKED, messages=turn(100), max_tokens=0).json["usage"]["prompt_tokens"]
        client.chat(**ASKED, messages=turn(2048 - count + 100), max_tokens=9)
        client.chat(**ASKED, messages=turn(3), max_tokens=300)
        silent, short, long = log.done(3)
    assert silent["first_output_timing"] is None
    assert short["result"]["prompt_tokens"] == 2048
    assert short["engine_timing"]["units"]["prefill"] >= 2
    assert short["engine_timing"]["decode"]["rounds"] == 8
    for line in (short, long):
        first, whole = line["first_output_timing"], line["engine_timing"]
        assert 0 < first["elapsed_seconds"] <= line["timings_seconds"]["total"]
        assert first["initial_queue_seconds"] + first["initial_binding_seconds"] <= first["elapsed_seconds"]
        assert first["paused_seconds"] == 0
        assert first["engine"]["device_wait_exposed_seconds"] < whole["device_wait_exposed_seconds"]
        assert first["engine"]["host_exposed_seconds"]["total"] < whole["host_exposed_seconds"]["total"]
        assert first["prefill"]["wait_seconds"] > 0
        assert set(first["replay"].values()) == {0}
    done = [record.message for record in caplog.records if " done " in record.message][-1]
    assert re.search(r"decode [\d.]+k? tok/s", done)
    assert re.search(r"total [\d.]+ (ms|s)", done)
    assert len(repr(long["timings_seconds"]["decode"])) > 8


class Looks:
    """Rounds of 3 ms, of which at most 40 follow a look, however late the next one comes."""

    def __init__(self, host: FastHost) -> None:
        self._program, self._looked = host.program, threading.Condition()
        self.note()
        host.program.before = self._before

    def note(self) -> None:
        """Somebody looked."""
        with self._looked:
            self._end = len(self._program.rounds) + 40
            self._looked.notify()

    def _before(self, kind: str) -> None:
        if kind == "round":
            time.sleep(0.003)
            with self._looked:
                assert self._looked.wait_for(lambda: len(self._program.rounds) < self._end, HELD_S)


@pytest.mark.clause("METRIC-009", "METRIC-022", "METRIC-023", "METRIC-026", "START-008")
def test_occupancy_and_work(nano: Path) -> None:
    """A prompt held in its prefill; growth page by page; what stays at idle; where the time went."""
    began = time.monotonic()
    with serving_fast(nano, ("--max-context", "2048")) as (client, host):
        eventually(lambda: scrape(client)["device_kv_capacity_pages"])
        empty = scrape(client)
        host.program.going.clear()
        with Stream(client, **ASKED, messages=turn(640), max_tokens=1):
            eventually(lambda: scrape(client)["requests_prefilling"] == 1)
            held = scrape(client)
            assert held["requests_prefilling"] <= held["requests_running"] == 1
            host.program.going.set()
        eventually(lambda: scrape(client)["requests_running"] == 0)
        kept = scrape(client)
        assert kept["device_kv_used_pages"] >= 10
        used, looks = list[float](), Looks(host)
        with Stream(client, **ASKED, messages=turn(5), max_tokens=400):
            eventually(lambda: scrape(client)["requests_running"])
            while (seen := scrape(client))["requests_running"]:
                used.append(seen["device_kv_used_pages"])
                looks.note()
                time.sleep(0.05)
        idle = scrape(client)
        elapsed = time.monotonic() - began
    assert used == sorted(used)
    assert len(set(used)) >= 4
    assert (
        idle["device_kv_capacity_pages"]
        == empty["device_kv_capacity_pages"]
        == kept["device_kv_capacity_pages"]
    )
    assert empty["device_state_capacity_slots"] == 4
    assert 0 < idle["device_state_used_slots"] <= 4
    phases = (
        "engine_boundary",
        "program_submit",
        "program_post",
        "engine_commit_output",
        "engine_maintenance",
    )
    spent = [idle.value("ninfer_host_work_seconds_total", phase=phase) for phase in phases]
    assert all(value > 0 for value in spent)
    assert idle["device_wait_seconds_total"] > 0
    assert sum(spent) + idle["device_wait_seconds_total"] <= elapsed
    assert sum(name == "ninfer_host_work_seconds_total" for name, _ in idle.samples) == 5


@pytest.mark.clause(
    "JLOG-084", "JLOG-085", "JLOG-086", "JLOG-087", "JLOG-088", "JLOG-098", "JLOG-099", "JLOG-100",
    "JLOG-101", "JLOG-102", "LOG-019", "LOG-020", "OPT-027",
)  # fmt: skip
def test_intervals(nano: Path, log: Log, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ninfer.server")
    with serving_fast(nano, ("--log-stats-interval-ms", "100", *log.arguments)) as (client, host):
        slow(host, 0.004)
        usage = client.chat(**ASKED, messages=turn(1000), max_tokens=129).json["usage"]
        log.until(lambda: log.lines("throughput"))
        time.sleep(0.4)  # an idle interval or more
        again = client.chat(**ASKED, messages=turn(1000), max_tokens=1).json["usage"]
        with Stream(client, **ASKED, messages=turn(3), max_tokens=100) as running:
            running.wait()
            slow(host, 0.1)  # until an interval has seen both waiting
            waiting = [client.open_chat(**ASKED, max_tokens=1) for _ in range(2)]
            log.until(lambda: [line for line in log.lines("throughput") if line["scheduler"]["waiting"] == 2])
            slow(host, 0.004)
            running.payloads()
            for sock in waiting:
                sock.recv(1)
                sock.close()
        log.done(5)
    lines = log.lines("throughput")
    prompt = usage["prompt_tokens"]
    done = [line["result"] for line in log.lines("request_done")]
    assert totals(lines, lambda line: line["tokens"]["committed_decode"]) == 128 + 99
    computed = totals(lines, lambda line: line["tokens"]["computed_prefill"])
    assert computed == sum(result["computed_prefill_tokens"] for result in done)
    assert prompt - again["prompt_tokens_details"]["cached_tokens"] <= 65
    for line in lines:
        check_interval(line)
    (full,) = [line for line in lines if line["scheduler"]["waiting"] == 2][:1]
    assert full["scheduler"]["running"] == 1
    assert max(line["device_kv_growth_lease_pages"] for line in lines) > 0
    assert lines[-1]["device_kv_growth_lease_pages"] == 0
    hits = [line["context_cache"]["selections"]["checkpoint"] for line in lines]
    assert sum(hits) == 1
    shown = [record.message for record in caplog.records if record.message.startswith("throughput ")]
    assert len(shown) == len(lines)
    assert totals(lines, lambda line: 1) < 60


def check_interval(line: Line) -> None:
    work, batch = line["host_work"], line["decode_batch"]
    phases = {name: value for name, value in work["elapsed_seconds"].items() if name != "total"}
    assert work["elapsed_seconds"]["total"] == pytest.approx(sum(phases.values()), abs=1e-12)
    spent = work["elapsed_seconds"]["total"] + work["device_wait_seconds"]
    assert sum(work["work_class_seconds"].values()) == pytest.approx(spent, abs=1e-9)
    assert spent <= line["interval_seconds"] + 1e-3
    assert (
        work["detail_subset_seconds"]["stats_publication"]
        <= work["elapsed_seconds"]["engine_maintenance"] + 1e-9
    )
    normalised = [name for name in work if "_per_r" in name]
    if batch["rounds"]:
        assert batch["average_size"] == batch["row_rounds"] / batch["rounds"]
        assert all(work[name] is not None for name in normalised)
    else:
        assert batch["average_size"] is None
        assert all(work[name] is None for name in normalised)


@pytest.mark.clause("LOG-022", "LOG-023")
def test_the_pretty_interval(nano: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ninfer.server")

    def shown() -> list[str]:
        return [record.message for record in caplog.records if record.message.startswith("throughput ")]

    with serving_fast(nano, ("--log-stats-interval-ms", "100")) as (client, host):
        time.sleep(0.5)
        assert shown() == []
        slow(host, 0.004)
        with Stream(client, **ASKED, messages=turn(3), max_tokens=250) as stream:
            stream.payloads()
        found = shown()
        eventually(lambda: scrape(client)["requests_running"] == 0)
        time.sleep(0.3)
        count = len(shown())
        time.sleep(0.4)
        assert len(shown()) == count
    pattern = (
        r"throughput decode [\d.]+k? tok/s \(\d+ tok\), running 1 \(prefill 0, decode 1\), batch 1\.00, "
        r"host [\d.]+ m?s \([\d.]+%\)"
    )
    assert [line for line in found if re.fullmatch(pattern, line)], found


def test_intervals_are_off_at_zero(nano: Path, log: Log, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ninfer.server")
    with serving_fast(nano, ("--log-stats-interval-ms", "0", *log.arguments)) as (client, _):
        client.chat(**ASKED, max_tokens=20)
        time.sleep(0.2)
    assert log.lines("throughput") == []
    assert not [record for record in caplog.records if "throughput" in record.message]


@pytest.mark.clause("JLOG-049")
def test_a_thinking_budget(nano: Path, log: Log) -> None:
    with serving_fast(nano, ("--thinking-budget-message", "ok", *log.arguments)) as (client, _):
        body = {"model": "nano", "max_tokens": 2000, "temperature": 0, "messages": turn(3)}
        thinking = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
        client.request("POST", "/v1/messages", body | thinking)
        client.chat(temperature=0, max_tokens=20)
        capped, free = (line["result"] for line in log.done(2))
    assert (capped["thinking_control_applied"], capped["model_thinking_tokens"]) == (True, 1024)
    assert capped["thinking_control_tokens"] > 0
    assert (free["thinking_control_applied"], free["thinking_control_tokens"]) == (False, 0)


@pytest.mark.clause("LOG-004")
def test_engine_records_carry_their_prefix(nano: Path, log: Log, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    def before(unit: str) -> None:
        raise MemoryError("a unit too large")

    with serving_fast(nano, log.arguments) as (client, host):
        host.program.before = before
        assert client.chat(**ASKED, max_tokens=3).error["code"] == "insufficient_memory"
    (record,) = (r for r in caplog.records if "out of memory" in r.message)
    assert record.message.startswith("engine | worker out of memory: ")
    assert record.levelname == "WARNING"
    assert json.dumps(log.lines("request_error")[0]["error"]["code"]) == '"insufficient_memory"'


def test_case_257_queue_time_and_memory_are_told(nano: Path, log: Log) -> None:
    """Report 18: memory, acceptance and queue time, as JSON as well as for Prometheus."""
    with serving_fast(nano, log.arguments) as (client, _):
        client.chat(**ASKED, max_tokens=3)
        (line,) = log.done()
        scraped = scrape(client)
        memory = log.start["memory"]
    assert line["engine_timing"]["queue_wait_seconds"] >= 0
    assert scraped["request_queue_seconds_count"] == 1
    assert memory["weights"]["capacity_bytes"] > 0
    assert {"drafted_tokens", "accepted_tokens"} <= set(line["speculative"])
    assert "ninfer_spec_decode_accepted_tokens_total 0.0" in scraped.text
