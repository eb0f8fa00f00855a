"""The agentic workload: the plan, the ideal cache by hand, and growth whatever is answered."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tools.test_bench_serve import END, HEAD, Server, chunk, event, usage
from tools.bench.agentic import _arms, arguments_of, line, ratio, summarise
from tools.bench.agentic_drive import Lockstep, Result, Run
from tools.bench.agentic_ideal import BLOCK, IdealCache
from tools.bench.agentic_plan import NEW_PROMPTS, PROFILES, Profile, make_plan, request_count
from tools.bench.agentic_time import breakdown, read_log

SMALL = Profile("small", 400, 8, 0.05)


class Words:
    """Stands in for a renderer: a token is a character code."""

    def prompt(self, messages: list[dict[str, str]], template: dict[str, bool]) -> np.ndarray:
        return np.array([ord(letter) for message in messages for letter in message["content"]], np.int32)

    def whole(
        self, messages: list[dict[str, str]], answer: dict[str, str], template: dict[str, bool]
    ) -> np.ndarray:
        return self.prompt([*messages, answer], template)


def test_the_plan_is_the_seeds() -> None:
    profile = PROFILES["tiny"]
    assert make_plan(profile, 0.3, 7) == make_plan(profile, 0.3, 7)
    assert make_plan(profile, 0.3, 7) != make_plan(profile, 0.3, 8)


def test_the_plan_holds_the_workload() -> None:
    sessions = make_plan(PROFILES["full"], 1.0)
    everyone = [one for session in sessions for one in session.everyone()]
    assert sorted(one.name for one in everyone if not one.is_main) == sorted(
        [f"explore-{n}" for n in range(1, 8)] + ["review-1", "review-2", "survey-1", "survey-2"]
    )
    assert 120 <= request_count(sessions) <= 140
    acts = [turn.act for one in everyone for turn in one.turns]
    assert {act: acts.count(act) for act in ("abort", "compact", "clear", "side", "retry")} == {
        "abort": 1,
        "compact": 1,
        "clear": 1,
        "side": 2,
        "retry": 2,
    }
    words = [len(" ".join((one.system, *one.history)).split()) for one in sessions]
    assert [round(count / 1000) for count in words] == pytest.approx([85, 60, 25], abs=12)


def test_scale_stretches_loops_only() -> None:
    counts = [request_count(make_plan(PROFILES["tiny"], scale)) for scale in (0.1, 0.5, 1.0, 2.0)]
    assert counts == sorted(counts)
    assert counts[-1] > 1.5 * counts[2]


def test_the_ideal_cache_by_hand() -> None:
    ideal = IdealCache()
    first = np.arange(3 * BLOCK + 5, dtype=np.int32)
    assert ideal.reach(first) == 0
    ideal.add(first)
    assert ideal.reach(first) == 3 * BLOCK
    assert ideal.reach(first[: 3 * BLOCK]) == 2 * BLOCK, "the last token is always computed"
    other = first.copy()
    other[BLOCK] += 1
    assert ideal.reach(other) == BLOCK
    assert ideal.reach(first[1:]) == 0


def test_rounds_begin_together() -> None:
    lockstep, order, turn = Lockstep(["A", "B"]), [], itertools.count()

    def play(name: str, rounds: int) -> None:
        for _ in range(rounds):
            lockstep.wait(name)
            order.append((next(turn), name))
        lockstep.leave(name)

    threads = [threading.Thread(target=play, args=pair) for pair in (("A", 3), ("B", 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(name for _, name in order[:2]) == ["A", "B"]
    assert [name for _, name in order[2:]] == ["A", "A"]


def test_growth_is_the_plans_whatever_is_answered() -> None:
    assert _said("a") == _said("quite another answer")


def _said(answer: str) -> list[tuple[str, ...]]:
    """What every request of a run said that the server did not, when all are answered so."""

    def play(body: dict[str, Any]) -> Iterator[bytes]:
        yield HEAD + chunk(event(answer)) + chunk(usage(100, 3)) + END

    server = Server(play)
    try:
        run = Run(server.url, SMALL, Words(), 1)  # type: ignore[arg-type]
        plan = make_plan(SMALL, 0.1)
        run.play(plan)
    finally:
        server.close()
    assert run.failures == []
    assert len(server.bodies) == request_count(plan) == len(run.results)
    return sorted(
        tuple(message["content"] for message in body["messages"] if message["role"] != "assistant")
        for body in server.bodies
    )


def test_figures_by_hand() -> None:
    results = [
        Result("A", "resume", False, 0.0, 2.0, 3.0, 1000, 0, 0, 5),
        Result("A", "loop", False, 4.0, 0.5, 1.0, 1200, 1000, 900, 5),
        Result("A", "loop", False, 6.0, 1.5, 2.0, 1300, 1200, 0, 5),
        Result("explore-1", "loop", False, 6.0, 0.1, 2.0, 500, 400, 400, 5),
        Result("C", "loop", True, 6.0, None, 0.1, 900, 800, 0, 0),
    ]
    figures = summarise(results, 8.0)
    assert figures["cached_share"] == 1300 / 4000
    assert figures["ideal_share"] == 2600 / 4000
    assert figures["of_ideal"] == 0.5
    assert (figures["main_turns"], figures["main_turns_whole"]) == (2, 1)
    assert (figures["ttft_new_ms"], figures["ttft_continuing_ms"]) == (2000, 500)
    assert "of_ideal=0.5000" in line("x", figures)
    assert "loop" not in NEW_PROMPTS


def test_arms_are_compared_by_medians_and_by_means() -> None:
    first = {"ttft_continuing_ms": 10.0, "ttft_continuing_mean_ms": 30.0}
    other = {"ttft_continuing_ms": 90.0, "ttft_continuing_mean_ms": 240.0}
    assert ratio(("cache", first), ("off", other)) == "ttft_continuing off/cache: median=9.0 mean=8.0"


def test_the_parts_of_a_wait_sum_up_to_it(tmp_path: Path) -> None:
    def record(name: str, queue: float, prefill: float, elapsed: float) -> dict[str, Any]:
        return {
            "event": "request_done",
            "request": {"http_request_id": name},
            "timings_seconds": {"prepare": 0.003},
            "first_output_timing": {
                "initial_queue_seconds": queue,
                "initial_binding_seconds": 0.001,
                "elapsed_seconds": elapsed,
                "prefill": {"submit_seconds": 0.002, "wait_seconds": prefill, "post_seconds": 0.0},
            },
        }

    log = tmp_path / "log"
    never = record("req_c", 0.0, 0.0, 0.0) | {"first_output_timing": None}
    records = [
        {"event": "server_start"},
        record("req_a", 0.1, 0.05, 0.2),
        record("req_b", 0.3, 0.1, 0.5),
        never,
    ]
    log.write_text("".join(json.dumps(one) + "\n" for one in records))
    results = [
        Result("A", "loop", False, 0.0, ttft, 1.0, prompt, 0, cached, 5, name)
        for name, ttft, prompt, cached in (
            ("req_a", 0.21, 1100, 1000),
            ("req_b", 0.52, 1400, 1200),
            ("req_c", 1.0, 9000, 0),
            ("", 1.0, 9000, 0),
        )
    ]
    figures = breakdown(results, read_log(log))
    parts = ("prepare_ms", "queue_ms", "bind_ms", "prefill_ms", "stalled_ms", "http_ms")
    assert sum(figures[name] for name in parts) == pytest.approx(1e3 * (0.21 + 0.52) / 2)
    assert [figures[name] for name in parts] == pytest.approx([3, 200, 1, 77, 72, 12])
    assert figures["computed_tokens"] == 150
    assert figures["prefill_ms_per_token"] == pytest.approx(154 / 300)
    assert breakdown(results[2:], read_log(log)) == {}


def test_arms_are_named() -> None:
    arguments = arguments_of(["--arm", "cache=", "--arm", "off=--no-prefix-reuse"])
    assert _arms(arguments) == [("cache", ""), ("off", "--no-prefix-reuse")]
    assert _arms(arguments_of([])) == [("default", "")]
    assert _arms(arguments_of(["--url", "http://x"])) == [("url", "")]
