"""Options of ``ninfer-serve``: what each does to requests, and how a wrong one is refused."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from conformance.http.client import Client
from ninfer.engine.interface import SerialEngine
from ninfer.server.main import main
from tests.server.conftest import MODEL
from tests.server.engines import RecordingEngine, saying
from tests.server.inprocess import serving

CHAT: dict[str, Any] = {"enable_thinking": False, "max_tokens": 16}


def contents(client: Client, *requests: dict[str, Any]) -> list[str]:
    answers = [client.chat(**CHAT | members) for members in requests]
    assert {answer.status for answer in answers} == {200}
    return [answer.json["choices"][0]["message"]["content"] for answer in answers]


def answers_at(address: str, port: int) -> bool:
    """Whether ``GET /health`` is 200 there; False where the connection is refused."""
    try:
        return Client(f"http://{address}:{port}").get("/health").status == 200
    except ConnectionRefusedError:
        return False


def port_of(client: Client) -> int:
    return int(client.base_url.rpartition(":")[2])


@pytest.mark.clause("OPT-001")
def test_host(nano: Path) -> None:
    """127.0.0.2 stands for another interface: every address of 127/8 is this machine."""
    with serving(nano, RecordingEngine()) as client:
        assert answers_at("127.0.0.1", port_of(client))
        assert not answers_at("127.0.0.2", port_of(client))
    with serving(nano, RecordingEngine(), ("--host", "0.0.0.0")) as client:
        assert answers_at("127.0.0.1", port_of(client))
        assert answers_at("127.0.0.2", port_of(client))


@pytest.mark.clause("OPT-002")
def test_port(nano: Path) -> None:
    for arguments, port in (((), 8080), (("--port", "9001"), 9001)):
        for used in (8080, 9001):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", used)) == 0:
                    pytest.skip(f"port {used} of this machine is taken by another program")
        with serving(nano, RecordingEngine(), arguments, port=None):
            assert answers_at("127.0.0.1", port)
            assert not answers_at("127.0.0.1", 8080 if port == 9001 else 9001)


def test_a_taken_port_is_said_at_once(nano: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main([str(nano), "--port", str(taken.getsockname()[1])]) == 2
    assert "--port: cannot listen on http://127.0.0.1:" in capsys.readouterr().err


def test_a_foreign_host_is_refused(nano: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(nano), "--host", "192.0.2.1", "--port", "0"]) == 2
    assert "--host" in capsys.readouterr().err


@pytest.mark.clause("OPT-005")
def test_a_marked_template_costs_its_tokens(nano: Path, tmp_path: Path) -> None:
    template = tmp_path / "marked.jinja"
    source = (Path(__file__).parents[2] / "ninfer/prompt/templates/qwen3_8.jinja").read_text()
    counts = []
    for mark in ("", "7", "777"):  # digits are one token each
        template.write_text(mark + source)
        with serving(nano, RecordingEngine(), (*MODEL, "--chat-template", str(template))) as client:
            counts.append(client.chat().json["usage"]["prompt_tokens"])
    assert [count - counts[0] for count in counts] == [0, 1, 3]


@pytest.mark.clause("OPT-005")
@pytest.mark.parametrize("content", ["{% if %}", "{{ unclosed", "{% endfor %}", None, b"\xff"])
def test_a_template_that_cannot_be_used_stops_the_start(
    nano: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | bytes | None
) -> None:
    template = tmp_path / "broken.jinja"
    if content is not None:
        template.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert main([str(nano), "--port", "0", "--chat-template", str(template)]) != 0
    captured = capsys.readouterr().err
    assert "--chat-template" in captured
    assert "listening on" not in captured


def test_a_context_beyond_the_models_own_stops_the_start(
    nano: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(nano), "--port", "0", "--max-context", "1000000"]) == 2
    assert "--max-context: 1000000 exceeds" in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, b"", b"NINFER", b"x" * 5000])
def test_a_file_that_is_no_artifact_stops_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None
) -> None:
    path = tmp_path / "broken.ninfer"
    if content is not None:
        path.write_bytes(content)
    assert main([str(path), "--port", "0"]) == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("ninfer-serve: ")


@pytest.mark.clause("OPT-058")
def test_the_default_output_limit(nano: Path, reference_engine: SerialEngine) -> None:
    with serving(nano, reference_engine, (*MODEL, "--default-max-tokens", "7")) as client:
        answer = client.chat(temperature=0)
        assert answer.json["usage"]["completion_tokens"] == 7
        assert answer.json["choices"][0]["finish_reason"] == "length"
        assert client.chat(temperature=0, max_tokens=9).json["usage"]["completion_tokens"] == 9


def test_the_default_output_limit_without_the_option(nano: Path) -> None:
    engine = RecordingEngine()
    with serving(nano, engine, (*MODEL, "--max-context", "20000")) as client:
        client.chat()
    assert engine.last.max_tokens == 8192


@pytest.mark.clause("OPT-087")
def test_top_k_zero_is_the_cap(nano: Path, reference_engine: SerialEngine) -> None:
    requests = [{"seed": seed, "temperature": 1.5} for seed in range(4)]
    answers = []
    for value in ("0", "20", "1"):
        with serving(nano, reference_engine, (*MODEL, "--top-k", value, "--top-p", "1")) as client:
            answers.append(contents(client, *requests))
    assert answers[0] == answers[1]
    assert answers[2] != answers[0]


@pytest.mark.clause("OPT-087")
@pytest.mark.parametrize("value", ["21", "-1"])
def test_top_k_out_of_range(nano: Path, capsys: pytest.CaptureFixture[str], value: str) -> None:
    assert main([str(nano), f"--top-k={value}"]) == 2
    assert capsys.readouterr().err.startswith("ninfer-serve: --top-k: ")


@pytest.mark.clause("OPT-091")
def test_the_process_seed(nano: Path, reference_engine: SerialEngine) -> None:
    hot = {"temperature": 1}
    with serving(nano, reference_engine, (*MODEL, "--seed", "7")) as client:
        first, second, seeded, other = contents(client, hot, hot, hot | {"seed": 7}, hot | {"seed": 8})
    assert first == second == seeded != other


@pytest.mark.clause_early("OPT-091")
def test_without_a_seed_each_request_draws_one(nano: Path) -> None:
    engine = RecordingEngine()
    with serving(nano, engine, MODEL) as client:
        contents(client, *[{}] * 8)
    assert len({request.sampling.seed for request in engine.requests}) == 8


@pytest.mark.clause_early("OPT-092", "PRESET-008")
def test_greedy_wins_over_everything(nano: Path, reference_engine: SerialEngine) -> None:
    hot = [
        {"temperature": 1.5, "seed": 1},
        {"temperature": 1.5, "seed": 2},
        {"temperature": 1.0},
        {"temperature": 0},
    ]
    for arguments in (("--greedy",), ("--greedy", "--temperature", "0.8")):
        with serving(nano, reference_engine, (*MODEL, *arguments)) as client:
            assert len(set(contents(client, *hot))) == 1
        engine = RecordingEngine()
        with serving(nano, engine, (*MODEL, *arguments)) as client:
            contents(client, *hot)
        assert {request.sampling.temperature for request in engine.requests} == {0}


@pytest.mark.clause_early("PRESET-007")
def test_request_over_process_over_preset(nano: Path) -> None:
    plain, changed = RecordingEngine(), RecordingEngine()
    for engine, arguments in ((plain, ()), (changed, ("--top-p", "0.5"))):
        with serving(nano, engine, (*MODEL, *arguments)) as client:
            contents(client, {"seed": 1, "temperature": 0.2 if arguments else None})
    sampling, preset = changed.last.sampling, plain.last.sampling
    assert (sampling.temperature, sampling.top_p) == (0.2, 0.5)
    for name in ("top_k", "min_p", "presence_penalty", "frequency_penalty"):
        assert getattr(sampling, name) == getattr(preset, name)


@pytest.mark.clause_early("PRESET-009")
def test_one_override_leaves_the_preset(nano: Path) -> None:
    engine = RecordingEngine()
    with serving(nano, engine, (*MODEL, "--presence-penalty", "0.1")) as client:
        contents(client, {"enable_thinking": False}, {"enable_thinking": True})
    off, on = (request.sampling for request in engine.requests)
    assert (off.temperature, off.top_p, off.presence_penalty) == (0.7, 0.8, 0.1)
    assert (on.temperature, on.top_p, on.presence_penalty) == (1.0, 0.95, 0.1)


def test_thinking_defaults_of_the_process(nano: Path) -> None:
    engine = RecordingEngine(saying("why", "</think>\n\n", "ok"))
    with serving(nano, engine, (*MODEL, "--no-thinking")) as client:
        client.chat()
        assert engine.last.initial_channel == "content"
        client.chat(enable_thinking=True)
        assert engine.last.initial_channel == "reasoning"


def test_a_body_limit_is_bytes_before_json(nano: Path) -> None:
    with serving(nano, RecordingEngine(), (*MODEL, "--max-request-mib", "1")) as client:
        over = client.request("POST", "/v1/chat/completions", b"{" * (2**20 + 1))
        under = client.request("POST", "/v1/chat/completions", b"{" * (2**20 - 1))
    assert (over.status, over.error["code"]) == (413, "request_too_large")
    assert (under.status, under.error["code"]) == (400, "invalid_json")


def test_no_bytes_at_all(nano: Path) -> None:
    with serving(nano, RecordingEngine(), (*MODEL, "--max-request-mib", "0")) as client:
        assert client.get("/health").status == 200
        assert client.chat().error["code"] == "request_too_large"
