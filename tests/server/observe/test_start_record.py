"""The ``server_start`` record, and logs that stop a start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from conformance.http.client import chat_body
from ninfer.engine.statistics import EngineResources
from ninfer.server.main import main
from ninfer.spec.options import option_table
from tests.server.conftest import MODEL
from tests.server.engines import RecordingEngine
from tests.server.inprocess import serving
from tests.server.observe.lines import Log
from tests.server.processes import ROOT


@pytest.mark.clause("JLOG-015")
@pytest.mark.parametrize("spelling", [("--api-key", "SECRET-KEY"), ("--api-key=SECRET-KEY",)])
def test_the_key_is_redacted(nano: Path, log: Log, spelling: tuple[str, ...]) -> None:
    with serving(nano, RecordingEngine(), (*MODEL, *spelling, *log.arguments)) as client:
        headers = {"Authorization": "Bearer SECRET-KEY"}
        assert client.request("POST", "/v1/chat/completions", chat_body(), headers).status == 200
        log.done()
        start = log.start
    argv = " ".join(start["argv"])
    assert argv.count("<redacted>") == 1
    assert "--api-key" in argv
    assert start["server"]["api_key_configured"]
    assert b"SECRET" not in log.path.read_bytes()


@pytest.mark.clause("JLOG-017")
@pytest.mark.clause_early("JLOG-018")
def test_what_the_start_says(nano: Path, log: Log) -> None:
    arguments = (*MODEL, "--max-concurrency", "2", "--max-context", "4096", *log.arguments)
    with serving(nano, RecordingEngine(), arguments):
        start = log.start
    artifact = start["artifact"]
    assert artifact["path"] == str(nano.resolve())
    assert artifact["size_bytes"] == nano.stat().st_size
    assert artifact["name"] == "nano"
    assert artifact["architecture"].startswith("Qwen3_5")
    assert artifact["prefill_signature"]
    assert set(artifact["formats"]) <= {"bf16", "fp32"}
    assert (start["engine"]["max_concurrency"], start["engine"]["max_context"]) == (2, 4096)
    assert {"kv_capacity", "context_cache"} <= set(start["engine"])


GPU = EngineResources(
    device="cuda:1", device_index=1, device_name="NVIDIA H200", device_capability="9.0",
    device_bytes=150 << 30, cuda_runtime="13.0", cuda_driver="13.1", kernels="triton", kv_pages=1000,
    kv_page_bytes=1 << 20, state_slots=5, state_image_bytes=3 << 20, weight_bytes=7 << 20,
    workspace_bytes=11 << 20, available_bytes=2 << 30, graph_allowance_bytes=72 << 20,
    graph_measured_bytes=12 << 20, sizing_free_bytes=(1000 << 20) + (1 << 30) + (72 << 20) + 5,
    sizing_headroom_bytes=1 << 30,
)  # fmt: skip


@pytest.mark.clause_early("JLOG-021", "JLOG-023", "JLOG-025", "OPT-031")
def test_what_the_start_says_of_a_gpu(nano: Path, log: Log) -> None:
    engine = RecordingEngine()
    engine.resources = GPU
    with serving(nano, engine, (*MODEL, *log.arguments)):
        start = log.start
    environment, memory = start["environment"], start["memory"]
    assert (environment["device"], environment["gpu_name"]) == (1, "NVIDIA H200")
    assert (environment["gpu_capability"], environment["gpu_memory_bytes"]) == ("9.0", 150 << 30)
    assert (environment["cuda_runtime"], environment["cuda_driver"]) == ("13.0", "13.1")
    assert memory["weights"] == {"capacity_bytes": 7 << 20}
    assert memory["sequence"] == {"capacity_bytes": (1000 << 20) + (15 << 20)}
    assert memory["workspace"] == {"capacity_bytes": 11 << 20}
    assert memory["vision_workspace"] is None
    sizing = memory["kv_sizing"]
    assert sizing.pop("free_bytes") == sum(sizing.values())
    assert (sizing["kv_payload_bytes"], sizing["unused_bytes"]) == (1000 << 20, 5)
    assert memory["cuda_graph_allowance_bytes"] == 72 << 20
    assert memory["cuda_graph_measured_bytes"] == 12 << 20
    assert start["engine"]["cuda_graph"] is True


@pytest.mark.clause_early("JLOG-025")
def test_what_the_start_says_without_a_gpu(nano: Path, log: Log) -> None:
    with serving(nano, RecordingEngine(), (*MODEL, *log.arguments)):
        start = log.start
    assert start["memory"]["cuda_graph_measured_bytes"] == 0
    assert start["memory"]["kv_sizing"] is None
    assert start["environment"]["device"] == "cpu"
    assert start["environment"]["gpu_name"] is None
    assert start["engine"]["cuda_graph"] is False


@pytest.mark.clause("JLOG-020")
@pytest.mark.parametrize(
    ("arguments", "preserve", "budget"),
    [((), False, None), (("--preserve-thinking", "--default-thinking-budget", "512"), True, 512)],
)
def test_thinking_defaults(
    nano: Path, log: Log, arguments: tuple[str, ...], preserve: bool, budget: int | None
) -> None:
    with serving(nano, RecordingEngine(), (*MODEL, *arguments, *log.arguments)):
        server = log.start["server"]
    assert (server["default_preserve_thinking"], server["default_thinking_budget"]) == (preserve, budget)


@pytest.mark.clause("JLOG-019")
def test_sampler_defaults_and_overrides_stand_apart(nano: Path, log: Log) -> None:
    with serving(nano, RecordingEngine(), (*MODEL, "--top-p", "0.5", *log.arguments)):
        defaults = log.start["sampling_defaults"]
    assert (defaults["thinking"]["temperature"], defaults["thinking"]["top_p"]) == (1.0, 0.95)
    assert (defaults["non_thinking"]["temperature"], defaults["non_thinking"]["top_p"]) == (0.7, 0.8)
    given = {name: value for name, value in defaults["server_overrides"].items() if value is not None}
    assert given == {"top_p": 0.5}


@pytest.mark.clause("OPT-094")
def test_defaults_in_force_are_those_of_help(nano: Path, log: Log) -> None:
    """Every number as ``--help`` prints it, against the value that the running server says it uses."""
    with serving(nano, RecordingEngine(), log.arguments):
        options = log.start["options"]
    command = [sys.executable, "-m", "ninfer.server.main", "--help"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    checked = 0
    for option in option_table("ninfer-serve").options:
        number = isinstance(option.default, int | float) and not isinstance(option.default, bool)
        if number and option.name not in ("--port", "--ngram-draft-tokens"):
            words = " ".join(shown.partition(f"{option.name} ")[2].partition("\n  -")[0].split())
            assert f"default: {option.default:g}" in words, (option.name, words)
            assert options[option.key] == option.default, option.name
            checked += 1
    assert checked > 15


def test_argv_is_the_command_line(nano: Path, log: Log) -> None:
    with serving(nano, RecordingEngine(), (*MODEL, *log.arguments)):
        assert log.start["argv"] == [str(nano), "--port", "0", *MODEL, *log.arguments]


@pytest.mark.clause("JLOG-003")
def test_a_log_that_cannot_be_opened_stops_the_start(
    nano: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder stands for a file that cannot be written: rights would not stop the user root."""
    for where in ("missing/x.jsonl", "."):
        assert main([str(nano), "--port", "0", "--request-log-jsonl", str(tmp_path / where)]) == 2
        shown = capsys.readouterr().err
        assert "--request-log-jsonl" in shown
        assert "listening on" not in shown
    assert not (tmp_path / "missing").exists()


