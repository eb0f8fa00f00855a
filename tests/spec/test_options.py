"""``spec/options.yaml`` says what the contract says: names, ranges, defaults and choices."""

from __future__ import annotations

from typing import Any

import pytest

from ninfer.errors import SpecError
from ninfer.spec import document
from ninfer.spec.options import Option, option_table, programs

# ninfer-serve, from the contract's table of server options and the settlements of its silences:
# name → (range or choices, default). None: nothing to check, "unset": no value.
CONTRACT: dict[str, tuple[Any, Any]] = {
    "--host": (None, "127.0.0.1"),
    "--port": ((0, 65535), 8080),
    "--api-key": (None, None),
    "--model-id": (None, None),
    "--chat-template": (None, None),
    "--rope-yarn-factor": ((1, 4), 1),
    "--max-context": ((64, None), 8192),
    "--kv-capacity": (None, "auto"),
    "--vram-headroom-mib": ((0, None), 1024),
    "--max-concurrency": ((1, 8), 1),
    "--max-pending-requests": ((0, 4096), 16),
    "--pending-timeout-ms": ((1, None), 30000),
    "--prefill-chunk": ((64, 65536), 1024),
    "--use-original-int8-prefill-kernel": (None, False),
    "--prefill-8bit-pv": (None, False),
    "--no-prefill-8bit-pv": (None, False),
    "--use-original-nvfp4-prefill-kernel": (None, False),
    "--prefill-split-workspace-mib": ((0, 16384), 256),
    "--log-stats-interval-ms": ((0, None), 5000),
    "--log-stats-panel": (None, True),
    "--log-colours": (None, False),
    "--log-level": (["trace", "debug", "info", "warning", "error", "critical", "off"], "info"),
    "--device": ((0, None), 0),
    "--context-cost-presets": (None, None),
    "--max-request-mib": ((0, None), 384),
    "--media-cache-mib": ((0, None), 1024),
    "--media-live-mib": ((0, None), 2048),
    "--media-preprocess-threads": ((0, None), 0),
    "--request-log-jsonl": (None, None),
    "--request-log-max-mib": ((0, None), None),
    "--request-log-keep": ((0, 1000), 4),
    "--response-store-max-records": ((0, None), 1024),
    "--response-store-max-mib": ((0, None), 256),
    "--kv-dtype": (["bf16", "int8", "fp8", "nvfp4", "k8v4", "vq2", "k4v2"], "bf16"),
    "--spec": (["mtp", "dflash", "dflash2"], None),
    "--draft-tokens": ((1, 15), None),
    "--lm-head-draft": (None, False),
    "--adaptive-mtp": (None, False),
    "--lookup-ngram": ((0, 64), 0),
    "--draft-tree-nodes": (None, None),
    "--draft-tree-paths": ((2, 8), 8),
    "--ngram-draft-tokens": ((0, 63), 0),
    "--ngram-min-match": ((4, 64), 12),
    "--ngram-archive-mib": ((0, None), 0),
    "--ngram-session-mib": ((0, None), 128),
    "--ngram-native-sessions": (None, False),
    "--default-max-tokens": ((0, 2147483647), 8192),
    "--default-thinking-budget": ((1, None), None),
    "--thinking-budget-message": (None, None),
    "--vision": (None, False),
    "--vision-offload": (None, False),
    "--vision-max-merged": ((64, 32768), 32768),
    "--no-cuda-graph": (None, False),
    "--no-prefix-reuse": (None, False),
    "--host-context-mib": ((0, None), None),
    "--use-original-prefix-caching": (None, False),
    "--device-snapshot-slots": ((1, 64), None),
    "--cache-taps-per-request": ((0, 64), None),
    "--cache-tap-ladder": ((1, None), None),
    "--cache-tap-min-gap": ((1, None), None),
    "--prefix-cache-file": (None, None),
    "--device-state-slots": ((0, None), None),
    "--no-thinking": (None, False),
    "--preserve-thinking": (None, False),
    "--reasoning-effort": (["none", "minimal", "low", "medium", "high", "xhigh", "max"], None),
    "--tolerant-tool-calls": (None, False),
    "--cors": (None, False),
    "--usage-chunk-choice": (None, False),
    "--temperature": ((0, 2), None),
    "--top-p": ((0, 1), None),
    "--top-k": ((0, 20), None),
    "--min-p": ((0, 1), None),
    "--presence-penalty": ((-2, 2), None),
    "--frequency-penalty": ((-2, 2), None),
    "--seed": ((-(2**63), 2**63 - 1), None),
    "--greedy": (None, False),
}
OURS = {"ARTIFACT", "--engine", "--cpu-activations", "--deterministic", "--help", "--version"}

