"""``ninfer-bench`` as a program: what it refuses, what it runs, what it reports."""

from __future__ import annotations

import csv
import functools
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ninfer.artifact import Artifact
from ninfer.cli import bench, bench_run
from ninfer.cli.bench_engine import BenchEngine
from ninfer.engine.events import EngineEvent, Failed, LogRecord
from ninfer.engine.requests import GenerationRequest
from ninfer.engine.scripted import Play, Script, ScriptedEngine, Step
from ninfer.engine.settings import EngineSettings
from ninfer.engine.worker import SerialWorker
from tests.support.nano import ROWS, nano_artifact

ROOT = Path(__file__).parents[2]
LEDGER = "memory_mib weights=1.5 kv=2.0 total=3.5"


class Asked:
    """A scripted engine that notes what it was opened with and asked."""

    def __init__(self) -> None:
        self.settings: list[EngineSettings] = []
        self.requests: list[GenerationRequest] = []

    def open(
        self, settings: EngineSettings, listener: Callable[[int, int], None], publish: Callable[..., None]
    ) -> SerialWorker:
        self.settings.append(settings)
        listener(4096, 8192)
        listener(8192, 8192)
        publish(LogRecord("info", LEDGER))
        worker = SerialWorker(
            ScriptedEngine(Script(default=Play((Step(wait_s=0.001, text="a"),), 10_000))), publish
        )
        submit = worker.submit

        def noted(request: GenerationRequest) -> None:
            self.requests.append(request)
            submit(request)

        worker.submit = noted  # type: ignore[method-assign]
        return worker

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Prompt and output tokens of each request."""
        return [(len(request.tokens) // 4, request.max_tokens) for request in self.requests]


@pytest.fixture(scope="session")
def nano(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nano_artifact(tmp_path_factory.mktemp("nano"))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    asked = Asked()
    monkeypatch.setattr(bench_run, "BenchEngine", functools.partial(BenchEngine, opener=asked.open))
    return asked


def report(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    assert bench.main([*map(str, arguments), "-o", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_every_kind_asks_for_its_exact_tokens(
    nano: Path, asked: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    found = report(capsys, nano, "-p", "70,9", "-n", "3", "-pg", "5,4;1,1", "-r", "1", "--warmup", "0")
    assert asked.sizes == [(70, 1), (9, 1), (1, 4), (5, 4), (1, 1)]
    assert [test["test"] for test in found["tests"]] == ["pp70", "pp9", "tg3", "pp5+tg4", "pp1+tg1"]
    assert all(request.ignore_stop_tokens and request.sampling.temperature == 0 for request in asked.requests)
    assert all(not request.stops and not request.stop_token_ids for request in asked.requests)
    assert len({request.id for request in asked.requests}) == len(asked.requests)


@pytest.mark.parametrize(
    ("arguments", "names"),
    [([], ["pp512", "tg128"]), (["-n", "7"], ["tg7"]), (["-pg", "8,2"], ["pp8+tg2"])],
)
def test_defaults_hold_where_no_test_is_chosen(
    nano: Path,
    asked: Asked,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    names: list[str],
) -> None:
    found = report(capsys, nano, *arguments, "-r", "1", "--warmup", "0")
    assert [test["test"] for test in found["tests"]] == names


def test_warm_ups_run_and_are_not_reported(
    nano: Path, asked: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    found = report(capsys, nano, "-p", "6", "-r", "3", "--warmup", "2", "--concurrency", "2")
    assert asked.sizes == 10 * [(6, 1)]
    (test,) = found["tests"]
    assert test["concurrency"] == 2
    assert [len(repetition["requests"]) for repetition in test["repetitions"]] == [2, 2, 2]


def test_prompts_are_the_same_in_every_run_and_differ_within_one(
    nano: Path, asked: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        report(capsys, nano, "-p", "40", "-r", "3", "--warmup", "1")
    tokens = [request.tokens for request in asked.requests]
    assert tokens[:4] == tokens[4:]
    assert len(set(tokens)) == 4


def test_prompts_are_cut_from_the_corpus(
    nano: Path, asked: Asked, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = tmp_path / "ids"
    corpus.write_text("[3, 1,4\n1 5]\n")
    report(capsys, nano, "--corpus", corpus, "-p", "3", "-r", "2", "--warmup", "0")
    cuts = [memoryview(request.tokens).cast("i").tolist() for request in asked.requests]
    assert cuts == [[3, 1, 4], [1, 5, 3]]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("1 2", "has 2 tokens, the longest prompt takes 3"),
        ("", "has 0 tokens"),
        ("1 two 3", "'two' is no decimal token id"),
        ("1 -2 3", "'-2' is no decimal token id"),
        (f"1 {ROWS} 3", f"{ROWS} is no token id of 0..{ROWS - 1}"),
        (None, "cannot read"),
    ],
)
def test_a_wrong_corpus_is_named(
    nano: Path,
    asked: Asked,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    text: str | None,
    problem: str,
) -> None:
    corpus = tmp_path / "ids"
    if text is not None:
        corpus.write_text(text)
    assert bench.main([str(nano), "--corpus", str(corpus), "-p", "3"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("ninfer-bench: --corpus: ")
    assert problem in error
    assert not asked.settings


def test_the_engine_has_room_for_the_largest_test_on_every_lane(
    nano: Path, asked: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = (
        "-pg 100,29 -n 3 -r 1 --concurrency 3 --kv-dtype int8 --prefill-chunk 64 --cpu-activations bf16"
    )
    found = report(capsys, nano, *arguments.split())
    (settings,) = asked.settings
    assert (settings.engine, settings.lanes, settings.max_context) == ("fast", 3, 129)
    assert settings.kv_capacity == 3 * 192
    assert (settings.kv_format, settings.prefill_chunk) == ("int8", 64)
    assert settings.activations == "bf16"
    assert (found["engine"]["kv_dtype"], found["engine"]["cpu_activations"]) == ("int8", "bf16")


def test_max_ctx_is_the_context_and_must_hold_the_largest_test(
    nano: Path, asked: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    report(capsys, nano, "-p", "9", "-r", "1", "--max-ctx", "640")
    assert asked.settings[0].max_context == 640
    assert bench.main([str(nano), "-p", "64", "--max-ctx", "64"]) == 2
    assert "--max-ctx: 64 is less than the 65 tokens" in capsys.readouterr().err
    assert bench.main([str(nano), "-p", "9", "--max-ctx", "99999999"]) == 2
    assert "native context" in capsys.readouterr().err


def test_json_says_what_was_measured(nano: Path, asked: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, nano, "-pg", "12,5", "-r", "2")
    with Artifact.open(nano) as artifact:
        weights = artifact.weight_summary()
    assert (found["artifact_type"], found["schema_version"]) == ("ninfer_bench", 1)
    assert found["model"]["parameters"] == weights.parameters
    assert sum(found["model"]["formats"].values()) == found["model"]["payload_bytes"]
    assert found["load"]["weight_bytes"] == 8192
    assert found["memory"]["engine_mib"] == {"weights": 1.5, "kv": 2.0, "total": 3.5}
    assert 0 < found["memory"]["resident_bytes"] <= found["memory"]["peak_resident_bytes"]
    (test,) = found["tests"]
    for repetition in test["repetitions"]:
        (request,) = repetition["requests"]
        parts = request["queue_s"] + request["prefill_s"] + request["decode_s"]
        assert parts == pytest.approx(request["total_s"])
        assert repetition["total_s"] == request["total_s"]
        assert repetition["decode_s"] >= 0.004  # four tokens of a millisecond
    rates = [4 / repetition["decode_s"] for repetition in test["repetitions"]]
    assert test["decode_tok_s"]["mean"] == pytest.approx(sum(rates) / 2)
    assert test["decode_tok_s"]["stddev"] == pytest.approx(abs(rates[0] - rates[1]) / 2**0.5)


def test_table_shows_mean_and_deviation(nano: Path, asked: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main([str(nano), "-p", "4", "-n", "2", "-r", "2"]) == 0
    captured = capsys.readouterr()
    head, blank, columns, *rows = captured.out.splitlines()
    assert head.startswith("nano-dense: ")
    assert blank == ""
    assert re.fullmatch(r"test +requests +prefill tok/s +decode tok/s +output tok/s +first token ms", columns)
    number = r"[\d,]+\.\d\d ± [\d,]+\.\d\d"
    assert re.fullmatch(rf"pp4 +1 +{number} +- +{number} +{number}", rows[0])
    assert re.fullmatch(rf"tg2 +1 +- +{number} +{number} +{number}", rows[1])
    assert len({len(line) for line in (columns, *rows)}) == 1
    assert LEDGER in captured.err


def test_csv_goes_to_the_file(
    nano: Path, asked: Asked, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report.csv"
    arguments = ["-p", "4", "-n", "2", "-r", "1", "-o", "csv", "--output-file", str(out)]
    assert bench.main([str(nano), *arguments]) == 0
    assert capsys.readouterr().out == ""
    rows = list(csv.DictReader(io.StringIO(out.read_text())))
    assert [row["test"] for row in rows] == ["pp4", "tg2"]
    assert (rows[0]["decode_tok_s_mean"], rows[1]["prefill_tok_s_mean"]) == ("", "")
    assert float(rows[0]["prefill_tok_s_mean"]) > 0


def test_a_file_that_cannot_be_written_is_refused_first(
    nano: Path, asked: Asked, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main([str(nano), "--output-file", str(tmp_path)]) == 2
    assert "--output-file: cannot write" in capsys.readouterr().err
    assert not asked.settings


def test_a_failed_request_fails_the_program(
    nano: Path, asked: Asked, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = asked.open

    def failing(
        settings: EngineSettings, listener: Callable[[int, int], None], publish: Callable[..., None]
    ) -> SerialWorker:
        def spoilt(event: EngineEvent) -> None:
            name = type(event).__name__
            publish(Failed(event.id, "internal_error", "broken") if name == "Finished" else event)  # type: ignore[union-attr]

        return real(settings, listener, spoilt)

    monkeypatch.setattr(bench_run, "BenchEngine", functools.partial(BenchEngine, opener=failing))
    assert bench.main([str(nano), "-p", "4", "--concurrency", "2"]) == 1
    assert capsys.readouterr().err.endswith("ninfer-bench: broken\n")


def test_help_and_version_leave_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--help", "--version"):
        with pytest.raises(SystemExit) as left:
            bench.main([option])
        assert left.value.code == 0


@pytest.mark.timeout(900)  # the first start on a machine compiles the kernels
def test_the_fast_engine_is_measured(nano: Path) -> None:
    """In a process of its own, as a user runs it: random weights, so stop tokens would end some answers."""
    arguments = "-p 70 -n 40 -r 2 --concurrency 2 -o json"
    done = subprocess.run(
        [sys.executable, "-m", "ninfer.cli.bench", str(nano), *arguments.split()],
        cwd=ROOT,
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    prefill, decode = found["tests"]
    assert (prefill["decode_tok_s"], decode["prefill_tok_s"]) == (None, None)
    assert prefill["prefill_tok_s"]["mean"] > 0
    assert decode["decode_tok_s"]["mean"] > 0
    assert found["memory"]["engine_mib"]["weights"] > 0
    assert found["engine"]["kv_capacity"] == 2 * 128
