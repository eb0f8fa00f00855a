"""``ninfer``: one answer in the terminal; the answer on stdout, everything else on stderr."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ninfer.artifact import Artifact
from ninfer.cli import main as program
from ninfer.engine.host import EngineProcess
from ninfer.engine.settings import EngineSettings
from ninfer.prompt import Tokenizer
from tests.support.nano import nano_artifact

ROOT = Path(__file__).parents[2]
THINKING = {"steps": [{"text": "why"}, {"text": "</think>\n\n"}, {"text": "hel"}, {"text": "lo"}]}

Run = Callable[..., int]


@pytest.fixture(scope="session")
def nano(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nano_artifact(tmp_path_factory.mktemp("nano"))


@pytest.fixture
def run(nano: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the program on the nano artifact with an engine process that plays a script."""
    script = tmp_path / "script.json"

    def start(settings: EngineSettings, **hooks: Any) -> EngineProcess:
        return EngineProcess(
            msgspec.structs.replace(settings, engine="scripted", script=str(script)), **hooks
        )

    monkeypatch.setattr(program, "EngineProcess", start)

    def run(*arguments: str, play: dict[str, Any] | None = None, **members: Any) -> int:
        script.write_text(json.dumps({"default": play or THINKING, **members}))
        return program.main([str(nano), *arguments])

    return run


@pytest.fixture(autouse=True)
def _logging_as_before(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program's own logging set-up would outlive the captured streams."""
    from ninfer.server import log

    monkeypatch.setattr(log, "configure", lambda level: None)


def journal(path: Path) -> dict[str, Any]:
    """The only request that the engine got."""
    (line,) = path.read_text().splitlines()
    return dict(json.loads(line))


def test_the_answer_and_nothing_else_is_on_stdout(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("--prompt", "hi") == 0
    out, err = capfd.readouterr()
    assert out == "hello\n"
    assert "why" in err
    assert re.search(r"finish=stop prompt_tokens=\d+ completion_tokens=4 reasoning_tokens=2", err)


def test_options_reach_the_engine(run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "journal"
    arguments = [
        "--no-thinking",
        "--seed",
        "7",
        "--temperature",
        "0.5",
        "--max-new",
        "2",
        "--stop",
        "l",
        "--stop",
        "x",
    ]
    assert (
        run(
            "--prompt",
            "hi",
            *arguments,
            play={"steps": [{"text": "a"}, {"text": "b"}, {"text": "c"}]},
            journal=str(path),
        )
        == 0
    )
    request = journal(path)
    assert request["initial_channel"] == "content"
    assert (request["sampling"]["seed"], request["sampling"]["temperature"]) == (7, 0.5)
    assert (request["max_tokens"], request["stops"]) == (2, ["l", "x"])
    assert capfd.readouterr().out == "ab\n"


def test_a_thinking_budget(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    assert run("--prompt", "hi", "--thinking-budget", "5", journal=str(path)) == 0
    budget = journal(path)["thinking_budget"]
    assert budget["tokens"] == 5
    assert len(budget["closing"]) > 2


@pytest.mark.parametrize("form", ["array", "object"])
def test_messages_come_from_a_file(
    run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str], form: str
) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    ]
    path = tmp_path / "messages.json"
    path.write_text(json.dumps(messages if form == "array" else {"messages": messages, "tools": []}))
    assert run("--messages", str(path)) == 0
    assert capfd.readouterr().out == "hello\n"


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (None, "cannot read"),
        ("", "empty"),
        ("[", "not valid JSON"),
        ("[]", "at least one message"),
        ('{"messages": 5}', "messages must be an array"),
        ('[{"role": "wizard", "content": "x"}]', "messages[0].role"),
        ('{"messages": [{"role": "user", "content": "x"}], "tools": [{}]}', "tools is not supported"),
    ],
)
def test_a_wrong_file_is_named(
    run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str], content: str | None, named: str
) -> None:
    path = tmp_path / "messages.json"
    if content is not None:
        path.write_text(content)
    assert run("--messages", str(path)) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("ninfer: --messages: ")
    assert named in err


def test_a_prompt_that_is_too_long(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("--prompt", "1" * 200, "--max-context", "64") == 1
    assert "> 64 maximum" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("play", "named"),
    [
        ({"steps": [{"fail": "assertion"}]}, "failed on this request"),
        ({"steps": [{"text": "x"}, {"fail": "exit"}]}, "engine has ended"),
    ],
)
def test_a_failure_is_one_line_and_status_1(
    run: Run, capfd: pytest.CaptureFixture[str], play: dict[str, Any], named: str
) -> None:
    assert run("--prompt", "hi", play=play) == 1
    last = capfd.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("ninfer: ")
    assert named in last


class ClosedPipe(io.StringIO):
    """A standard output whose reader has gone."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor

    def write(self, text: str) -> int:
        raise BrokenPipeError

    def fileno(self) -> int:
        return self._descriptor


def test_a_reader_that_has_seen_enough_is_no_traceback(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with (tmp_path / "stdout").open("w") as stdout:
        monkeypatch.setattr(sys, "stdout", ClosedPipe(stdout.fileno()))
        assert run("--prompt", "hi") == 1


def test_token_ids_are_those_of_the_text(nano: Path) -> None:
    """With the reference engine, in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "ninfer.cli.main",
        str(nano),
        "--prompt",
        "hi",
        "--greedy",
        "--no-thinking",
    ]
    done = subprocess.run(
        [*command, "--max-new", "6", "--print-token-ids"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.search(r"^token_ids=([\d,]+)$", done.stderr, re.MULTILINE)
    assert found is not None
    ids = [int(token_id) for token_id in found[1].split(",")]
    with Artifact.open(nano) as artifact:
        names = ("tokenizer.json", "tokenizer_config.json")
        tokenizer = Tokenizer.from_resources(*(artifact.resource("text", name) for name in names))
    assert len(ids) == 6
    assert done.stdout == b"".join(map(tokenizer.token_bytes, ids)).decode(errors="replace") + "\n"
