"""Speed of a running server over HTTP: tokens per second, time to first token, gaps between pieces of text.

    ninfer-serve --max-concurrency 8 &
    python -m tools.bench.serve            # 64- and 200-token answers, one stream and eight; medians of five
    python -m tools.bench.serve --streams 4 --tokens 64 --repetitions 3
    python -m tools.bench.serve --prefill 8000 --prefill-chunk 1024     # two streams beside a long prompt

Every stream copies random words, one request after another (the bundled model goes on until ``--tokens``);
no two prompts are alike. Two lengths, because they ask for different things: of a short answer (a tool call,
a sentence) half of the time is its prompt's, in one of some paragraphs the rounds decide.

tok/s counts all completion tokens from the first request sent to the last answer ended, prompts included;
``decode`` counts each answer from its first text on. With ``--prefill`` two streams run while a prompt of
about that many tokens is taken in: their longest gap is compared with the time of two prefill chunks, a chunk
being its share of the same prompt taken in alone. Exits 1 when a stream breaks, when too many answers end by
themselves, or when the gap is longer.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tools.bench.prompts import copy_prompt
from tools.bench.streams import Answer, Client, LoadError, Stream

# Completion tokens a second by streams, for ninfer-tiny in bf16 (issue "the fast engine on CPU").
TARGETS = {1: 1000.0, 8: 1800.0}
# The bundled model now and then ends a copy early; what it gave counts, but most answers must be whole.
EARLY_SHARE = 0.25
_STREAMS_BESIDE_PREFILL = 2
_PIECES_BEFORE_PREFILL = 20


@dataclass(frozen=True, slots=True)
class Run:
    """One repetition of so many streams. Seconds, tokens per second; ``decode_rate`` of one answer."""

    streams: int
    completion_tokens: int
    rate: float
    decode_rate: float
    first_token: float
    gap_p50: float
    gap_p95: float
    gap_max: float


@dataclass(frozen=True, slots=True)
class Load:
    """What every stream asks: ``requests`` answers of ``tokens`` tokens, of prompts with ``words`` words."""

    tokens: int
    words: int
    requests: int


def summarise(streams: int, answers: Sequence[Answer]) -> Run:
    """The figures of one repetition."""
    tokens = sum(answer.completion_tokens for answer in answers)
    begin, end = min(answer.sent_at for answer in answers), max(answer.ended_at for answer in answers)
    gaps = sorted(gap for answer in answers for gap in answer.gaps) or [0.0]
    return Run(
        streams,
        tokens,
        tokens / (end - begin),
        statistics.median(answer.decode_rate for answer in answers),
        statistics.median(answer.first_token_s for answer in answers),
        quantile(gaps, 0.5),
        quantile(gaps, 0.95),
        gaps[-1],
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """The least of the ascending values that ``share`` of them do not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def measure(client: Client, streams: int, load: Load, repetitions: int, seeds: Iterator[int]) -> list[Run]:
    """Repetitions of the load, one more before them unmeasured. Errors: ``LoadError``."""
    runs = []
    for repetition in range(repetitions + 1):
        answers = client.in_turn(
            [
                [client.body(copy_prompt(load.words, next(seeds)), load.tokens) for _ in range(load.requests)]
                for _ in range(streams)
            ]
        )
        early = sum(answer.completion_tokens < load.tokens for answer in answers)
        if early > EARLY_SHARE * len(answers):
            raise LoadError(f"{early} of {len(answers)} answers ended by themselves before --tokens")
        if repetition:
            runs.append(summarise(streams, answers))
    return runs


def line(runs: Sequence[Run]) -> str:
    """One line over the repetitions: medians, and the largest gap of all; times in milliseconds."""
    middle = {
        name: statistics.median(getattr(run, name) for run in runs)
        for name in ("rate", "decode_rate", "first_token", "gap_p50", "gap_p95")
    }
    target = TARGETS.get(runs[0].streams)
    share = "" if target is None else f" target={target:.0f} reached={middle['rate'] / target:.2f}"
    return (
        f"streams={runs[0].streams} tok_s={middle['rate']:.1f} min={min(run.rate for run in runs):.1f} "
        f"max={max(run.rate for run in runs):.1f} decode_tok_s={middle['decode_rate']:.1f} "
        f"ttft_ms={1e3 * middle['first_token']:.1f} gap_p50_ms={1e3 * middle['gap_p50']:.2f} "
        f"gap_p95_ms={1e3 * middle['gap_p95']:.2f} gap_max_ms={1e3 * max(run.gap_max for run in runs):.2f} "
        f"completion_tokens={runs[0].completion_tokens}{share}"
    )


# --- a long prompt beside running streams ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stall:
    """One repetition: the long prompt alone, then beside two streams; seconds."""

    prompt_tokens: int
    alone: float
    beside: float
    longest_gap: float
    allowed: float