@pytest.mark.clause("JLOG-004", "JLOG-010")
def test_the_artifact_is_never_written(
    nano: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact = tmp_path / "x.jsonl.1"
    artifact.write_bytes(nano.read_bytes())
    link = tmp_path / "link"
    link.symlink_to(artifact)
    before = artifact.read_bytes()
    for arguments in (
        ["--request-log-jsonl", str(artifact)],
        ["--request-log-jsonl", str(link)],
        ["--request-log-jsonl", str(tmp_path / "x.jsonl"), "--request-log-max-mib", "1"],
    ):
        assert main([str(artifact), "--port", "0", *arguments]) == 2
        shown = capsys.readouterr().err
        assert "--request-log-jsonl: " in shown
        assert "is the model artifact" in shown
    assert artifact.read_bytes() == before


@pytest.mark.parametrize("value", ["-1", "1001"])
def test_how_many_files_may_be_kept(
    nano: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], value: str
) -> None:
    rotating = ["--request-log-jsonl", str(tmp_path / "x"), "--request-log-max-mib", "1"]
    assert main([str(nano), *rotating, f"--request-log-keep={value}"]) == 2
    assert "--request-log-keep" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--request-log-max-mib", "1"], "--request-log-max-mib"),
        (["--request-log-jsonl", "x", "--request-log-keep", "2"], "--request-log-keep"),
    ],
)
def test_rotation_needs_a_log(
    nano: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], named: str
) -> None:
    assert main([str(nano), *arguments]) == 2
    assert f"ninfer-serve: {named}: " in capsys.readouterr().err
