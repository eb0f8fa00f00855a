"""What a follow-up of 50 tokens costs on a long unchanged history: the engine's own time to the first token.

    python -m tools.bench.follow_up                       # the bundled model; 4K, 16K and 64K of history

Each history is a prompt and an answer, which leaves an endpoint. Follow-ups then add 50 tokens of their own
and ask for one; in turn with them the bare program takes in 50 tokens at that place, which is what the
attention over the history alone makes longer. Exits 1 when the time to the first token grows by more than
that and 20 percent.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence

import numpy as np

from ninfer import bundled
from ninfer.engine.events import Delta, EngineEvent, Failed, Finished, Started
from ninfer.engine.requests import GenerationRequest, SamplingParameters
from ninfer.engine.settings import CacheSettings, EngineSettings
from ninfer.fast.engine import FastWorker
from ninfer.fast.program.program import Sampler
from ninfer.fast.start import open_worker

HISTORIES = (4096, 16_384, 65_536)
ADDED, ANSWER, ALLOWED = 50, 100, 1.2
_GREEDY = SamplingParameters(0.0, 1.0, 20, 0.0, 0.0, 0.0, 0)


class Bench:
    """The fast engine on this thread."""

    def __init__(self, longest: int) -> None:
        self.events: list[EngineEvent] = []
        settings = EngineSettings(
            "fast",
            str(bundled.path()),
            max_context=longest + 1024,
            kv_capacity=4 * longest,
            cache=CacheSettings(snapshot_slots=16),
        )
        self.worker: FastWorker = open_worker(settings, lambda loaded, total: None, self.events.append)
        self.vocabulary = self.worker._program.options.vocabulary

    def ask(self, tokens: np.ndarray, count: int) -> tuple[Started, Finished, list[int]]:
        """Run one request to its end."""
        self.events.clear()
        self.worker.submit(
            GenerationRequest(
                id="x",
                tokens=tokens.astype("<i4").tobytes(),
                positions=b"",
                initial_channel="content",
                sampling=_GREEDY,
                max_tokens=count,
                stop_token_ids=(),
                ignore_stop_tokens=True,
            )
        )
        while not self.worker.idle:
            self.worker.step()
        found = {type(event): event for event in self.events}
        assert Failed not in found, found[Failed]
        made = [token for event in self.events if isinstance(event, Delta) for token in event.token_ids]
        started, finished = found[Started], found[Finished]
        assert isinstance(started, Started)
        assert isinstance(finished, Finished)
        return started, finished, made

    def bare(self, history: int) -> float:
        """Seconds for the bare program to take in the added tokens behind a history, and draw."""
        program = self.worker._program
        lane = program.open_lane(history + ADDED)
        sampler = Sampler(_GREEDY, np.zeros(self.vocabulary, np.int32))
        tokens = np.arange(1, ADDED + 1, dtype=np.int32)
        axes = np.tile(np.arange(history, history + ADDED, dtype=np.int32), (3, 1))
        lane.frontier, lane.shift = history, 0
        began = time.perf_counter()
        program.first(lane, program.prefill(lane, tokens, axes), sampler)
        seconds = time.perf_counter() - began
        program.close_lane(lane)
        return seconds


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--history", type=lambda text: [int(n) for n in text.split(",")], default=HISTORIES)
    parser.add_argument("--repetitions", type=int, default=9)
    arguments = parser.parse_args(argv)
    bench, random = Bench(max(arguments.history)), np.random.default_rng(0)
    rows: list[tuple[int, float, float]] = []
    for history in arguments.history:
        prompt = random.integers(1, bench.vocabulary, history - ANSWER).astype(np.int32)
        _, _, made = bench.ask(prompt, ANSWER)
        before = np.concatenate([prompt, np.array(made, np.int32)])
        times, bares = [], []
        for _ in range(arguments.repetitions):
            bares.append(bench.bare(history))
            added = random.integers(1, bench.vocabulary, ADDED).astype(np.int32)
            started, finished, _ = bench.ask(np.concatenate([before, added]), 1)
            assert started.cached_tokens == len(before) - 1, "the follow-up did not begin at the answer's end"
            times.append(finished.usage.time_to_first_token_s)
        rows.append((history, statistics.median(times), statistics.median(bares)))
        print(
            f"history={history} cached={started.cached_tokens} ttft_ms={1e3 * rows[-1][1]:.2f} "
            f"bare_ms={1e3 * rows[-1][2]:.2f}",
            flush=True,
        )
    sys.exit(_judge(rows))


def _judge(rows: Sequence[tuple[int, float, float]]) -> int:
    """1 when a longer history costs more than its attention explains."""
    failed = 0
    _, first, first_bare = rows[0]
    for history, ttft, bare in rows[1:]:
        grown, explained = ttft - first, bare - first_bare
        failed |= grown > ALLOWED * explained
        print(f"history={history} grown_ms={1e3 * grown:.2f} attention_ms={1e3 * explained:.2f} "
              f"ratio={grown / explained:.2f} allowed={ALLOWED}")  # fmt: skip
    return int(failed)


if __name__ == "__main__":
    main()
