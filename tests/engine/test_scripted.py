"""The scripted engine: its plays behave as a model's output would."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ninfer.engine.events import Delta, Finished, Progress, RequestEvent, Started
from ninfer.engine.requests import GenerationRequest
from ninfer.engine.scripted import Play, Script, ScriptedEngine, Step, open_engine
from ninfer.engine.settings import EngineSettings
from ninfer.errors import ArtifactError
from tests.engine.requests import generation


def played(play: Play, request: GenerationRequest) -> list[RequestEvent]:
    return list(ScriptedEngine(Script(default=play)).generate(request, lambda: False, 0.25))


def words(*texts: str) -> Play:
    return Play(tuple(Step(text=text) for text in texts))


def test_a_plain_play() -> None:
    events = played(
        Play((Step(progress=3), Step(text="a"), Step(text="b")), cached_tokens=2), generation("r")
    )
    end = events[-1]
    assert events[:1] == [Started("r", 3, 2, 0.25)]
    assert isinstance(events[1], Progress)
    assert [event.text for event in events if isinstance(event, Delta)] == ["a", "b"]
    assert isinstance(end, Finished)
    assert (end.reason, end.usage.completion_tokens, end.usage.cached_tokens) == ("stop", 2, 2)


def test_the_output_limit_cuts() -> None:
    end = played(words("a", "b", "c"), generation("r", max_tokens=2))[-1]
    assert isinstance(end, Finished)
    assert (end.reason, end.usage.completion_tokens) == ("length", 2)


def test_no_output_at_all() -> None:
    events = played(words("a"), generation("r", max_tokens=0))
    end = events[-1]
    assert isinstance(end, Finished)
    assert (len(events), end.reason, end.usage.completion_tokens) == (2, "length", 0)


def test_stops_and_channels_go_through_the_output_session() -> None:
    request = generation("r", initial_channel="reasoning", stops=("END",), max_tokens=99)
    events = played(words("why", "</think>", "\n\n", "so E", "ND more", "never"), request)
    deltas = [(event.channel, event.text) for event in events if isinstance(event, Delta)]
    assert deltas == [("reasoning", "why"), ("content", "so "), ("content", "")]
    end = events[-1]
    assert isinstance(end, Finished)
    assert (end.reason, end.stop_string, end.usage.completion_tokens) == ("stop", "END", 5)


def test_bytes_join_to_characters() -> None:
    play = Play((Step(hex="f09f"), Step(hex="9880"), Step(text="!")))
    assert "".join(e.text for e in played(play, generation("r")) if isinstance(e, Delta)) == "😀!"


def test_the_seed_chooses_the_play_and_the_journal_keeps_requests(tmp_path: Path) -> None:
    script = {
        "plays": {"7": {"steps": [{"text": "seven"}]}},
        "default": {"steps": [{"text": "x"}], "repeat": 3},
        "journal": str(tmp_path / "journal"),
    }
    (tmp_path / "script").write_text(json.dumps(script))
    engine = open_engine(EngineSettings("scripted", "", 64, script=str(tmp_path / "script")))
    texts = []
    for seed in (7, 8):
        events = engine.generate(generation("r", seed=seed), lambda: False, 0.0)
        texts.append("".join(event.text for event in events if isinstance(event, Delta)))
    assert texts == ["seven", "xxx"]
    journal = [json.loads(line) for line in (tmp_path / "journal").read_text().splitlines()]
    assert [line["sampling"]["seed"] for line in journal] == [7, 8]


def test_a_script_with_a_mistake_is_refused(tmp_path: Path) -> None:
    (tmp_path / "script").write_text('{"default": {"stepz": []}}')
    with pytest.raises(ValueError, match="stepz"):
        open_engine(EngineSettings("scripted", "", 64, script=str(tmp_path / "script")))
    (tmp_path / "script").write_text('{"load_error": "broken"}')
    with pytest.raises(ArtifactError, match="broken"):
        open_engine(EngineSettings("scripted", "", 64, script=str(tmp_path / "script")))
