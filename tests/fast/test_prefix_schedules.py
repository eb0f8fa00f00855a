"""Drawn schedules of conversations, retries and cancellations under pressure: all end whole."""

from __future__ import annotations

import numpy as np
import pytest

from ninfer.engine.settings import CacheSettings
from ninfer.engine.statistics import EngineStatistics
from tests.fast.fake_program import Bench, answer, finish, names, token_ids
from tests.fast.test_prefix_reuse import ask, statistics, text


def play(seed: int, requests: int) -> EngineStatistics:
    """Conversations, retries, cancellations and faults under pressure: whoever finishes has its own
    answer.
    """
    random = np.random.default_rng(seed)
    lanes, pages = int(random.integers(1, 5)), int(random.integers(8, 40))
    options = CacheSettings(
        reuse=bool(random.random() < 0.9),
        snapshot_slots=int(random.integers(1, 12)),
        taps_per_request=int(random.integers(0, 6)),
        tap_ladder=int(random.choice([64, 128, 512])),
        tap_min_gap=int(random.choice([1, 64, 200])),
    )
    bench = Bench(cache=options, lanes=lanes, pages=pages, max_context=64 * pages)
    limit = 64 * pages
    histories = [text(number, int(random.integers(1, 40))) for number in range(1, 5)]
    asked: dict[str, tuple[int, list[int], int]] = {}
    for index in range(requests):
        which = int(random.integers(len(histories)))
        prompt, number = histories[which], which + 1
        grown = [*prompt, *(int(t) for t in random.integers(100, 1000, int(random.integers(0, 200))))]
        prompt = grown[: limit - 2]
        tokens = int(random.integers(0, min(200, limit - len(prompt))))
        ask(bench, str(index), prompt, tokens)
        asked[str(index)] = (number, prompt, tokens)
        if random.random() < 0.7:  # the next turn of this conversation, or a new branch of it
            histories[which] = [*prompt, *_fake_answer(number, tokens)][: limit // 2]
        elif random.random() < 0.3:
            histories[which] = prompt[: int(random.integers(1, len(prompt) + 1))]
        for _ in range(int(random.integers(0, 40))):
            bench.worker.step()
        if random.random() < 0.2:
            bench.worker.cancel(str(int(random.integers(0, index + 1))))
    bench.run(cycles=200_000)
    bench.program.check_integrity(*bench.worker._cache.kept)
    bench.worker._cache.index.clear()
    bench.program.check_integrity()
    for name, (_, prompt, tokens) in asked.items():
        last = finish(bench.of_name(name))
        produced = token_ids(bench.of_name(name))
        assert len(produced) == last.usage.completion_tokens
        assert len(produced) == tokens or last.reason == "cancelled"
        assert last.usage.cached_tokens < len(prompt)
        assert names(bench.of_name(name)).count("Started") <= 1
    return statistics(bench)


def _fake_answer(number: int, length: int) -> list[int]:
    return [answer(number, index) for index in range(length)]


@pytest.mark.parametrize("seed", range(12))
def test_drawn_schedules_end_whole(seed: int) -> None:
    play(seed, 40)


@pytest.mark.campaign
def test_a_thousand_schedules_without_deadlock(campaign_seed: int) -> None:
    pauses = hits = 0
    for index in range(1000):
        found = play(campaign_seed + index, 25)
        pauses += found.recovery.preemptions
        hits += 0 if found.cache.hybrid is None else found.cache.hybrid.snapshot_hits
    print(f"schedules=1000 pauses={pauses} snapshot_hits={hits}")
    assert pauses > 500
    assert hits > 1000
