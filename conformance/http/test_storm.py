"""A crowd of clients, a third of which leaves at random moments: named errors only, nothing left behind."""

from __future__ import annotations

import re
import secrets
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conformance.http.checks import World, ask
from conformance.http.client import Client
from conformance.http.servers import Server
from conformance.http.storm import Storm, resident_bytes, settle

LEAVING = 1 / 3
CONTEXT = 4096
LANES = 8
# Every lane at its longest shares this: what one long request needs in the end is nearly all of it.
OPTIONS = (
    *("--max-context", str(CONTEXT), "--kv-capacity", str(CONTEXT), "--max-concurrency", str(LANES)),
    *("--max-pending-requests", "64", "--pending-timeout-ms", "600000"),
)
MIB = 2**20
# Allocators keep some of what a crowd took; a leak of one page or one answer a request is more than this.
GROWTH_BYTES = 48 * MIB


# Without the prefix cache every page that is in use belongs to somebody.
WITHOUT_CACHE = ("--no-prefix-reuse",)
IDLE = ("running", "waiting", "paused", "prefilling", "decode_ready", "replaying", "materializing")


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    if request.config.getoption("--base-url") is not None:
        pytest.skip("does not flood a server that is not ours")
    server = Server(tmp_path, (*OPTIONS, *request.param))
    yield server
    server.stop()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("server", [WITHOUT_CACHE], ids=["no cache"], indirect=True)
def test_a_small_crowd(server: Server) -> None:
    endure(server, clients=16, requests=96, seed=1)
    assert gauge(server, "device_kv_used_pages") == 0


@pytest.mark.campaign
@pytest.mark.parametrize("server", [(), WITHOUT_CACHE], ids=["cache", "no cache"], indirect=True)
def test_a_crowd(request: pytest.FixtureRequest, server: Server) -> None:
    """64 clients, 2,000 requests."""
    seed = secrets.randbits(32)
    print(f"storm seed {seed}")
    endure(server, clients=64, requests=2000, seed=seed)
    if request.node.callspec.params["server"] == WITHOUT_CACHE:
        assert gauge(server, "device_kv_used_pages") == 0


def endure(server: Server, *, clients: int, requests: int, seed: int) -> None:
    """Two storms: what the second adds to the memory that the first has left is a leak."""
    world = World(Client(server.base_url, timeout_s=600), "ninfer-tiny")
    ends: Counter[str] = Counter()
    levels = []
    for part, share in enumerate((0.4, 0.6)):
        ends += Storm(clients, int(requests * share), LEAVING, seed + part).blow(world)
        settle(world)
        levels.append(resident_bytes(server.process.pid))
    print(f"{dict(ends)}, {levels[0] / MIB:.0f} MiB, then {levels[1] / MIB:.0f} MiB")
    assert ends["left"] > requests / 5
    assert ends["answered"] > requests / 3
    assert levels[1] - levels[0] < GROWTH_BYTES
    assert {name: gauge(server, f"requests_{name}") for name in IDLE} == dict.fromkeys(IDLE, 0)
    _use_every_page(world)
    assert server.process.poll() is None
    assert " ERROR " not in server.log
    assert "Traceback" not in server.log


def gauge(server: Server, name: str) -> float:
    """The value of a metric without labels, once nothing runs any more."""
    text = Client(server.base_url).get("/metrics").body.decode()
    (value,) = re.findall(rf"^ninfer_{name} (\S+)$", text, re.MULTILINE)
    return float(value)


def _use_every_page(world: World) -> None:
    """One request that needs nearly all pages, then every lane at once."""
    one = ask(
        world, "chat", {"messages": [{"role": "user", "content": "a " * (CONTEXT - 400)}], "max_tokens": 64}
    )
    assert one.prompt_tokens > CONTEXT * 7 // 8, one.prompt_tokens
    assert one.reason in ("stop", "length")
    with ThreadPoolExecutor(LANES) as pool:
        answers = list(pool.map(lambda _: ask(world, "chat", {"max_tokens": 16}), range(LANES)))
    assert len({answer.content + answer.reasoning for answer in answers}) == 1
