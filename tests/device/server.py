"""``ninfer-serve`` in processes of its own, with what a start says: log, request log, metrics, memory."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from conformance.http.client import Answer, Client

ROOT = Path(__file__).parents[2]
PLANT = Path(__file__).parent / "plant"
# A machine's first start compiles every kernel.
START_S, STOP_S = 150.0, 30.0
MODEL = "ninfer-tiny"
Line = dict[str, Any]


class DeviceServer:
    """One process; ``plant`` says what ``plant/sitecustomize.py`` does to its engine process."""

    def __init__(
        self,
        directory: Path,
        options: Sequence[str],
        environ: Mapping[str, str] | None = None,
        plant: str | None = None,
    ) -> None:
        directory.mkdir()
        self._log, self.records_path = directory / "log", directory / "requests.jsonl"
        self.trace_path = directory / "trace.jsonl"
        variables = {**os.environ, **(environ or {})}
        variables.pop("TRITON_INTERPRET", None)
        if plant is not None:
            path = os.pathsep.join(filter(None, (str(PLANT), variables.get("PYTHONPATH"))))
            variables |= {"PYTHONPATH": path, "PLANT": plant, "PLANT_TRACE": str(self.trace_path)}
        command = [sys.executable, "-m", "ninfer.server.main", "--port", "0"]
        with self._log.open("wb") as sink:
            self.process = subprocess.Popen(
                [*command, "--request-log-jsonl", str(self.records_path), *options],
                cwd=ROOT,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
            )
        self._client: Client | None = None

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8")

    @property
    def client(self) -> Client:
        """For the address of the readiness line, waited for. Errors: ``AssertionError`` with the log."""
        if self._client is None:
            deadline = time.monotonic() + START_S
            while (match := re.search(r"listening on (http://\S+)", self.log)) is None:
                assert self.process.poll() is None, f"the server ended while it started:\n{self.log}"
                assert time.monotonic() < deadline, f"no readiness line:\n{self.log}"
                time.sleep(0.05)
            self._client = Client(match[1], timeout_s=120.0)
        return self._client

    @property
    def records(self) -> list[Line]:
        """Whole lines of the request log so far."""
        text = self.records_path.read_text(encoding="utf-8") if self.records_path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    @property
    def start(self) -> Line:
        """The ``server_start`` record."""
        assert self.client
        (start,) = [line for line in self.records if line["event"] == "server_start"]
        return start

    @property
    def memory(self) -> Line:
        memory: Line = self.start["memory"]
        return memory

    @property
    def trace(self) -> list[Line]:
        """What a planted trace wrote."""
        return [json.loads(line) for line in self.trace_path.read_text(encoding="utf-8").splitlines()]

    def metric(self, name: str) -> float:
        """The value of a metric without labels."""
        text = self.client.get("/metrics").body.decode()
        match = re.search(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE)
        assert match is not None, f"no {name} in\n{text}"
        return float(match[1])

    def ask(self, question: str = "What is 12 + 30?", **members: Any) -> Answer:
        """A greedy answer without thinking."""
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": question}],
            "temperature": 0,
            "max_tokens": 48,
            "chat_template_kwargs": {"enable_thinking": False},
        }
        return self.client.chat(**body | members)

    def text(self, question: str = "What is 12 + 30?", **members: Any) -> str:
        """The content of a greedy answer."""
        answer = self.ask(question, **members)
        assert answer.status == 200, answer.body
        content: str = answer.json["choices"][0]["message"]["content"]
        assert content
        return content

    def stop(self) -> int:
        """End it as an operator would; its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_S)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()


class Servers:
    """Every server of a session."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._started: list[DeviceServer] = []

    def start(
        self, *options: str, environ: Mapping[str, str] | None = None, plant: str | None = None
    ) -> DeviceServer:
        """A process that has begun to start."""
        directory = self._directory / f"server-{len(self._started)}"
        server = DeviceServer(directory, options, environ, plant)
        self._started.append(server)
        return server

    def stop(self) -> None:
        """End those that run."""
        for server in self._started:
            server.stop()
