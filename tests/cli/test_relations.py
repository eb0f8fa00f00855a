"""Relations between options, as they hold once all of them work: what is refused together, what is not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.tables import parse_all, refusal


@pytest.mark.parametrize(
    ("argv", "option"),
    [
        ("--kv-capacity 8192 --vram-headroom-mib 512", "--vram-headroom-mib"),
        ("--no-prefix-reuse --vram-headroom-mib 512", "--vram-headroom-mib"),
        ("--kv-capacity banana", "--kv-capacity"),
        ("--max-concurrency 0", "--max-concurrency"),
        ("--max-concurrency 9", "--max-concurrency"),
        ("--use-original-int8-prefill-kernel", "--use-original-int8-prefill-kernel"),
        ("--use-original-int8-prefill-kernel --kv-dtype fp8", "--use-original-int8-prefill-kernel"),
        ("--use-original-nvfp4-prefill-kernel --kv-dtype int8", "--use-original-nvfp4-prefill-kernel"),
        ("--prefill-8bit-pv --no-prefill-8bit-pv", "--no-prefill-8bit-pv"),
        ("--request-log-max-mib 1", "--request-log-max-mib"),
        ("--request-log-jsonl f --request-log-keep 2", "--request-log-keep"),
        ("--request-log-jsonl f --request-log-max-mib 1 --request-log-keep 1001", "--request-log-keep"),
        ("--spec eagle", "--spec"),
        ("--draft-tokens 3", "--draft-tokens"),
        ("--spec mtp --draft-tokens 0", "--draft-tokens"),
        ("--spec mtp --draft-tokens 16", "--draft-tokens"),
        ("--lm-head-draft", "--lm-head-draft"),
        ("--spec dflash --adaptive-mtp", "--adaptive-mtp"),
        ("--spec dflash --lookup-ngram 3", "--lookup-ngram"),
        ("--ngram-draft-tokens 5", "--ngram-draft-tokens"),
        ("--spec mtp --ngram-draft-tokens 64", "--ngram-draft-tokens"),
        ("--spec mtp --max-concurrency 2 --ngram-draft-tokens 16", "--ngram-draft-tokens"),
        ("--spec mtp --ngram-min-match 3", "--ngram-min-match"),
        ("--ngram-archive-mib 512", "--ngram-archive-mib"),
        ("--spec mtp --ngram-draft-tokens 0 --ngram-archive-mib 512", "--ngram-archive-mib"),
        ("--spec mtp --ngram-native-sessions", "--ngram-native-sessions"),
        ("--spec mtp --draft-tree-nodes auto", "--draft-tree-nodes"),
        ("--spec dflash2 --draft-tree-nodes 33", "--draft-tree-nodes"),
        ("--spec dflash2 --draft-tree-nodes 9,9,9,9,9,9,9,9,9", "--draft-tree-nodes"),
        ("--draft-tree-paths 9", "--draft-tree-paths"),
        ("--vision-offload on", "--vision-offload"),
        ("--vision-offload maybe", "--vision-offload"),
        ("--host-context-mib 0.3", "--host-context-mib"),
        ("--host-context-mib -1", "--host-context-mib"),
        ("--host-context-mib 0 --prefix-cache-file f", "--prefix-cache-file"),
        ("--device-state-slots 2", "--device-state-slots"),
        ("--device-snapshot-slots 65", "--device-snapshot-slots"),
        ("--rope-yarn-factor 4.01", "--rope-yarn-factor"),
        ("--rope-yarn-factor nan", "--rope-yarn-factor"),
    ],
)
def test_refused_combinations_name_the_option(argv: str, option: str) -> None:
    assert refusal(argv).option == option


@pytest.mark.parametrize("cache", ["--no-prefix-reuse", "--use-original-prefix-caching"])
@pytest.mark.parametrize(
    "hybrid",
    ["--device-snapshot-slots 2", "--cache-taps-per-request 4", "--cache-tap-ladder 4096",
     "--cache-tap-min-gap 1024", "--prefix-cache-file f"],
)  # fmt: skip
def test_hybrid_options_are_refused_without_the_hybrid_cache(cache: str, hybrid: str) -> None:
    error = refusal(f"{hybrid} {cache}")
    assert error.option == hybrid.split()[0]
    assert cache in str(error)


@pytest.mark.parametrize(
    ("argv", "key", "value"),
    [
        ("", "kv_capacity", "auto"),
        ("--no-prefix-reuse --max-context 4096", "kv_capacity", 4096),
        ("--use-original-prefix-caching --max-context 4096", "kv_capacity", 4096),
        ("--no-prefix-reuse --kv-capacity auto --vram-headroom-mib 0", "vram_headroom_mib", 0),
        ("--vram-headroom-mib 512", "vram_headroom_mib", 512),
        ("--spec mtp", "ngram_draft_tokens", 15),
        ("", "ngram_draft_tokens", 0),
        ("--spec mtp --ngram-draft-tokens 0", "ngram_draft_tokens", 0),
        ("--spec mtp --ngram-draft-tokens 63", "ngram_draft_tokens", 63),
        ("--spec mtp --max-concurrency 2", "ngram_draft_tokens", 15),
        ("--ngram-draft-tokens 0", "ngram_draft_tokens", 0),
        ("--spec mtp --ngram-archive-mib 512 --ngram-native-sessions", "ngram_native_sessions", True),
        ("--ngram-archive-mib 0", "ngram_archive_mib", 0),
        ("--ngram-session-mib 64", "ngram_session_mib", 64),
        ("--lookup-ngram 0", "lookup_ngram", 0),
        ("--spec dflash2 --draft-tree-nodes 12,9,0", "draft_tree_nodes", (12, 9, 0)),
        ("--spec dflash2 --draft-tree-nodes auto", "draft_tree_nodes", "auto"),
        ("--vision-offload off", "vision_offload", False),
        ("--vision --vision-offload on", "vision_offload", True),
        ("--host-context-mib 0.5", "host_context_bytes", 524288),
        ("--host-context-mib 1024.5", "host_context_bytes", 1074266112),
        ("--host-context-mib 0", "host_context_bytes", 0),
        ("--prefix-cache-file f", "host_context_bytes", None),
        ("--no-prefix-reuse --host-context-mib 256 --device-state-slots 2", "device_state_slots", 2),
        ("--kv-dtype int8 --use-original-int8-prefill-kernel", "use_original_int8_prefill_kernel", True),
        ("--request-log-jsonl f --request-log-max-mib 1 --request-log-keep 0", "request_log_keep", 0),
        ("--port 0", "port", 0),
    ],
)
def test_accepted_combinations(argv: str, key: str, value: Any) -> None:
    assert parse_all(argv)[key] == value


def test_the_example_of_the_contract_is_accepted() -> None:
    parse_all(
        "m.ninfer --host 127.0.0.1 --port 8080 --max-context 240000 --max-concurrency 2 --kv-dtype fp8 "
        "--host-context-mib 8192 --spec mtp --draft-tokens 3 --lm-head-draft --preserve-thinking"
    )


def test_bench_lists() -> None:
    options = parse_all("m -p 512,1024 -n 16 -pg 512,128;64,8 -o json", "ninfer-bench")
    assert options["prompt_tokens"] == (512, 1024)
    assert options["prompt_and_generated_tokens"] == ((512, 128), (64, 8))
    assert refusal("-pg 1,2,3", "ninfer-bench").option == "-pg"
    assert refusal("-p 0", "ninfer-bench").option == "-p"
    assert (
        refusal("--concurrency 2 --spec mtp --ngram-draft-tokens 16", "ninfer-bench").option
        == "--ngram-draft-tokens"
    )


def test_terminal_kv_capacity_follows_the_context() -> None:
    assert parse_all("--prompt a", "ninfer")["kv_capacity"] == 2048
    assert refusal("--prompt a --vram-headroom-mib 0", "ninfer").option == "--vram-headroom-mib"