SERVE_WORKS = {
    "ARTIFACT", "--host", "--port", "--model-id", "--chat-template", "--max-context", "--default-max-tokens",
    "--temperature", "--top-p", "--top-k", "--min-p", "--presence-penalty", "--frequency-penalty", "--seed",
    "--greedy", "--no-thinking", "--preserve-thinking", "--max-request-mib", "--log-level", "--engine",
    "--help", "--version", "--max-concurrency", "--max-pending-requests", "--pending-timeout-ms",
    "--kv-capacity", "--kv-dtype", "--prefill-chunk", "--cpu-activations", "--reasoning-effort",
    "--default-thinking-budget", "--thinking-budget-message", "--api-key", "--cors",
    "--usage-chunk-choice",
    "--response-store-max-records", "--response-store-max-mib", "--tolerant-tool-calls",
    "--spec", "--draft-tokens", "--adaptive-mtp", "--lookup-ngram", "--ngram-draft-tokens",
    "--ngram-min-match", "--lm-head-draft",
    "--log-colours", "--log-stats-interval-ms", "--log-stats-panel", "--request-log-jsonl",
    "--request-log-max-mib", "--request-log-keep",
    "--device", "--vram-headroom-mib", "--no-cuda-graph", "--deterministic",
    "--no-prefix-reuse", "--device-snapshot-slots", "--cache-taps-per-request", "--cache-tap-ladder",
    "--cache-tap-min-gap",
}  # fmt: skip

BENCH_WORKS = {
    "ARTIFACT", "--corpus", "-p", "-n", "-pg", "-r", "--warmup", "--concurrency", "--max-ctx",
    "--prefill-chunk", "--kv-dtype", "--cpu-activations", "-o", "--device", "--no-cuda-graph",
    "--deterministic", "--output-file", "--help", "--version",
    "--spec", "--draft-tokens", "--adaptive-mtp", "--lookup-ngram", "--ngram-draft-tokens",
    "--ngram-min-match", "--lm-head-draft",
}  # fmt: skip


def option(name: str, program: str = "ninfer-serve") -> Option:
    return option_table(program).named(name)


def test_serve_has_the_options_of_the_contract_and_ours() -> None:
    assert {row.name for row in option_table("ninfer-serve").options} == set(CONTRACT) | OURS


@pytest.mark.parametrize("name", CONTRACT)
def test_range_and_default_are_the_contracts(name: str) -> None:
    allowed, default = CONTRACT[name]
    row = option(name)
    assert row.default == default
    assert type(row.default) is type(default) or isinstance(default, int)
    if isinstance(allowed, tuple):
        assert (row.minimum, row.maximum) == allowed
    elif isinstance(allowed, list):
        assert [choice.value for choice in row.choices] == allowed


def test_every_option_clause_is_named_by_its_option() -> None:
    """An OPT clause that begins with an option's name stands in that option's row."""
    for clause in document("clauses/opt"):
        name = clause["must"].split()[0].rstrip(":")
        if name.startswith("--"):
            assert clause["id"] in option(name).clauses, clause["id"]


def test_what_works_now() -> None:
    assert {row.name for row in option_table("ninfer-serve").options if row.works} == SERVE_WORKS
    assert {row.name for row in option_table("ninfer-bench").options if row.works} == BENCH_WORKS


def test_other_programs_have_their_own_defaults() -> None:
    assert option("--max-context", "ninfer").default == 2048
    assert option("--max-new", "ninfer").default == 128
    assert option("--seed", "ninfer").default == 0
    assert option("--max-file-bytes", "ninfer-convert").default == 32_000_000_000
    assert option("--rows-per-chunk", "ninfer-convert").default == 512
    assert option("-p", "ninfer-bench").default == (512,)
    assert option("-n", "ninfer-bench").default == (128,)


def test_choices_are_those_of_the_documents_that_define_them() -> None:
    recipes = [choice.value for choice in option("--recipe", "ninfer-convert").choices if choice.works]
    assert recipes == list(document("convert")["recipes"])
    efforts = [choice.value for choice in option("--reasoning-effort").choices]
    assert efforts == [
        document("prompt")["options"]["no_effort"],
        *document("prompt")["options"]["reasoning_efforts"],
    ]


def test_every_program_offers_help_and_version() -> None:
    for program in programs():
        assert {"--help", "--version"} <= {row.name for row in option_table(program).options}


def test_owners_topics_and_programs_are_known() -> None:
    source = document("options")
    for row in source["options"]:
        assert row["owner"] in source["owners"]
        assert row["topic"] in source["topics"]
        assert set(row["programs"]) <= set(programs())
        assert set(row.get("per_program", {})) <= set(row["programs"])
    for program in programs():
        for row in option_table(program).options:
            assert row.works or row.owner != "spine", (program, row.name)
            assert all(choice.works or choice.owner != "spine" for choice in row.choices), row.name


def test_defaults_satisfy_their_own_rows() -> None:
    for program in programs():
        for row in option_table(program).options:
            if isinstance(row.default, int | float) and not isinstance(row.default, bool):
                assert row.minimum is not None
                assert row.minimum <= row.default
                assert row.maximum is None or row.default <= row.maximum
            if row.choices and row.default is not None:
                assert row.default in [choice.value for choice in row.choices]


def test_an_unknown_program_is_our_own_mistake() -> None:
    with pytest.raises(SpecError, match="ninfer-fly"):
        option_table("ninfer-fly")
    with pytest.raises(SpecError, match="--fly"):
        option("--fly")
