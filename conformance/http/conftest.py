"""Which servers the suite talks to: the one at ``--base-url``, or ours, started when first needed.

Ours are two for the cases that any server can answer (the bundled model, and a scripted engine that says
``ok``), and a scripted one for each set of options that cases need.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping

import pytest

from conformance.http.cases import read_cases, script
from conformance.http.checks import ScriptedWorlds, World
from conformance.http.client import Client
from conformance.http.servers import Server
from conformance.http.tool_cases import spoken_vectors


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """``live`` is every server that must answer the general cases."""
    if "live" in metafunc.fixturenames:
        rated = metafunc.config.getoption("--base-url")
        servers = ["bundled", "scripted"] if rated is None else ["rated"]
        metafunc.parametrize("live", servers, indirect=True, scope="session")


@pytest.fixture(scope="session")
def rated(pytestconfig: pytest.Config) -> World | None:
    """The server at ``--base-url``."""
    url = pytestconfig.getoption("--base-url")
    if url is None:
        return None
    key = pytestconfig.getoption("--api-key")
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    return _world(url.rstrip("/"), headers, pytestconfig.getoption("--model"))


@pytest.fixture(scope="session")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Our server with the bundled model."""
    server = Server(tmp_path_factory.mktemp("bundled"))
    yield _world(server.base_url)
    server.stop()


@pytest.fixture(scope="session")
def scripted_servers(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[tuple[str, ...]], Server]]:
    """Servers of ours over the scripted engine, by their options; each knows every play of the suite."""
    if pytestconfig.getoption("--base-url") is not None:
        pytest.skip("needs a scripted engine behind the server")
    directory = tmp_path_factory.mktemp("scripted")
    path = directory / "script.json"
    path.write_text(json.dumps(script(read_cases(), spoken_vectors())), encoding="utf-8")
    servers: dict[tuple[str, ...], Server] = {}

    def get(options: tuple[str, ...]) -> Server:
        if options not in servers:
            servers[options] = Server(directory, options, path)
        return servers[options]

    yield get
    for server in servers.values():
        server.stop()


@pytest.fixture(scope="session")
def scripted(scripted_servers: Callable[[tuple[str, ...]], Server]) -> ScriptedWorlds:
    """The world of a scripted server, by its options; an API key among them is used."""
    worlds: dict[tuple[str, ...], World] = {}

    def get(options: tuple[str, ...]) -> World:
        if options not in worlds:
            key = options[options.index("--api-key") + 1] if "--api-key" in options else None
            headers = {} if key is None else {"authorization": f"Bearer {key}"}
            server = scripted_servers(options)
            model = _world(server.base_url, headers).model
            worlds[options] = World(Client(server.base_url), model, lambda: server.log, server.process.pid)
        return worlds[options]

    return get


@pytest.fixture(scope="session")
def live(request: pytest.FixtureRequest) -> World:
    """One of the servers for general cases; see ``pytest_generate_tests``."""
    if request.param == "scripted":
        worlds: ScriptedWorlds = request.getfixturevalue("scripted")
        return worlds(())
    world: World = request.getfixturevalue(request.param)
    return world


def _world(url: str, headers: Mapping[str, str] | None = None, model: str | None = None) -> World:
    client = Client(url, headers=headers or {})
    if model is None:
        answer = client.get("/v1/models")
        assert answer.status == 200, f"{url} names no models: {answer.status} {answer.body!r}"
        model = str(answer.json["data"][0]["id"])
    return World(client, model)
