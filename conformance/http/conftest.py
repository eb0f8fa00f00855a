"""Where the server under test is: ``NINFER_BASE_URL``, or one that this suite starts and ends."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.http.client import Client

ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 60.0


@pytest.fixture(scope="session")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of the server under test."""
    base_url = os.environ.get("NINFER_BASE_URL")
    if base_url is not None:
        yield Client(base_url.rstrip("/"))
        return
    log = tmp_path_factory.mktemp("server") / "log"
    with log.open("wb") as sink:
        command = [sys.executable, "-m", "ninfer.server.main", "--port", "0"]
        server = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink)
    try:
        yield Client(wait_for_address(server, log))
    finally:
        server.terminate()
        assert server.wait(30) == 0


@pytest.fixture(scope="session")
def model(client: Client) -> str:
    """The public name of the only model."""
    (entry,) = client.get("/v1/models").json["data"]
    return str(entry["id"])


def wait_for_address(server: subprocess.Popen[bytes], log: Path) -> str:
    """The base URL that the readiness line names."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while (match := re.search(r"listening on (http://\S+)", log.read_text())) is None:
        assert server.poll() is None, f"the server ended while it started:\n{log.read_text()}"
        assert time.monotonic() < deadline, f"no readiness line:\n{log.read_text()}"
        time.sleep(0.05)
    return match[1]
