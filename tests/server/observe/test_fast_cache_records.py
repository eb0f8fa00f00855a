"""What the prefix cache and pauses under pressure say in the request log, the metrics and the console."""

from __future__ import annotations

import logging
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.server.fast_client import Stream, eventually
from tests.server.fast_host import serving_fast
from tests.server.observe.fast_stage import ASKED, slow, totals, turn
from tests.server.observe.lines import Line, Log
from tests.server.observe.scrape import scrape

PRESSED = ("--max-concurrency", "2", "--max-context", "1024", "--kv-capacity", "1024")


@pytest.mark.clause("JLOG-044", "JLOG-046", "LOG-018", "METRIC-012", "METRIC-013", "SETTLE-008", "TIMING-005")
def test_what_was_reused(nano: Path, log: Log, caplog: pytest.LogCaptureFixture) -> None:
    """A first prompt, its next turn, another question behind a common beginning, and the first again."""
    caplog.set_level(logging.INFO, "ninfer.server")
    system = {"role": "system", "content": "3" * 400}
    first = [system, *turn(600)]
    asked = ASKED | {"max_tokens": 5}
    with serving_fast(nano, ("--cache-tap-min-gap", "64", *log.arguments)) as (client, _):
        answer = client.chat(**asked, messages=first).json["choices"][0]["message"]["content"]
        following = [*first, {"role": "assistant", "content": answer}, *turn(5, "1")]
        before = scrape(client)
        usages = [
            client.chat(**asked, messages=messages).json["usage"]
            for messages in (following, [system, *turn(30, "2")], first)
        ]
        after = scrape(client)
        lines = log.done(4)
    results = [line["result"] for line in lines]
    assert (results[0]["prefix_cache_hit_tokens"], results[0]["prefix_reuse_path"]) == (0, "root")
    paths = [result["prefix_reuse_path"] for result in results[1:]]
    assert paths[1] == "hybrid_snapshot"
    assert set(paths) <= {"hybrid_endpoint", "hybrid_snapshot"}
    for usage, result in zip(usages, results[1:], strict=True):
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        assert result["prefix_cache_hit_tokens"] == cached > 0
        assert result["prompt_tokens"] == usage["prompt_tokens"]
        assert result["computed_prefill_tokens"] == usage["prompt_tokens"] - cached
        assert (result["completion_tokens"], result["finish_reason"]) == (5, "output_limit")
    reused = sum(result["prefix_cache_hit_tokens"] for result in results[1:])
    computed = sum(result["computed_prefill_tokens"] for result in results[1:])
    assert after["prompt_tokens_cached_total"] - before["prompt_tokens_cached_total"] == reused
    assert after["prefill_tokens_total"] - before["prefill_tokens_total"] == computed
    done = [record.message for record in caplog.records if " done " in record.message]
    for line, result in zip(done, results, strict=True):
        hit, prompt = result["prefix_cache_hit_tokens"], result["prompt_tokens"]
        label = result["prefix_reuse_path"].removeprefix("hybrid_")
        assert f"cache {hit} ({100 * hit / prompt:.0f}%, {label})" in line


@pytest.mark.clause(
    "JLOG-063", "JLOG-066", "JLOG-078", "JLOG-079", "JLOG-080", "JLOG-081", "JLOG-083", "JLOG-090",
    "METRIC-011", "METRIC-014", "METRIC-021",
)  # fmt: skip
def test_a_pause_under_pressure(nano: Path, log: Log, tmp_path: Path) -> None:
    """Two requests that outgrow the pool together: the younger is paused, rebuilt by replay, and ends."""
    asked = ASKED | {"max_tokens": 600}
    with serving_fast(nano, (*PRESSED, "--log-stats-interval-ms", "50", *log.arguments)) as (client, host):
        slow(host, 0.001)
        with (
            Stream(client, **asked, messages=turn(200)) as older,
            Stream(client, **asked, messages=turn(200, "4")) as younger,
        ):
            older.wait()
            younger.wait()
            older.payloads()
            younger.payloads()
        done = {line["request"]["request_id"]: line for line in log.done(2)}
        eventually(lambda: scrape(client)["requests_running"] == 0)
        scraped = scrape(client)
    steps = log.lines("request_scheduling")
    (paused,) = {line["request"]["request_id"] for line in steps}
    work = done[paused]["generation"]["scheduling"]
    assert work["preemptions"] == work["replay_restores"] >= 1
    assert work["replayed_tokens"] > 0
    assert work["paused_ns"] > 0
    assert (work["snapshot_restores"], work["device_to_host_bytes"], work["host_to_device_bytes"]) == (
        0,
        0,
        0,
    )
    assert done[3 - paused]["generation"]["scheduling"]["preemptions"] == 0
    assert all(line["result"]["completion_tokens"] == 600 for line in done.values())
    check_transitions(steps, work["preemptions"])
    prompts = sum(line["result"]["prompt_tokens"] for line in done.values())
    assert scraped["prompt_tokens_total"] == prompts
    assert scraped["replayed_tokens_total"] == work["replayed_tokens"]
    computed = sum(line["result"]["computed_prefill_tokens"] for line in done.values())
    assert scraped["prefill_tokens_total"] == computed <= prompts
    assert scraped["preemptions_total"] == scraped["replay_restores_total"] == work["preemptions"]
    assert scraped["snapshot_restores_total"] == 0
    intervals = log.lines("throughput")
    assert totals(intervals, lambda line: line["scheduling"]["preemptions"]) == work["preemptions"]
    replayed = totals(intervals, lambda line: line["scheduling"]["replayed_tokens"])
    assert replayed == work["replayed_tokens"]
    assert all("preemptions" not in line["context_cache"] for line in intervals)


