"""Schemathesis reads the OpenAPI document and asks a server of ours everything it can think of.

Data that the schema allows and data that it does not, boundary values of every field, and walks along the
document's links: a stored Response is read, continued and forgotten, an answer becomes history.
"""

from __future__ import annotations

import copy
import json
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.http.checks import World, ask
from conformance.http.client import Client
from conformance.http.contract import document
from conformance.http.servers import Server

CAMPAIGN_REQUESTS = 20_000
# What the document cannot say: bodies that its schema allows and the template refuses are honest 400s.
_LEFT_OUT = "positive_data_acceptance"
_MODEL = "generated"
_CONFIGURATION = "[phases.stateful]\nmax-steps = 12\n"


@pytest.fixture
def server(tmp_path: Path, pytestconfig: pytest.Config) -> Iterator[Server]:
    """Its engine says ``ok``: generated bodies ask for real answers, which nobody reads."""
    if pytestconfig.getoption("--base-url") is not None:
        pytest.skip("does not flood a server that is not ours")
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"default": {"steps": [{"text": "</think>\n"}, {"text": "ok"}]}}))
    server = Server(tmp_path, ("--model-id", _MODEL), script)
    yield server
    server.stop()


@pytest.mark.timeout(400)
def test_nothing_breaks_the_document(server: Server, tmp_path: Path) -> None:
    arguments = ("--max-examples", "3", "--seed", "1", "--no-shrink")
    assert generate(server, tmp_path, *arguments, least_links=0.5) > 1000


@pytest.mark.campaign
def test_nothing_breaks_the_document_for_long(server: Server, tmp_path: Path) -> None:
    requests = 0
    while requests < CAMPAIGN_REQUESTS:
        seed = secrets.randbits(32)
        print(f"schemathesis --seed {seed} after {requests} requests")
        requests += generate(server, tmp_path, "--max-examples", "150", "--seed", str(seed), least_links=1.0)
    print(f"{requests} generated requests")


def generate(server: Server, directory: Path, *arguments: str, least_links: float) -> int:
    """Fails unless every status, header and body is as documented and none is a 5xx; the requests sent.

    ``least_links`` is the share of the document's links that must be walked.
    """
    (directory / "openapi.json").write_text(json.dumps(_document()))
    (directory / "schemathesis.toml").write_text(_CONFIGURATION)
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", "openapi.json", "--url", server.base_url),
        *("--phases", "examples,coverage,fuzzing,stateful", "--exclude-checks", _LEFT_OUT),
        *("--continue-on-failure", "--no-color", "--generation-database", ":memory:"),
        *arguments,
    ]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    links = re.search(r"API Links: +(\d+) covered / (\d+) selected", done.stdout)
    assert links is not None, done.stdout
    assert int(links[1]) >= least_links * int(links[2]), f"only {links[0]}"
    assert server.process.poll() is None
    assert Client(server.base_url).get("/health").status == 200
    assert ask(World(Client(server.base_url), _MODEL), "chat", {}).content == "ok"
    counted = re.search(r"(\d+) generated", done.stdout)
    assert counted is not None, done.stdout
    return int(counted[1])


def _document() -> Any:
    """The document with the one model's name in requests, and links that send their own body as it stands."""
    made = copy.deepcopy(document("http/openapi"))
    for name in ("ChatRequest", "ResponsesRequest"):
        made["components"]["schemas"][name]["properties"]["model"] = {"const": _MODEL}
    for link in _links(made):
        if "requestBody" in link:
            link["x-schemathesis"] = {"merge_body": False}
    return made


def _links(made: Any) -> Iterator[dict[str, Any]]:
    for path in made["paths"].values():
        for operation in path.values():
            if isinstance(operation, dict):
                for response in operation.get("responses", {}).values():
                    yield from response.get("links", {}).values()
