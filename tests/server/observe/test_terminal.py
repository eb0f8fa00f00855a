"""A real server on a pseudo-terminal, and with its records in a file: start, panel, stop."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.http.client import Client
from ninfer.engine.inprocess import InProcessHost
from ninfer.engine.scripted import Play, Script, Step
from ninfer.server.main import main
from tests.server.conftest import MODEL
from tests.server.engines import RecordingEngine
from tests.server.inprocess import serving_host
from tests.server.observe.lines import Log
from tests.server.observe.terminal import TerminalServer
from tests.server.processes import ServerProcess, wait_gone, wait_queued
from tests.server.test_process import Begun, error_code

SLOW = {"steps": [{"text": "x", "wait_s": 0.02}], "repeat": 10**6}
RECORD = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} [A-Z]+ \S.*")
PROMPT = "Press Ctrl+C again within 5 s to close"

OnTerminal = Callable[..., TerminalServer]
InFile = Callable[..., ServerProcess]


@pytest.fixture
def engine(tmp_path: Path) -> dict[str, str]:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"plays": {"1": SLOW}, "load_s": 0.3}))
    return {"engine": "scripted", "script": str(script)}


@pytest.fixture
def terminal(nano: Path, engine: dict[str, str]) -> Iterator[OnTerminal]:
    """Starts servers on terminals; all are ended."""
    running: list[TerminalServer] = []

    def start(*arguments: str, **options: Any) -> TerminalServer:
        running.append(TerminalServer([str(nano), *MODEL, *arguments], engine, **options))
        return running[-1]

    yield start
    for server in running:
        server.__exit__(None, None, None)


@pytest.fixture
def in_file(nano: Path, tmp_path: Path, engine: dict[str, str]) -> Iterator[InFile]:
    """Starts servers whose stderr is a file; all are ended."""
    running: list[ServerProcess] = []

    def start(*arguments: str) -> ServerProcess:
        running.append(ServerProcess(tmp_path, [str(nano), *MODEL, *arguments], engine=engine))
        return running[-1]

    yield start
    for server in running:
        server.__exit__(None, None, None)


def records(server: ServerProcess, word: str) -> list[str]:
    return [line for line in server.log.splitlines() if word in line]


@pytest.mark.clause("PANEL-001", "PANEL-002", "PANEL-003", "OPT-028", "STOP-002", "STOP-003", "STOP-005")
def test_a_session_on_a_terminal(terminal: OnTerminal) -> None:
    """Panel under the records, prompt under the panel, and the panel stays when the server is gone."""
    server = terminal()
    client = server.wait_ready()
    server.until(lambda: server.panel)
    for _ in range(11):
        client.chat()
    panel = server.until(lambda: len(server.panel) == 4 and server.panel)
    assert panel[0].startswith("11 completed 0 failed 0 cancelled 0 rejected 0 running 0 waiting")
    assert [line.split()[0] for line in panel[2:]] == ["all", "last"]
    assert max(map(len, panel)) == 66
    assert len([line for line in server.lines if " done " in line]) == 11
    server.process.send_signal(signal.SIGINT)
    server.until(lambda: server.panel[-1:] == [PROMPT])
    assert len(server.panel) == 5
    assert client.get("/health").status == 200
    server.process.send_signal(signal.SIGINT)
    assert server.wait_end() == 0
    lines = server.lines
    stopped = next(index for index, line in enumerate(lines) if line.endswith("server stopped"))
    assert len(lines) == stopped + 5
    assert lines[stopped + 1 :] == panel
    assert server.screen.cursor == (len(lines), 0)
    assert all(RECORD.fullmatch(line) for line in lines[: stopped + 1]), lines


@pytest.mark.clause("PANEL-015")
def test_a_narrow_window(terminal: OnTerminal) -> None:
    server = terminal(columns=40)
    client = server.wait_ready()
    client.chat()
    panel = server.until(lambda: len(server.panel) == 3 and server.panel)
    assert max(map(len, panel)) <= 40
    server.resize(120)
    wide = server.until(lambda: len(server.panel) == 3 and len(server.panel[0]) == 66 and server.panel)
    assert [line[:40].rstrip() for line in wide] == [line.rstrip() for line in panel]


@pytest.mark.parametrize(
    ("arguments", "term", "shown"),
    [
        (("--log-level", "debug"), "xterm", True),
        (("--log-level", "warning"), "xterm", False),
        (("--log-stats-panel", "off"), "xterm", False),
        ((), "dumb", False),
    ],
)
def test_where_there_is_a_panel(
    terminal: OnTerminal, log: Log, arguments: tuple[str, ...], term: str, shown: bool
) -> None:
    server = terminal(*arguments, *log.arguments, term=term)
    log.wait("server_start", timeout_s=60)
    if shown:
        server.until(lambda: server.panel)
    else:
        time.sleep(0.3)
        assert server.panel == []
        assert "\x1b[J" not in server.output.rpartition("listening")[2]


def test_a_panel_is_on_or_off(nano: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(nano), "--log-stats-panel", "maybe"]) == 2
    assert "--log-stats-panel" in capsys.readouterr().err


@pytest.mark.clause("OPT-029")
def test_colours(terminal: OnTerminal, in_file: InFile) -> None:
    """Statistics on a terminal only, and only when asked for."""
    for arguments, coloured in (((), False), (("--log-colours", "on"), True)):
        server = terminal(*arguments, "--log-stats-interval-ms", "100")
        server.wait_ready().chat()
        server.until(lambda server=server: any(" throughput " in line for line in server.lines))
        server.until(lambda server=server: len(server.panel) == 3)
        assert bool(server.screen.colours) == coloured
    redirected = in_file("--log-colours", "on", "--log-stats-interval-ms", "100")
    redirected.wait_ready().chat()
    redirected.wait_for(" throughput ")
    assert "\x1b" not in redirected.log


@pytest.mark.clause("LOG-009")
def test_one_line_is_rewritten_while_the_server_starts(nano: Path, tmp_path: Path) -> None:
    """The scripted engine reports its load once; then lines are for good."""
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"load_s": 1.2}))
    engine = {"engine": "scripted", "script": str(script)}
    arguments = [str(nano), *MODEL, "--log-stats-interval-ms", "100"]
    with TerminalServer(arguments, engine) as server:
        client = server.wait_ready()
        before = server.screen.rewritten[:]
        assert all("\n" not in text for text in before)
        assert not any("loading weights" in line for line in server.lines)
        asked = 0
        while len(shown := [line for line in server.lines if " throughput " in line]) < 2:
            client.chat()
            asked += 1
            time.sleep(0.15)
        client.chat()
        server.until(lambda: len([line for line in server.lines if " done " in line]) == asked + 1)
        assert [line for line in server.lines if line in shown] == shown


@pytest.mark.clause("LOG-001", "LOG-002", "LOG-010", "LOG-016", "STOP-007")
def test_records_in_a_file(in_file: InFile) -> None:
    """Start-up, readiness, requests, intervals and the stop; nothing but records."""
    server = in_file("--log-stats-interval-ms", "200", "--log-colours", "on")
    client = server.wait_ready()
    for _ in range(3):
        client.chat()
    server.wait_for(" throughput ")
    assert server.stop() == 0
    lines = server.log.splitlines()
    assert all(RECORD.fullmatch(line) for line in lines), lines
    assert "\x1b" not in server.log
    assert "\r" not in server.log
    for word in ("loaded in", "listening on", "req#1 start", "req#1 done", "throughput", "server stopped"):
        assert records(server, word), word
    numbers = [re.search(r"req#(\d+) done", line)[1] for line in lines if " done " in line]  # type: ignore[index]
    assert numbers == ["1", "2", "3"]


@pytest.mark.clause("LOG-003")
def test_planning_needs_debug(in_file: InFile) -> None:
    logs = []
    for level in ("info", "debug"):
        server = in_file("--log-level", level)
        server.wait_ready()
        server.stop()
        logs.append({re.sub(r"[\d.]+", "#", line.split(" ", 3)[3]) for line in server.log.splitlines()})
    assert logs[1] - logs[0]
    assert not any("plan " in line for line in logs[0])
    assert any("plan " in line for line in logs[1])


@pytest.mark.clause("OPT-030")
def test_levels(in_file: InFile, log: Log, nano: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only stderr obeys the level: the request log is written anyway."""
    for level in ("off", "warning"):
        path = Log(log.path.with_name(f"{level}.jsonl"))
        server = in_file("--log-level", level, *path.arguments)
        start = path.wait("server_start", timeout_s=60)[0]
        assert start["server"]["port"] == 0
        Client(f"http://127.0.0.1:{port_of(server)}").chat()
        path.done()
        assert "req#" not in server.log
        assert level != "off" or server.log == ""
    assert main([str(nano), "--log-level", "verbose"]) == 2
    assert "--log-level" in capsys.readouterr().err