def check_transitions(steps: list[Line], pauses: int) -> None:
    """Each pause goes its way in order; its route is told once it is known."""
    order = ["pause_started", "paused", "restore_started", "restored", "replay_complete", "recovery_complete"]
    names = [line["transition"] for line in steps]
    assert names == [*order * pauses, "terminal"]
    times = [line["steady_ns"] for line in steps]
    assert times == sorted(times)
    assert all(line["elapsed_ns"] >= 0 for line in steps)
    for index in range(pauses):
        cycle = steps[index * len(order) : (index + 1) * len(order)]
        assert {line["preemption_index"] for line in cycle} == {index + 1}
        assert cycle[0]["route"] is None
        assert {line["route"] for line in cycle[2:]} == {"replay"}
        rebuilt, recovered = cycle[4]["progress"], cycle[5]["progress"]
        assert recovered["request_decode_tokens"] == rebuilt["request_decode_tokens"] + 1
        assert rebuilt["request_replayed_tokens"] > cycle[3]["progress"]["request_replayed_tokens"]


def test_without_a_log_no_transition_is_published(nano: Path) -> None:
    asked = ASKED | {"max_tokens": 600}
    with serving_fast(nano, PRESSED) as (client, host):
        with (
            Stream(client, **asked, messages=turn(200)) as older,
            Stream(client, **asked, messages=turn(200, "4")) as younger,
        ):
            older.payloads()
            younger.payloads()
        assert scrape(client)["preemptions_total"] >= 1
        assert not [event for event in host.published if type(event).__name__ == "SchedulingTransition"]


@pytest.mark.clause("JLOG-082")
def test_progress_tells_what_others_did_meanwhile(nano: Path, log: Log) -> None:
    """Global minus own deltas are the others' work: a third request decodes while the younger is rebuilt.

    The third comes late enough to fit beside the older one, and still runs when that has ended.
    """
    asked = ASKED | {"max_tokens": 600}
    late, going = threading.Event(), threading.Event()
    with serving_fast(nano, (*PRESSED, "--prefill-chunk", "64", *log.arguments)) as (client, host):

        def before(unit: str) -> None:
            if unit == "round" and len(host.program.rounds) == 490:
                late.set()
                assert going.wait(60)

        host.program.before = before
        with (
            Stream(client, **asked, messages=turn(200)) as older,
            Stream(client, **asked, messages=turn(200, "4")) as younger,
        ):
            assert late.wait(60)
            with Stream(client, **ASKED, messages=turn(3, "5"), max_tokens=250) as third:
                eventually(lambda: host.submitted == 3)
                going.set()
                older.payloads()
                younger.payloads()
                third.payloads()
        log.done(3)
    paused = log.lines("request_scheduling")[0]["request"]["request_id"]
    lines = [line for line in log.lines("request_scheduling") if line["request"]["request_id"] == paused]
    steps = [line["progress"] for line in lines]
    for before, after in pairwise(steps):
        for kind in ("prefill", "decode", "replayed"):
            assert others(kind, before, after) >= 0
            assert after[f"request_{kind}_tokens"] >= before[f"request_{kind}_tokens"]
    names = [line["transition"] for line in lines]
    rebuilding = steps[names.index("restored")], steps[names.index("replay_complete")]
    assert others("decode", *rebuilding) > 0
    assert others("replayed", *rebuilding) == others("prefill", *rebuilding) == 0


def others(kind: str, before: dict[str, int], after: dict[str, int]) -> int:
    """Tokens of a kind that other requests did between two steps of one."""
    done = {
        who: after[f"{who}_{kind}_tokens"] - before[f"{who}_{kind}_tokens"] for who in ("global", "request")
    }
    return done["global"] - done["request"]


