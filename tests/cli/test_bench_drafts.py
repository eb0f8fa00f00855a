"""``ninfer-bench`` with drafts: its counters in every form of the report."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from ninfer.cli import bench
from tests.fast.conftest import COLD_LIMIT_S, compiled  # noqa: F401  (kernels before any engine)
from tests.support.nano import nano_artifact

pytestmark = pytest.mark.timeout(COLD_LIMIT_S)
COUNTERS = ("ngram_rounds", "ngram_drafted_tokens", "ngram_accepted_tokens")


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nano_artifact(tmp_path_factory.mktemp("nano"))


def report(artifact: Path, capsys: pytest.CaptureFixture[str], form: str, *options: str) -> str:
    arguments = [str(artifact), "-n", "24", "-r", "1", "--warmup", "0", "-o", form, *options]
    assert bench.main(arguments) == 0
    return capsys.readouterr().out


@pytest.mark.clause("PROG-001", "NGRAM-042")
def test_every_form_has_the_counters(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--spec", "mtp", "--ngram-draft-tokens", "15")
    table = report(artifact, capsys, "table", *options).splitlines()
    assert all(name in table[2].split() for name in COUNTERS)
    (row,) = csv.DictReader(io.StringIO(report(artifact, capsys, "csv", *options)))
    assert int(row["drafted_tokens"]) > 0
    assert all(int(row[name]) >= 0 for name in COUNTERS)
    members = json.loads(report(artifact, capsys, "json", *options))
    assert members["engine"]["speculation"]["copy_tokens"] == 15
    (test,) = members["tests"]
    drafts = test["speculative"]
    assert drafts["rounds"] + drafts["fallback_steps"] + drafts["accepted_tokens"] == 24
    assert all(name in drafts for name in COUNTERS)
    assert test["computed_prefill_tokens"] + test["reused_tokens"] == 1


def test_without_a_drafter_there_are_none(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "ngram_rounds" not in report(artifact, capsys, "table")
    (test,) = json.loads(report(artifact, capsys, "json"))["tests"]
    assert test["speculative"] is None
