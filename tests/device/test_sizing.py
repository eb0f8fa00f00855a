"""Automatic sizing on a device: one server at a time, for each takes all memory but the headroom."""

from __future__ import annotations

import pytest

from tests.device.nvml import free_bytes
from tests.device.server import DeviceServer, Servers

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("cuda")]

OPTIONS = ("--max-context", "4096", "--prefill-chunk", "256")
MIB, GIB = 2**20, 2**30
# The driver hands memory out in pieces of this size.
ROUNDING = 8 * MIB


def run(servers: Servers, *options: str) -> tuple[DeviceServer, int]:
    """A server that has answered and ended, and what was free while it ran."""
    server = servers.start(*OPTIONS, *options)
    assert "42" in server.text()
    free = free_bytes()
    assert server.metric("ninfer_device_kv_capacity_pages") == server.start["engine"]["kv_pages"]
    sizing = server.memory["kv_sizing"]
    print(f"{options}: pages {server.start['engine']['kv_pages']}, free {free / MIB:.1f} MiB, "
          f"{ {name: round(value / MIB, 1) for name, value in sizing.items()} }")  # fmt: skip
    assert server.stop() == 0
    return server, free


@pytest.fixture(scope="module")
def default(servers: Servers) -> tuple[DeviceServer, int]:
    """Without ``--kv-capacity``."""
    return run(servers)


@pytest.mark.clause_early("CAP-007")
def test_a_gib_is_left_free(default: tuple[DeviceServer, int]) -> None:
    """The check's second half needs ``--vision``."""
    server, free = default
    memory, sizing = server.memory, server.memory["kv_sizing"]
    assert sizing["headroom_bytes"] == GIB
    # What was set aside for graphs and not taken by them stays free too.
    idle = memory["cuda_graph_allowance_bytes"] - memory["cuda_graph_measured_bytes"]
    page = memory["kv_page_bytes"]
    for left in (memory["available_after_startup_bytes"], free):
        assert abs(left - idle - GIB) <= page + ROUNDING


@pytest.mark.clause("JLOG-021")
def test_the_ledger_adds_up(default: tuple[DeviceServer, int]) -> None:
    memory = default[0].memory
    sizing = memory["kv_sizing"]
    parts = ("headroom_bytes", "cuda_graph_allowance_bytes", "kv_payload_bytes", "unused_bytes")
    assert sizing["free_bytes"] == sum(sizing[name] for name in parts)
    assert sizing["kv_payload_bytes"] == memory["kv_payload_bytes"]
    assert 0 <= sizing["unused_bytes"] < memory["kv_page_bytes"]
    assert sizing["free_bytes"] < default[0].start["environment"]["gpu_memory_bytes"]


@pytest.mark.clause("OPT-011", "OPT-012")
def test_a_gib_more_headroom_is_a_gib_less_of_pages(
    servers: Servers, default: tuple[DeviceServer, int]
) -> None:
    wider, _ = run(servers, "--vram-headroom-mib", "2048")
    first, second = (server.memory["kv_payload_bytes"] for server in (default[0], wider))
    assert abs(first - second - GIB) <= default[0].memory["kv_page_bytes"] + ROUNDING


@pytest.mark.clause("START-007")
def test_auto_is_the_default_and_takes_what_is_free(
    servers: Servers, default: tuple[DeviceServer, int]
) -> None:
    import torch

    named, _ = run(servers, "--kv-capacity", "auto")
    pages = [server.start["engine"]["kv_pages"] for server in (default[0], named)]
    page = default[0].memory["kv_page_bytes"]
    assert abs(pages[0] - pages[1]) * page <= ROUNDING
    assert f"kv_capacity_tokens={64 * pages[0]} " in default[0].log
    before = free_bytes()
    ballast = torch.empty(4 * GIB, dtype=torch.uint8, device="cuda")
    taken = before - free_bytes()
    fewer, _ = run(servers)
    del ballast
    lost = (pages[0] - fewer.start["engine"]["kv_pages"]) * page
    assert abs(lost - taken) <= page + ROUNDING


@pytest.mark.clause("JLOG-023")
def test_arenas_are_what_the_device_grows_by(servers: Servers) -> None:
    """Two servers' difference: what every process takes for CUDA itself falls out."""
    stated, grown = [], []
    for capacity, chunk in (("8192", "256"), ("262144", "8192")):
        before = free_bytes()
        server = servers.start(
            "--kv-capacity", capacity, "--max-context", "8192", "--prefill-chunk", chunk, "--no-cuda-graph"
        )
        assert "42" in server.text()
        grown.append(before - free_bytes())
        assert server.memory["vision_workspace"] is None
        arenas = ("weights", "sequence", "workspace")
        stated.append(sum(server.memory[name]["capacity_bytes"] for name in arenas))
        assert server.stop() == 0
    print(f"stated {stated[1] - stated[0]} bytes more, grown by {grown[1] - grown[0]} more")
    assert stated[1] - stated[0] > 128 * MIB
    # Temporaries of a larger chunk stay in the allocator's cache.
    assert abs((grown[1] - grown[0]) / (stated[1] - stated[0]) - 1) < 0.1