@pytest.mark.clause("JLOG-091", "JLOG-092", "JLOG-093", "JLOG-094", "JLOG-095")
def test_the_hybrid_cache_in_intervals(nano: Path, log: Log) -> None:
    sizes = ("--max-concurrency", "2", "--max-context", "24576")
    arguments = ("--log-stats-interval-ms", "100", *sizes, *log.arguments)
    with serving_fast(nano, arguments) as (client, host):

        def ask(tokens: int, digit: str, most: int = 5) -> tuple[int, list[Line]]:
            """Cached tokens, and the intervals of this request alone."""
            before = len(log.lines("throughput"))
            usage = client.chat(**ASKED, messages=turn(tokens, digit), max_tokens=most).json["usage"]

            def own() -> list[Line]:
                lines = log.lines("throughput")[before:]
                decoded = totals(lines, lambda line: line["tokens"]["committed_decode"])
                return lines if decoded >= most - 1 else []

            own_lines: list[Line] = log.until(own)
            return usage["prompt_tokens_details"]["cached_tokens"], own_lines

        _, short = ask(1, "1")
        _, first = ask(640, "2", 100)  # the end of a shorter answer stands too near to the prompt's
        log.until(lambda: created(log) == 1)  # an answer's end is kept after it was told
        cached, second = ask(640, "2")
        frame = client.chat(**ASKED, messages=turn(1, "9"), max_tokens=0).json["usage"]["prompt_tokens"] - 1
        _, five = ask(640 - frame, "3")  # a prompt of ten blocks, and five tokens that fill no other
        host.program.going.clear()
        submitted, known = host.submitted, inserted(log)
        streams = [Stream(client, **ASKED, messages=turn(640 - frame, "4"), max_tokens=5) for _ in range(2)]
        eventually(lambda: host.submitted == submitted + 2)
        host.program.going.set()
        for stream in streams:
            with stream:
                stream.payloads()
        log.until(lambda: inserted(log) == known + 10)
        before = len(log.lines("throughput"))
        ask(20_000, "5")
    assert all("hybrid" not in line["context_cache"] for line in short)
    lines = hybrid(log.lines("throughput"))
    gauges = hybrid(first)[-1]
    assert gauges["device_blocks"] >= 10
    assert gauges["evictable_blocks"] <= gauges["device_blocks"] <= gauges["tree_blocks"]
    assert gauges["host_used_bytes"] <= gauges["host_capacity_bytes"]
    assert sum(line["blocks_inserted"] for line in hybrid(first)) >= 10
    assert sum(line["snapshot_hits"] for line in hybrid(second)) == 1
    assert sum(line["reused_tokens"] for line in hybrid(second)) == cached > 0
    assert sum(line["blocks_inserted"] for line in hybrid(five)) == 10
    assert sum(line["blocks_duplicate"] for line in lines) > 0  # of the same prompt sent twice at once
    assert sum(line["taps_created"] for line in hybrid(log.lines("throughput")[before:])) >= 1


def created(log: Log) -> int:
    """Snapshots of answers' ends so far."""
    return sum(line["endpoints_created"] for line in hybrid(log.lines("throughput")))


def inserted(log: Log) -> int:
    """Blocks that the tree has taken in so far."""
    return sum(line["blocks_inserted"] for line in hybrid(log.lines("throughput")))


def hybrid(lines: list[Line]) -> list[Line]:
    return [line["context_cache"]["hybrid"] for line in lines if "hybrid" in line["context_cache"]]


@pytest.mark.clause("JLOG-067", "LOG-005")
@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO])
def test_a_long_request_takes_pages_back_from_the_cache(
    nano: Path, log: Log, caplog: pytest.LogCaptureFixture, level: int
) -> None:
    """Two prompts fill the cache; a third, which shares nothing with them, needs their pages."""
    caplog.set_level(level, "ninfer")
    arguments = ("--max-context", "1024", "--kv-capacity", "1024", "--device-snapshot-slots", "8")
    with serving_fast(nano, (*arguments, *log.arguments)) as (client, _):
        for digit in "12":
            client.chat(**ASKED, messages=turn(350, digit), max_tokens=2)
        client.chat(**ASKED, messages=turn(800, "3"), max_tokens=2)
        lines = log.done(3)
    released = [record for record in caplog.records if "cached blocks released" in record.message]
    assert all(record.levelno == logging.DEBUG for record in released)
    assert all(record.message.startswith("engine | KV lease grown to ") for record in released)
    assert bool(released) == (level == logging.DEBUG)
    assert [line["result"]["prefix_cache_hit_tokens"] for line in lines] == [0, 0, 0]
    revoked = [line["generation"]["admission"]["revoked_checkpoints"] for line in lines]
    assert revoked[0] == 0
    assert revoked[2] > 0


@pytest.mark.clause("METRIC-010")
def test_a_restore_in_flight(nano: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving_fast(nano, ("--device-snapshot-slots", "8")) as (client, host):
        asked = ASKED | {"messages": turn(400), "max_tokens": 2}
        client.chat(**asked)
        assert scrape(client)["requests_materializing"] == 0
        going, memory = threading.Event(), host.program.memory
        resume = memory.resume

        def held(*arguments: Any) -> None:
            assert going.wait(30)
            resume(*arguments)

        monkeypatch.setattr(memory, "resume", held)
        with Stream(client, **asked) as stream:
            eventually(lambda: scrape(client)["requests_materializing"] == 1)
            going.set()
            stream.payloads()
        eventually(lambda: scrape(client)["requests_materializing"] == 0)
