"""The sampler that each request resolved to, as ``request_start`` tells it: presets, process, request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ninfer.engine.interface import SerialEngine
from tests.server.conftest import MODEL
from tests.server.engines import RecordingEngine
from tests.server.inprocess import serving
from tests.server.observe.lines import Log
from tests.support.nano import nano_artifact

PARTS = ("temperature", "top_p", "top_k", "min_p", "presence_penalty")
THINKING = {"enable_thinking": True}
PLAIN = {"enable_thinking": False}


def started(
    artifact: Path, log: Log, arguments: tuple[str, ...], *requests: dict[str, Any]
) -> list[dict[str, Any]]:
    """``sampling`` of each request's start, on a server with ``arguments``."""
    with serving(artifact, RecordingEngine(), (*MODEL, *arguments, *log.arguments)) as client:
        for members in requests:
            assert client.chat(**members).status == 200
        return [line["request"]["sampling"] for line in log.wait("request_start", len(requests))]


def values(sampling: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(sampling[name] for name in PARTS)


@pytest.mark.clause("PRESET-001", "PRESET-002", "PRESET-005", "PRESET-006")
def test_presets_of_the_dense_model(nano: Path, log: Log) -> None:
    thinking, plain = started(nano, log, (), THINKING, PLAIN)
    assert values(thinking) == (1.0, 0.95, 20, 0, 0)
    assert values(plain) == (0.7, 0.8, 20, 0, 1.5)
    assert thinking["frequency_penalty"] == plain["frequency_penalty"] == 0


@pytest.mark.clause("PRESET-003", "PRESET-004", "PRESET-005")
def test_presets_of_the_mixture_of_experts(tmp_path: Path, log: Log) -> None:
    artifact = nano_artifact(tmp_path, "moe")
    thinking, plain = started(artifact, log, (), THINKING, PLAIN)
    assert values(thinking) == (1.0, 0.95, 20, 0, 1.5)
    assert values(plain) == (0.7, 0.8, 20, 0, 1.5)
    assert thinking["frequency_penalty"] == plain["frequency_penalty"] == 0


@pytest.mark.clause("OPT-085", "OPT-086", "OPT-088", "OPT-089", "OPT-090")
@pytest.mark.parametrize(
    ("option", "name", "process", "request_value"),
    [
        ("--temperature", "temperature", 0.3, 0.9),
        ("--top-p", "top_p", 0.5, 0.9),
        ("--min-p", "min_p", 0.2, 0.1),
        ("--presence-penalty", "presence_penalty", 1, -1),
        ("--frequency-penalty", "frequency_penalty", 0.5, 0),
    ],
)
def test_process_over_preset_and_request_over_process(
    nano: Path, log: Log, option: str, name: str, process: float, request_value: float
) -> None:
    silent, speaking = started(nano, log, (option, str(process)), {}, {name: request_value})
    assert silent[name] == process
    assert speaking[name] == request_value


@pytest.mark.clause("PRESET-007")
def test_one_override_leaves_the_rest_of_the_preset(nano: Path, log: Log) -> None:
    plain, hot = started(nano, log, ("--top-p", "0.5"), PLAIN, PLAIN | {"temperature": 0.2})
    assert values(plain) == (0.7, 0.5, 20, 0, 1.5)
    assert values(hot) == (0.2, 0.5, 20, 0, 1.5)


@pytest.mark.clause("PRESET-009")
def test_an_override_holds_in_both_modes(nano: Path, log: Log) -> None:
    plain, thinking = started(nano, log, ("--presence-penalty", "0.1"), PLAIN, THINKING)
    assert values(plain) == (0.7, 0.8, 20, 0, 0.1)
    assert values(thinking) == (1.0, 0.95, 20, 0, 0.1)


@pytest.mark.clause("OPT-092", "PRESET-008")
def test_greedy_wins_over_everything(nano: Path, log: Log, reference_engine: SerialEngine) -> None:
    arguments = (*MODEL, "--greedy", "--temperature", "0.8", *log.arguments)
    hot = [{"temperature": 1.5, "seed": seed} for seed in (1, 2)]
    with serving(nano, reference_engine, arguments) as client:
        for members in (*hot, {"temperature": 1.0}, {"temperature": 0}):
            assert client.chat(max_tokens=12, **members).status == 200
        lines = log.done(4)
    assert {line["request"]["sampling"]["temperature"] for line in lines} == {0}
    assert len({tuple(line["result"]["generated_token_ids"]) for line in lines}) == 1


def test_each_request_has_the_seed_it_ran_with(nano: Path, log: Log) -> None:
    seeds = [entry["seed"] for entry in started(nano, log, (), {}, {}, {"seed": 7}, {"seed": -1})]
    assert seeds[0] != seeds[1]
    assert seeds[2:] == [7, 2**64 - 1]
