"""Options of the prefix cache on a served model: off, refused together, and what sizes follow from."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ninfer.cli.parser import parse
from ninfer.engine.statistics import EngineStatistics
from ninfer.errors import OptionError
from tests.fast.conftest import COLD_LIMIT_S, compiled  # noqa: F401  (kernels before any server)
from tests.server.fast_host import serving_fast
from tests.server.test_prefix_cache import ask, cached, text, user

pytestmark = pytest.mark.timeout(COLD_LIMIT_S)


@pytest.mark.clause("OPT-065")
def test_without_reuse_nothing_is_cached_and_pressure_still_pauses(nano: Path) -> None:
    arguments = ("--no-prefix-reuse", "--max-concurrency", "2", "--max-context", "1024")
    with serving_fast(nano, arguments) as (client, host):
        message = user(text(150))
        assert [cached(ask(client, message)) for _ in range(2)] == [0, 0]
        assert "prefix_cache off" in host.records
        with ThreadPoolExecutor(2) as pool:
            asked = [pool.submit(ask, client, user(text(40)), max_tokens=650) for _ in range(2)]
            answers = [one.result() for one in asked]
        assert [one["usage"]["completion_tokens"] for one in answers] == [650, 650]
        statistics = [event for event in host.published if isinstance(event, EngineStatistics)][-1]
        assert statistics.recovery.preemptions > 0


@pytest.mark.clause("OPT-066")
@pytest.mark.parametrize(
    "option",
    [
        ("--device-snapshot-slots", "2"),
        ("--cache-taps-per-request", "4"),
        ("--cache-tap-ladder", "4096"),
        ("--cache-tap-min-gap", "1024"),
        ("--prefix-cache-file", "f"),
        ("--use-original-prefix-caching",),
    ],
)
def test_no_reuse_is_refused_beside_the_caches_options(option: tuple[str, ...]) -> None:
    with pytest.raises(OptionError) as refused:
        parse("ninfer-serve", ["--no-prefix-reuse", *option])
    assert option[0] in str(refused.value)


@pytest.mark.clause("CAP-001")
@pytest.mark.clause("CAP-006")
def test_metrics_show_slots_and_retained_pages(nano: Path) -> None:
    arguments = ("--max-concurrency", "2", "--device-snapshot-slots", "5")
    with serving_fast(nano, arguments) as (client, _):
        ask(client, user(text(200)))
        lines = client.get("/metrics").body.decode().splitlines()
        values = {line.split()[0]: float(line.split()[1]) for line in lines if line and line[0] != "#"}
        assert values["ninfer_device_state_capacity_slots"] == 7
        assert 0 < values["ninfer_device_kv_used_pages"] <= values["ninfer_device_kv_capacity_pages"]


@pytest.mark.clause("START-013")
def test_sizes_follow_lanes_and_chunk_at_start(nano: Path) -> None:
    lines = []
    for arguments in ((), ("--max-concurrency", "4"), ("--prefill-chunk", "4096")):
        with serving_fast(nano, arguments) as (_, host):
            lines += [record for record in host.records if record.startswith("prefix_cache ")]
    assert lines == [
        "prefix_cache hybrid snapshot_slots=3 taps_per_request=2 tap_ladder=4096 tap_min_gap=1024",
        "prefix_cache hybrid snapshot_slots=6 taps_per_request=2 tap_ladder=4096 tap_min_gap=1024",
        "prefix_cache hybrid snapshot_slots=3 taps_per_request=2 tap_ladder=8192 tap_min_gap=4096",
    ]
