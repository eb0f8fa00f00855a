"""The run of ``ninfer-bench``: plan, engine, measurements, report.

Owns the order of the steps. What is asked stands in ``bench_plan``, the engine in ``bench_engine``, figures
in ``bench_figures`` and their three forms in ``bench_report``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TextIO

from ninfer import bundled
from ninfer.artifact import Artifact
from ninfer.cli.bench_engine import BenchEngine
from ninfer.cli.bench_figures import Report, TestResult
from ninfer.cli.bench_plan import BenchTest, Prompts, context_needed, read_prompts, tests_asked
from ninfer.cli.bench_report import render
from ninfer.cli.engine_options import engine_settings
from ninfer.engine.settings import EngineSettings
from ninfer.errors import ArtifactError, OptionError
from ninfer.model.config import TextConfig, parse_text_config

_EXIT_INTERRUPTED = 130


def measure(options: Mapping[str, Any]) -> int:
    """Run every test and write the report; 0 when all were measured.

    Errors: ``OptionError``, ``ArtifactError``, ``EngineError``.
    """
    path = _artifact(options)
    tests = tests_asked(options)
    with Artifact.open(path) as artifact:
        config = _text_config(artifact)
        name, weights = artifact.public_name, artifact.weight_summary()
    settings = _settings(options, path, tests, config.max_positions)
    prompts = read_prompts(options["corpus"], config.vocab, max(test.prompt_tokens for test in tests))
    try:
        with _report_file(options["output_file"]) as out, BenchEngine(settings) as engine:
            results = [_run(engine, test, prompts, options) for test in tests]
            report = Report(name, weights, settings, engine.load, results)
            out.write(render(report, options["output_format"]))
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED
    return 0


def _artifact(options: Mapping[str, Any]) -> Path:
    return bundled.path() if options["artifact"] is None else Path(options["artifact"])


def _text_config(artifact: Artifact) -> TextConfig:
    component = artifact.directory.components.get("text")
    if component is None:
        raise ArtifactError("components.text", "missing: there is no text model to measure")
    return parse_text_config(component.config)


def _settings(
    options: Mapping[str, Any], path: Path, tests: Sequence[BenchTest], native: int
) -> EngineSettings:
    """The fast engine with room for the largest test on every lane. Errors: ``OptionError`` ``--max-ctx``."""
    needed = context_needed(tests)
    context = options["max_context"] or needed
    if context < needed:
        raise OptionError("--max-ctx", f"{context} is less than the {needed} tokens of the largest test")
    if context > native:
        raise OptionError("--max-ctx", f"{context} exceeds the model's native context of {native} tokens")
    lanes = options["concurrency"]
    own = {"engine": "fast", "max_context": context, "max_concurrency": lanes}
    pages = -(-context // 64)
    return engine_settings({**options, **own, "kv_capacity": 64 * pages * lanes}, path)


def _run(engine: BenchEngine, test: BenchTest, prompts: Prompts, options: Mapping[str, Any]) -> TestResult:
    """Warm up, then repeat. Every repetition takes in other tokens, two runs of the program the same ones."""
    requests, warmup, repetitions = options["concurrency"], options["warmup"], options["repetitions"]
    print(f"{test.name}: {warmup} + {repetitions} repetitions of {requests}", file=sys.stderr)
    cuts = prompts.cuts(test.prompt_tokens)
    batches = (
        engine.run([next(cuts) for _ in range(requests)], test.output_tokens)
        for _ in range(warmup + repetitions)
    )
    return TestResult(test, requests, list(batches)[warmup:])


@contextmanager
def _report_file(path: str | None) -> Iterator[TextIO]:
    """Where the report goes, opened before anything is measured. Errors: ``OptionError``."""
    if path is None:
        yield sys.stdout
        return
    with ExitStack() as stack:
        try:
            file = stack.enter_context(Path(path).open("w", encoding="utf-8"))
        except OSError as error:
            raise OptionError("--output-file", f"cannot write {path}: {error.strerror}") from error
        yield file