def port_of(server: ServerProcess) -> int:
    """The port a silent server listens on."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        inodes = set()
        for entry in Path(f"/proc/{server.process.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                inodes.add(str(entry.readlink()).removeprefix("socket:[").removesuffix("]"))
        for row in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            words = row.split()
            if words[9] in inodes and words[3] == "0A":
                return int(words[1].rpartition(":")[2], 16)
        time.sleep(0.05)
    raise AssertionError("it does not listen")


@pytest.mark.clause("LOG-011")
def test_nothing_of_a_client_is_shown(in_file: InFile) -> None:
    server = in_file("--log-level", "trace", "--api-key", "right")
    client = server.wait_ready()
    turns = [{"role": "user", "content": "SECRET-PROMPT"}]
    body = {"model": "nano", "messages": turns, "max_tokens": 2}
    key = {"Authorization": "Bearer right"}
    path = "/v1/chat/completions"
    assert client.request("POST", path, body, key).status == 200
    assert client.request("POST", path, body, {"Authorization": "Bearer SECRET-KEY"}).status == 401
    for wrong in (
        {"SECRET-FIELD": 1, "messages": 1},
        {"max_tokens": "SECRET-FIELD"},
        {"model": "SECRET-FIELD"},
    ):
        assert client.request("POST", path, body | wrong, key).status in (400, 404)
    assert client.request("GET", "/SECRET-FIELD", headers=key).status == 404
    server.stop()
    assert "req#1 done" in server.log
    assert "SECRET" not in server.log
    assert "right" not in server.log


@pytest.mark.clause("STOP-004", "STOP-006", "STOP-015")
def test_one_press_only_asks(in_file: InFile) -> None:
    """In a file as a warning; after five seconds it is forgotten and the next press asks again."""
    server = in_file()
    client = server.wait_ready()
    for expected in (1, 2):
        server.process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + 60
        while len(records(server, PROMPT)) < expected:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        if expected == 1:
            time.sleep(5.5)
            assert client.get("/health").status == 200
    assert server.stop(signal.SIGINT) == 0
    assert all(f" WARNING {PROMPT}" in line for line in records(server, PROMPT))


def test_the_prompt_on_a_terminal_goes_away(terminal: OnTerminal) -> None:
    server = terminal()
    server.wait_ready()
    server.process.send_signal(signal.SIGINT)
    server.until(lambda: PROMPT in server.lines)
    server.until(lambda: PROMPT not in server.lines)
    assert server.process.poll() is None


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGQUIT], ids=["SIGHUP", "SIGQUIT"])
def test_a_hang_up_stops_at_once(in_file: InFile, number: int) -> None:
    server = in_file()
    server.wait_ready()
    assert server.stop(number) == 0
    assert "server stopped" in server.log
    assert PROMPT not in server.log


@pytest.mark.clause("STOP-009", "STOP-010")
def test_a_stop_ends_what_runs_and_what_waits(in_file: InFile) -> None:
    server = in_file()
    client = server.wait_ready()
    running, queued = Begun(client), client.open_chat(seed=1, max_tokens=10**6)
    wait_queued(client, 1)
    server.process.send_signal(signal.SIGTERM)
    assert running.error() == "service_unavailable"
    assert error_code(queued) == (503, "service_unavailable")
    assert server.process.wait(20) == 0


class KnockingHost(InProcessHost):
    """Knocks at its own server when it is told to end its requests; ``refused`` says how that went."""

    where: tuple[str, int] | None = None
    refused = False

    def close(self) -> None:
        if self.where is not None and self.available:
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(self.where, timeout=20)
            self.refused = True
        super().close()


@pytest.mark.clause("STOP-008")
def test_while_stopping_no_connection_is_taken(nano: Path) -> None:
    """The socket closes first: whoever comes while requests are ended is refused."""
    slow = Play((Step(text="x", wait_s=0.02),), repeat=10**6)
    host = KnockingHost(RecordingEngine(Script(default=slow)))
    with serving_host(nano, host, ("--port", "0", *MODEL)) as client:
        running = Begun(client)
        host.where = ("127.0.0.1", int(client.base_url.rpartition(":")[2]))
    assert running.error() == "service_unavailable"
    assert host.refused


@pytest.mark.clause("STOP-017")
def test_before_readiness_one_press_ends_the_start(nano: Path, tmp_path: Path) -> None:
    script = tmp_path / "slow.json"
    script.write_text(json.dumps({"load_s": 60}))
    engine = {"engine": "scripted", "script": str(script)}
    with ServerProcess(tmp_path, [str(nano), *MODEL], engine=engine) as server:
        server.wait_for("parameters=")
        child = server.engine_pid()
        assert server.stop(signal.SIGINT) == 130
        wait_gone(child)
        assert "Ctrl+C" not in server.log


@pytest.mark.clause("PANEL-019")
def test_a_panel_changes_no_answer(terminal: OnTerminal) -> None:
    """The same seeded requests, and the panel's totals are those of the done records."""
    answers = []
    for option in ("on", "off"):
        server = terminal("--log-stats-panel", option)
        client = server.wait_ready()
        own = [client.chat(seed=seed, max_tokens=5).json for seed in range(2, 7)]
        answers.append([(entry["choices"], entry["usage"]) for entry in own])
        server.until(lambda server=server: len([li for li in server.lines if " done " in li]) == 5)
        if option == "on":
            server.until(lambda server=server: server.panel[0].startswith("5 completed 0 failed"))
    assert answers[0] == answers[1]