def stall(client: Client, prompt: Callable[[], str], load: Load, chunk: int, seeds: Iterator[int]) -> Stall:
    """Two running streams' longest gap while a prompt is taken in, and the time of two of its chunks."""
    (alone,) = client.answers([client.body(prompt(), 1)])
    chunks = -(-alone.prompt_tokens // chunk)
    running = [
        client.start(client.body(copy_prompt(load.words, next(seeds)), load.tokens))
        for _ in range(_STREAMS_BESIDE_PREFILL)
    ]
    client.run(done=lambda: all(len(stream.pieces) > _PIECES_BEFORE_PREFILL for stream in running))
    long = client.start(client.body(prompt(), 1))
    client.run()
    beside = long.answer()
    taken_in = (beside.sent_at, beside.arrivals[0])
    gaps = [gap for stream in running for gap in _gaps_during(stream, taken_in)]
    # A chunk's mean: later chunks of a prompt attend to more keys and take longer.
    allowed = 2 * alone.first_token_s / chunks
    return Stall(alone.prompt_tokens, alone.first_token_s, beside.first_token_s, max(gaps), allowed)


def _gaps_during(stream: Stream, moments: tuple[float, float]) -> list[float]:
    answer = stream.answer()
    if answer.arrivals[-1] < moments[1]:
        raise LoadError("a stream ended before the long prompt was taken in; give more --tokens")
    return answer.gaps_within(*moments)


def long_prompts(client: Client, tokens: int, seeds: Iterator[int]) -> Callable[[], str]:
    """Makes prompts of about ``tokens`` tokens, as the server counts them."""
    (few, many) = client.answers([client.body(copy_prompt(words, next(seeds)), 1) for words in (100, 300)])
    per_word = (many.prompt_tokens - few.prompt_tokens) / 200
    words = round((tokens - few.prompt_tokens) / per_word) + 100
    return lambda: copy_prompt(words, next(seeds))


def stall_line(stalls: Sequence[Stall]) -> str:
    """One line over the repetitions: medians, and the worst ratio of all."""
    alone, beside, gap, allowed = (
        1e3 * statistics.median(getattr(row, name) for row in stalls)
        for name in ("alone", "beside", "longest_gap", "allowed")
    )
    worst = max(row.longest_gap / row.allowed for row in stalls)
    return (
        f"prompt_tokens={stalls[0].prompt_tokens} alone_ms={alone:.0f} beside_ms={beside:.0f} "
        f"longest_gap_ms={gap:.1f} two_chunks_ms={allowed:.1f} ratio={gap / allowed:.2f} worst={worst:.2f}"
    )


def arguments_of(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--streams", type=_numbers, default=[1, 8])
    parser.add_argument(
        "--tokens", type=_numbers, help="output tokens of each answer (64,200; beside a prompt 300)"
    )
    parser.add_argument(
        "--words", type=int, help="words to copy in each prompt (half as many again as tokens)"
    )
    parser.add_argument("--requests", type=int, default=4, help="of each stream in one repetition")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--prefill", type=int, help="measure gaps beside a prompt of so many tokens instead")
    parser.add_argument("--prefill-chunk", type=int, default=1024, help="the server's")
    parser.add_argument("--no-ceiling", action="store_true", help="do not measure the read ceiling beside")
    parser.add_argument("--json", type=Path, help="write every repetition there")
    return parser.parse_args(argv)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _ceiling(arguments: argparse.Namespace) -> None:
    """The machine's read bandwidth, measured where the server idles."""
    if arguments.no_ceiling:
        return
    from tools.bench.ceilings import read_gb_s

    threads = len(os.sched_getaffinity(0))
    print(f"read_gb_s={read_gb_s(threads):.1f} threads={threads}", flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    arguments = arguments_of(argv)
    try:
        sys.exit(_measure(arguments))
    except (LoadError, OSError) as error:
        sys.exit(f"serve: {error}")


def _measure(arguments: argparse.Namespace) -> int:
    client, seeds = Client(arguments.url), itertools.count()
    lengths = arguments.tokens or ([64, 200] if arguments.prefill is None else [300])
    loads = [Load(tokens, arguments.words or 3 * tokens // 2, arguments.requests) for tokens in lengths]
    if arguments.prefill is not None:
        return _measure_stalls(client, loads[0], arguments, seeds)
    runs: list[Run] = []
    for load in loads:
        for streams in arguments.streams:
            _ceiling(arguments)
            found = measure(client, streams, load, arguments.repetitions, seeds)
            print(f"tokens={load.tokens} {line(found)}", flush=True)
            runs += found
    _ceiling(arguments)
    _write(arguments.json, [asdict(run) for run in runs])
    return 0


def _measure_stalls(client: Client, load: Load, arguments: argparse.Namespace, seeds: Iterator[int]) -> int:
    prompt = long_prompts(client, arguments.prefill, seeds)
    stalls = [
        stall(client, prompt, load, arguments.prefill_chunk, seeds) for _ in range(arguments.repetitions)
    ]
    print(stall_line(stalls))
    _write(arguments.json, [asdict(row) for row in stalls])
    return int(statistics.median(row.longest_gap / row.allowed for row in stalls) > 1)


def _write(path: Path | None, rows: list[dict[str, float]]) -> None:
    if path is not None:
        path.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
