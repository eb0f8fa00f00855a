"""Coding agents at work: what a prefix cache saves of the prompts that they send again and again.

    python -m tools.bench.agentic --scale 0.3                                  # the bundled model, own server
    python -m tools.bench.agentic --scale 0.3 --arm cache= --arm off="--no-prefix-reuse"
    python -m tools.bench.agentic --url http://127.0.0.1:8080 --profile full --artifact model.ninfer

Each arm is a server of this checkout with these options, started, loaded with the same plan and stopped;
with ``--url`` the one arm is a running server. Prints a line per arm: the share of prompt tokens that came
from the cache beside the share that an ideal one (unbounded memory, every 64-token frontier) reaches on the
same prompts, tokens prefilled, time to first token by class, main-session turns prefilled whole, wall time;
of an own server also where that time goes for continuing turns (means, from its request log). At the end, how
many times longer continuing turns wait in each other arm than in the first one, by medians and by means.
Exits 1 when a request failed: such a run says nothing.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ninfer import bundled
from tools.bench.agentic_drive import Result, Run
from tools.bench.agentic_ideal import Renderer
from tools.bench.agentic_plan import NEW_PROMPTS, PROFILES, Session, make_plan, request_count
from tools.bench.agentic_time import breakdown, parts_of, read_log
from tools.bench.server import running_server

# Enough for the longest session of the profile "tiny" with its answers.
CONTEXT = "--max-context 65536 --max-concurrency 2 --max-pending-requests 64 --pending-timeout-ms 600000"


def summarise(results: Sequence[Result], wall_s: float) -> dict[str, float]:
    """The figures of one arm; milliseconds for times to the first token. Aborted requests count nowhere."""
    whole = [one for one in results if not one.aborted]
    prompts = sum(one.prompt_tokens for one in whole)
    cached, ideal = sum(one.cached for one in whole), sum(one.ideal for one in whole)
    new = [one for one in whole if one.kind in NEW_PROMPTS]
    continuing = _continuing(results)
    mains = [one for one in continuing if len(one.session) == 1]
    return {
        "requests": len(results),
        "prompt_tokens": prompts,
        "cached_share": cached / prompts,
        "ideal_share": ideal / prompts,
        "of_ideal": cached / ideal if ideal else 0.0,
        "prefilled": prompts - cached,
        "main_turns": len(mains),
        "main_turns_whole": sum(one.cached == 0 for one in mains),
        "ttft_new_ms": _median_ms(new),
        "ttft_continuing_ms": _median_ms(continuing),
        "ttft_continuing_mean_ms": _mean_ms(continuing),
        "ttft_p90_ms": _p90_ms(whole),
        "wall_s": wall_s,
    }


def ratio(first: tuple[str, dict[str, float]], other: tuple[str, dict[str, float]]) -> str:
    """How many times longer continuing turns wait for their first token in another arm."""
    median, mean = (
        other[1][name] / first[1][name] for name in ("ttft_continuing_ms", "ttft_continuing_mean_ms")
    )
    return f"ttft_continuing {other[0]}/{first[0]}: median={median:.1f} mean={mean:.1f}"


def _continuing(results: Iterable[Result]) -> list[Result]:
    return [one for one in results if not one.aborted and one.kind not in NEW_PROMPTS]


def _times(results: Iterable[Result]) -> list[float]:
    return sorted(1e3 * one.ttft for one in results if one.ttft is not None) or [0.0]


def _median_ms(results: Iterable[Result]) -> float:
    return statistics.median(_times(results))


def _mean_ms(results: Iterable[Result]) -> float:
    return statistics.fmean(_times(results))


def _p90_ms(results: Iterable[Result]) -> float:
    times = _times(results)
    return times[int(0.9 * (len(times) - 1))]


def line(name: str, figures: dict[str, float]) -> str:
    """One line of key=value."""
    parts = [
        f"{key}={value:.4f}" if "share" in key or key == "of_ideal" else f"{key}={value:.0f}"
        for key, value in figures.items()
    ]
    return " ".join([f"arm={name}", *parts])


def arguments_of(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", help="a running server instead of arms")
    parser.add_argument("--arm", action="append", metavar="NAME=OPTIONS", help="a server with these options")
    parser.add_argument("--base", default=CONTEXT, help="options of every arm")
    parser.add_argument("--profile", choices=sorted(PROFILES), default="tiny")
    parser.add_argument("--scale", type=float, default=1.0, help="stretches the tool loops")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--artifact", type=Path, help="the model served (default: the bundled one)")
    parser.add_argument("--json", type=Path, help="write every request there")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    arguments = arguments_of(argv)
    plan = make_plan(PROFILES[arguments.profile], arguments.scale, arguments.seed)
    print(f"requests={request_count(plan)} profile={arguments.profile} scale={arguments.scale}", flush=True)
    renderer = Renderer(arguments.artifact or bundled.path())
    rows: dict[str, list[dict[str, object]]] = {}
    failed, arms = False, list[tuple[str, dict[str, float]]]()
    for name, options in _arms(arguments):
        run, wall_s, records = _measure(arguments, options, plan, renderer)
        failed |= bool(run.failures)
        for failure in run.failures:
            print(f"arm={name} failed: {failure}", flush=True)
        figures = summarise(run.results, wall_s)
        arms.append((name, figures))
        print(line(name, figures), flush=True)
        if parts := breakdown(_continuing(run.results), records):
            figures_of_parts = (f"{key}={value:.2f}" for key, value in parts.items())
            print(f"continuing arm={name}", *figures_of_parts, flush=True)
        rows[name] = [
            asdict(one) | {"wait_ms": parts_of(one, records.get(one.request_id))} for one in run.results
        ]
    for name, figures in arms[1:]:
        print(ratio(arms[0], (name, figures)))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit(int(failed))


def _arms(arguments: argparse.Namespace) -> list[tuple[str, str]]:
    if arguments.url:
        return [("url", "")]
    pairs = [arm.partition("=") for arm in arguments.arm or ["default="]]
    return [(name, options) for name, _, options in pairs]


def _measure(
    arguments: argparse.Namespace, options: str, plan: Sequence[Session], renderer: Renderer
) -> tuple[Run, float, dict[str, dict[str, Any]]]:
    """The run, its wall seconds, and the request log of an own server."""
    profile = PROFILES[arguments.profile]
    if arguments.url:
        run = Run(arguments.url, profile, renderer, arguments.seed)
        return run, run.play(plan), {}
    artifact = [str(arguments.artifact)] if arguments.artifact else []
    command = [*artifact, *shlex.split(arguments.base), *shlex.split(options)]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "requests.jsonl"
        command += ["--request-log-jsonl", str(log)]
        with running_server(command, Path(folder) / "log") as url:
            run = Run(url, profile, renderer, arguments.seed)
            wall_s = run.play(plan)
        return run, wall_s, read_log(log)


if __name__ == "__main__":
    main()
