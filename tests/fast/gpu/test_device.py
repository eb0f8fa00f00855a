"""What can be asked of a device before there is one: options, the way to wait, the graph allowance."""

from __future__ import annotations

import pytest
import torch

from ninfer.cli.parser import parse
from ninfer.errors import OptionError
from ninfer.fast.program.gpu import device as device_module
from ninfer.fast.program.gpu.device import (
    SYNC_MODES,
    Environment,
    Waiter,
    device_of,
    driver_version,
    environment,
    sync_mode,
)
from ninfer.fast.program.gpu.graphs import Graphs, allowance
from ninfer.fast.program.gpu.open import check_capacity


@pytest.mark.clause_early("START-003")
@pytest.mark.parametrize("mode", SYNC_MODES)
def test_the_host_waits_as_told(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NINFER_CUDA_SYNC", mode)
    assert sync_mode() == mode
    Waiter(torch.device("cpu"), mode).wait()


@pytest.mark.clause_early("START-003")
def test_another_way_to_wait_stops_start_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NINFER_CUDA_SYNC", raising=False)
    assert sync_mode() == "spin"
    monkeypatch.setenv("NINFER_CUDA_SYNC", "sleep")
    with pytest.raises(OptionError, match="'sleep' is not one of spin, blocking, yield, auto"):
        sync_mode()


@pytest.mark.clause_early("OPT-031")
def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(OptionError) as caught:
        device_of(99)
    assert caught.value.option == "--device"


@pytest.mark.clause_early("OPT-012")
def test_headroom_needs_automatic_sizing() -> None:
    with pytest.raises(OptionError) as caught:
        parse("ninfer-serve", ["m.ninfer", "--kv-capacity", "8192", "--vram-headroom-mib", "512"])
    assert caught.value.option == "--vram-headroom-mib"
    assert parse("ninfer-serve", ["m.ninfer", "--vram-headroom-mib", "512"])["vram_headroom_mib"] == 512


@pytest.mark.clause_early("CAP-009", "CAP-010")
def test_the_allowance_is_64_mib_and_4_for_each_graph() -> None:
    # Forward and Finish of each batch size; one topology class without speculation.
    one, four = allowance(2 * 1), allowance(2 * 4)
    assert one == (64 << 20) + 2 * (4 << 20)
    assert four - one == 3 * 2 * (4 << 20)
    assert allowance(0) == 0


def test_without_a_device_there_are_no_graphs() -> None:
    graphs, runs = Graphs(torch.device("cpu"), True), []
    for _ in range(2):
        graphs.run("key", lambda: runs.append(1))
    assert (len(runs), graphs.count, graphs.measured_bytes) == (2, 0, 0)


def test_a_pool_that_cannot_hold_one_request_is_refused() -> None:
    check_capacity(2, 128)
    with pytest.raises(OptionError) as caught:
        check_capacity(1, 128)
    assert caught.value.option == "--kv-capacity"


class Driver:
    """Stands for CUDA's library."""

    def cuDriverGetVersion(self, version: object) -> int:  # noqa: N802
        version._obj.value = 13020  # type: ignore[attr-defined]
        return 0


def test_the_driver_says_which_cuda_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_module.ctypes, "CDLL", lambda name: Driver())
    assert driver_version() == "13.2"

    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(device_module.ctypes, "CDLL", missing)
    assert driver_version() == ""


def test_a_devices_environment_asks_torch_for_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    assert environment(torch.device("cpu")) == Environment()
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1, 2))
    monkeypatch.setattr(device_module, "driver_version", lambda: "13.2")
    known = environment(torch.device("cuda", 1))
    assert (known.index, known.name, known.capability) == (1, "a GPU", "9.0")
    assert (known.driver, known.total_bytes) == ("13.2", 2)
