"""Engines in turns: who is asked what, and that transformers reads the same checkpoint."""

from __future__ import annotations

import json
import stat
import warnings
from pathlib import Path

import pytest

from tests.support.nano import nano_checkpoint
from tools.bench import peers
from tools.bench.peers import LLAMA, LlamaBench, Transformers, alternate, llama, planned, table


class Told:
    """An engine of given speed that writes down what it was asked."""

    def __init__(self, name: str, speed: float, journal: list[str]) -> None:
        self.name, self.speed, self.journal = name, speed, journal

    def decode(self, context: int, tokens: int) -> float:
        self.journal.append(f"{self.name} decode {context} {tokens}")
        return tokens / self.speed

    def prefill(self, tokens: int) -> float:
        self.journal.append(f"{self.name} prefill {tokens}")
        return tokens / self.speed


def test_engines_take_turns_and_the_first_round_warms_up() -> None:
    journal: list[str] = []
    engines = {"ninfer": Told("a", 6.0, journal), "other": Told("b", 4.0, journal)}
    rates = alternate(engines, list(planned((0, 9), (5,), 3)), 2)
    once = ["a decode 0 3", "b decode 0 3", "a decode 9 3", "b decode 9 3", "a prefill 5", "b prefill 5"]
    assert journal == 3 * once
    assert rates["decode @9"] == {"ninfer": [6.0, 6.0], "other": [4.0, 4.0]}
    assert table(rates).splitlines()[1].split() == ["decode", "@0", "6.0", "4.0", "1.50"]


def test_llama_cpp_is_skipped_with_the_reason(tmp_path: Path) -> None:
    assert llama(None, 2, {}) == f"{LLAMA} does not name llama-bench"
    assert "--gguf" in str(llama(None, 2, {LLAMA: "x"}))
    program = tmp_path / "llama-bench"
    assert llama(tmp_path / "m", 2, {LLAMA: str(program)}) == f"{program} is no file"


def test_llama_bench_is_asked_for_one_phase_at_a_time(tmp_path: Path) -> None:
    """A stand-in that answers as the real program does and writes down its arguments."""
    program, model, seen = tmp_path / "llama-bench", tmp_path / "m.gguf", tmp_path / "seen"
    model.write_bytes(b"")
    answer = json.dumps([{"avg_ts": 4.0}])
    program.write_text(f"#!/bin/sh\necho \"$@\" >> {seen}\necho '{answer}'\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    found = llama(model, 2, {LLAMA: str(program)})
    assert isinstance(found, LlamaBench)
    assert found.decode(512, 8) == 2.0
    assert found.prefill(100) == 25.0
    common = f"-m {model} -t 2 -r 1 -o json"
    assert seen.read_text().splitlines() == [f"{common} -p 0 -n 8 -d 512", f"{common} -p 100 -n 0"]


@pytest.mark.timeout(900)  # the first start on a machine compiles the kernels
@pytest.mark.filterwarnings("default")  # what transformers says of its own slow paths is not ours
def test_both_engines_run_on_one_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(LLAMA, raising=False)
    checkpoint = nano_checkpoint(tmp_path / "nano")
    sizes = {"--contexts": "0,9", "--prompts": 20, "--tokens": 2, "--repetitions": 1, "--threads": 1}
    arguments = [str(part) for pair in sizes.items() for part in pair]
    peers.main(["--checkpoint", str(checkpoint), "--directory", str(tmp_path / "made"), *arguments])
    captured = capsys.readouterr()
    assert [line.split()[:2] for line in captured.out.splitlines()[1:]] == [
        ["decode", "@0"],
        ["decode", "@9"],
        ["prefill", "20"],
    ]
    assert f"llama.cpp: skipped, {LLAMA}" in captured.err


@pytest.mark.filterwarnings("default")
def test_transformers_goes_on_from_its_context(tmp_path: Path) -> None:
    engine = Transformers(nano_checkpoint(tmp_path / "nano"), (0, 7))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for context in (0, 7):
            assert engine.decode(context, 3) > 0
            assert engine._caches[context].get_seq_length() == context + 3
