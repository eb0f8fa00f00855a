"""Servers with explicit sizes: they run beside each other and say what they hold and how they ran."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.device.server import DeviceServer, Servers

pytestmark = pytest.mark.timeout(400)

SIZES = ("--kv-capacity", "16384", "--max-context", "4096", "--prefill-chunk", "256")
KV_FORMATS = ("int8", "fp8", "nvfp4", "k8v4")
QUESTIONS = ("What is 12 + 30?", "Write the numbers from 1 to 9.", "Say hello.")
MIB = 2**20


@pytest.fixture(scope="module")
def first(servers: Servers) -> Iterator[DeviceServer]:
    """Three lanes, traced; it compiles the kernels that the others find compiled."""
    options = ("--max-concurrency", "3", "--log-stats-interval-ms", "200")
    server = servers.start(*SIZES, *options, plant="trace")
    assert server.client
    yield server
    server.stop()


@pytest.fixture(scope="module")
def group(servers: Servers, first: DeviceServer, stand_in: bool) -> Iterator[dict[str, DeviceServer]]:
    """The others, started together."""
    hidden = {"CUDA_VISIBLE_DEVICES": ""}
    started = {name: servers.start(*SIZES, "--kv-dtype", name) for name in KV_FORMATS}
    if stand_in:
        yield started | dict.fromkeys(("blocking", "yield", "auto", "no device"), first)
        return
    started |= {
        "no graphs": servers.start(*SIZES, *("--max-concurrency", "3", "--no-cuda-graph")),
        "blocking": servers.start(*SIZES, environ={"NINFER_CUDA_SYNC": "blocking"}),
        "yield": servers.start(*SIZES, environ={"NINFER_CUDA_SYNC": "yield"}),
        "auto": servers.start(*SIZES, environ={"NINFER_CUDA_SYNC": "auto"}),
        "overshoot": servers.start(*SIZES, plant="overshoot"),
        "no device": servers.start(*SIZES, environ=hidden),
    }
    yield started
    for server in started.values():
        server.stop()


@pytest.fixture(scope="module")
def answers(first: DeviceServer) -> list[str]:
    return [first.text(question) for question in QUESTIONS]


@pytest.mark.clause("START-043", "SETTLE-012")
def test_one_command_answers_with_a_device_and_without(
    group: dict[str, DeviceServer], first: DeviceServer, stand_in: bool
) -> None:
    without = group["no device"]
    for server in (first, without):
        answer = server.text()
        print(f"{server.start['environment']['device']}: {answer!r}")
        assert "42" in answer
    assert without.start["environment"]["device"] == "cpu"
    if not stand_in:
        assert first.start["environment"]["device"] == 0
        assert first.start["environment"]["gpu_name"]


@pytest.mark.clause("START-003")
@pytest.mark.parametrize("mode", ["blocking", "yield", "auto"])
def test_every_way_to_wait_gives_the_same_tokens(
    group: dict[str, DeviceServer], answers: list[str], mode: str
) -> None:
    assert [group[mode].text(question) for question in QUESTIONS] == answers


@pytest.mark.clause("START-003")
def test_spin_said_aloud_is_the_default_and_another_word_stops_the_start(
    servers: Servers, answers: list[str]
) -> None:
    spin = servers.start(*SIZES, environ={"NINFER_CUDA_SYNC": "spin"})
    other = servers.start(*SIZES, environ={"NINFER_CUDA_SYNC": "sleep"})
    assert [spin.text(question) for question in QUESTIONS] == answers
    assert other.process.wait(60) != 0
    assert "NINFER_CUDA_SYNC" in other.log
    assert "listening on" not in other.log


@pytest.mark.clause("OPT-064")
@pytest.mark.usefixtures("cuda")
def test_the_same_tokens_without_graphs(
    group: dict[str, DeviceServer], first: DeviceServer, answers: list[str]
) -> None:
    server = group["no graphs"]
    assert [server.text(question) for question in QUESTIONS] == answers
    assert server.start["engine"]["cuda_graph"] is False
    assert server.memory["cuda_graph_measured_bytes"] == 0
    assert first.start["engine"]["cuda_graph"] is True


@pytest.mark.clause("JLOG-025")
@pytest.mark.usefixtures("cuda")
def test_graph_memory_reserved_and_taken(group: dict[str, DeviceServer], first: DeviceServer) -> None:
    for name, server in (("graphs", first), ("no graphs", group["no graphs"]), ("cpu", group["no device"])):
        reserved = server.memory["cuda_graph_allowance_bytes"]
        taken = server.memory["cuda_graph_measured_bytes"]
        print(f"{name}: reserved {reserved / MIB:.1f} MiB, taken {taken / MIB:.1f} MiB")
        assert (reserved > 0, taken > 0) == ((True, True) if name == "graphs" else (False, False))


@pytest.mark.clause("CAP-009", "CAP-010")
@pytest.mark.usefixtures("cuda")
def test_the_allowance_grows_with_the_batch_sizes(
    group: dict[str, DeviceServer], first: DeviceServer
) -> None:
    three, one = (s.memory["cuda_graph_allowance_bytes"] for s in (first, group["blocking"]))
    for allowance in (one, three):
        assert allowance > 64 * MIB
        assert (allowance - 64 * MIB) % (4 * MIB) == 0
    # Two more batch sizes; Forward and Finish of each, in one topology class.
    assert three - one == 2 * 2 * 4 * MIB


@pytest.mark.clause("CAP-014")
@pytest.mark.usefixtures("cuda")
def test_the_log_gives_both_numbers_and_warns_once_of_an_overshoot(
    group: dict[str, DeviceServer], first: DeviceServer
) -> None:
    for server, warnings in ((first, 0), (group["overshoot"], 1)):
        memory = server.memory
        for name in ("cuda_graph_allowance_bytes", "cuda_graph_measured_bytes"):
            assert f"{name}={memory[name]} " in server.log
        assert server.log.count("CUDA graphs took") == warnings
    assert group["overshoot"].memory["cuda_graph_measured_bytes"] > 0


@pytest.mark.clause("OPT-042")
def test_every_kv_format_starts_and_answers(group: dict[str, DeviceServer], first: DeviceServer) -> None:
    """The bound of their logits: ``test_logits.py``."""
    assert first.start["engine"]["kv_cache"] == "bf16"
    for name in KV_FORMATS:
        server = group[name]
        assert server.start["engine"]["kv_cache"] == name
        answer = server.text()
        print(f"{name}: {answer!r}")
        assert answer


@pytest.mark.clause("OPT-042", "OPT-012")
def test_options_that_a_start_refuses(servers: Servers) -> None:
    refused = {
        "--kv-dtype": servers.start("--kv-dtype", "fp4"),
        "--vram-headroom-mib": servers.start("--kv-capacity", "8192", "--vram-headroom-mib", "512"),
    }
    for option, server in refused.items():
        assert server.process.wait(60) != 0
        assert option in server.log
        assert "listening on" not in server.log


@pytest.mark.clause_early("OPT-031")
@pytest.mark.usefixtures("cuda")
def test_a_device_that_is_not_there(servers: Servers) -> None:
    server = servers.start("--device", "99", *SIZES)
    assert server.process.wait(60) != 0
    assert "--device" in server.log


@pytest.mark.clause("JLOG-021")
@pytest.mark.usefixtures("cuda")
def test_the_start_record_names_arenas_and_device(first: DeviceServer) -> None:
    memory, environment = first.memory, first.start["environment"]
    for arena in ("weights", "sequence", "workspace"):
        assert memory[arena]["capacity_bytes"] > 0
    pages, slots = first.start["engine"]["kv_pages"], first.start["engine"]["context_cache"]
    assert memory["kv_payload_bytes"] == pages * memory["kv_page_bytes"]
    assert memory["sequence"]["capacity_bytes"] == memory["kv_payload_bytes"] + (
        slots["device_state_slots"] * memory["state_image_bytes"]
    )
    assert memory["kv_sizing"] is None, "explicit: nothing was sized"
    assert environment["gpu_name"]
    for name in ("gpu_capability", "cuda_runtime", "cuda_driver"):
        major, minor = environment[name].split(".")
        assert int(major) >= 8
        assert int(minor) >= 0
    print({name: value for name, value in environment.items() if name.startswith(("gpu", "cuda"))})


@pytest.mark.clause("EXEC-001")
@pytest.mark.usefixtures("cuda")
def test_three_requests_are_one_batch_of_one_traversal(first: DeviceServer) -> None:
    before = len(first.trace)
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(first.ask, q, max_tokens=2500, ignore_eos=True) for q in QUESTIONS]
        assert [answer.result().status for answer in asked] == [200] * 3
    rounds = first.trace[before:]
    assert {line["rows"] for line in rounds} <= {1, 2, 3}
    assert sum(line["rows"] == 3 for line in rounds) > 1000
    for line in rounds:
        # One Forward and one Finish of exactly that batch, both replayed.
        assert line["keys"] == [["forward", line["rows"]], ["finish", line["rows"]]]
        assert (line["replays"], line["launches"]) == (2, 0)
    batches = [
        record["decode_batch"]["average_size"] for record in first.records if record["event"] == "throughput"
    ]
    print(f"rounds of three: {sum(line['rows'] == 3 for line in rounds)} of {len(rounds)}; {batches}")
    assert 3.0 in batches
    assert all(batch is None or batch <= 3 for batch in batches)
