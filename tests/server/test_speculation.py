"""Drafts behind HTTP on the bundled model: the same answers, and counts wherever the contract names them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from ninfer import bundled
from ninfer.cli.parser import parse
from ninfer.engine.events import Finished
from ninfer.fast.draft.speculation import RoundTrace
from ninfer.fast.program.weights import Matrix
from ninfer.server.assemble import build_reports
from tests.fast.conftest import COLD_LIMIT_S, compiled  # noqa: F401  (kernels before any server)
from tests.server.drafting import MTP, Served, copying, essence, serving, text_of, three_servers
from tests.server.fast_client import Stream, eventually
from tests.server.fast_host import FastHost
from tests.server.observe.done import done
from tests.server.observe.test_panel import cells, of
from tools.tiny.proposal import add_proposal, frequent_ids

pytestmark = pytest.mark.timeout(COLD_LIMIT_S)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Served]]:
    with three_servers(tmp_path_factory) as started:
        yield started


# --- starts --------------------------------------------------------------------------------------------


@pytest.mark.clause("JLOG-028", "OPT-052", "SETTLE-001", "SETTLE-002", "START-037", "START-038", "START-039")
def test_what_a_start_says_of_copies(servers: dict[str, Served]) -> None:
    found = {name: served.log.start["engine"] for name, served in servers.items()}
    assert (found["copies"]["ngram_draft_window"], found["copies"]["ngram_min_match"]) == (15, 12)
    assert found["drafts"]["ngram_draft_window"] == 0
    assert found["none"]["ngram_draft_window"] == 0
    assert found["copies"]["speculative_draft_window"] == 3
    assert [found[name]["speculative_backend"] for name in servers] == ["mtp", "mtp", "none"]


@pytest.mark.clause("START-032", "START-035")
def test_without_a_drafter_none_is_loaded(servers: dict[str, Served]) -> None:
    assert servers["none"].host.program.mtp is None
    assert servers["copies"].host.program.mtp is not None
    held = {name: served.host._worker.resources for name, served in servers.items()}
    assert held["none"].kv_page_bytes < held["drafts"].kv_page_bytes
    assert held["none"].workspace_bytes < held["drafts"].workspace_bytes


@pytest.mark.clause("NGRAM-010")
def test_a_wider_copy_window_takes_a_larger_workspace_at_the_start_and_nothing_in_rounds(
    servers: dict[str, Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path, *MTP, "--ngram-draft-tokens", "63") as widest:
        starts = [served.log.start for served in (servers["drafts"], servers["copies"], widest)]
        windows = [start["engine"]["ngram_draft_window"] for start in starts]
        assert windows == [0, 15, 63]
        sizes = [start["memory"]["workspace"]["capacity_bytes"] for start in starts]
        assert sizes == sorted(set(sizes)), "the wider the window, the larger the workspace"
        traces = list[RoundTrace]()
        widest.host._worker._speculation.trace = traces.append  # type: ignore[union-attr]
        wiring = widest.host.program._table.wiring
        before = (wiring.bytes, widest.host.program.workspace_bytes)
        for module in ("wiring", "workspace"):
            monkeypatch.setattr(f"ninfer.fast.program.{module}.aligned_zeros", refuse_memory)
        answer = widest.ask(copying(3))
        assert widest.speculative(answer)["ngram_rounds"] > 0
        assert max(max(trace.columns) for trace in traces) > 16, "rounds wider than fifteen copies"
        assert (wiring.bytes, widest.host.program.workspace_bytes) == before


def refuse_memory(*arguments: object) -> None:
    raise AssertionError("a buffer is taken in a round")


@pytest.mark.clause("OPT-046", "START-033")
def test_a_proposal_head_is_loaded_beside_the_full_one(servers: dict[str, Served], tmp_path: Path) -> None:
    artifact = add_proposal(bundled.path(), tmp_path / "tiny.ninfer", frequent_ids(512))
    bodies = [copying(10), copying(11, temperature=0.7, seed=2)]
    loaded = {}
    for head in (False, True):
        (directory := tmp_path / str(head)).mkdir()
        with serving(directory, *MTP, *(["--lm-head-draft"] if head else []), artifact=artifact) as served:
            assert served.log.start["engine"]["proposal_head"] is head
            loaded[head] = sum(segment.stored_bytes for segment in heads(served.host))
            for body in bodies:
                answer = served.ask(body)
                assert essence(answer)[0] == essence(servers["none"].ask(body))[0]
                assert served.speculative(answer)["accepted_tokens"] > 0
    assert loaded[True] > loaded[False]


def heads(host: FastHost) -> set[Matrix]:
    """Every output head that a program holds."""
    table = host.program.mtp._mtp._table  # type: ignore[union-attr]
    return {table._text.head, table._weights.head}


# --- the same answers ----------------------------------------------------------------------------------


@pytest.mark.clause("NGRAM-003")
def test_answers_prompts_and_ends_are_those_of_no_drafter(servers: dict[str, Served]) -> None:
    bodies = [copying(1), copying(2, temperature=0.8, seed=5, presence_penalty=0.7)]
    bodies.append(copying(3, temperature=0.7, seed=3, enable_thinking=True))
    for body in bodies:
        answers = {name: served.ask(body) for name, served in servers.items()}
        assert essence(answers["copies"]) == essence(answers["none"]) == essence(answers["drafts"])
        assert answers["copies"].json["usage"]["completion_tokens"] > 20


@pytest.mark.clause("EXEC-007", "NGRAM-015")
def test_a_stop_inside_a_copy_ends_there_and_the_next_turn_reuses_it(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """On servers of its own: what a cache offers depends on all that was asked before."""
    with three_servers(tmp_path_factory) as servers:
        check_a_stop_inside_a_copy(servers)


def check_a_stop_inside_a_copy(servers: dict[str, Served]) -> None:
    body = copying(4)
    whole, *others = (text_of(served.ask(body)) for served in servers.values())
    assert others == [whole] * 2
    at = len(whole) // 2
    stop = whole[at : at + 4]
    stopped = body | {"stop": [stop]}
    answers = {name: served.ask(stopped) for name, served in servers.items()}
    assert essence(answers["copies"]) == essence(answers["none"])
    assert text_of(answers["copies"]) == whole[: whole.index(stop)]
    drafts = servers["copies"].speculative(answers["copies"])
    assert drafts["ngram_accepted_tokens"] > 0
    follow = stopped | {
        "messages": [
            *body["messages"],
            {"role": "assistant", "content": text_of(answers["copies"])},
            {"role": "user", "content": "Thank you."},
        ],
        "max_tokens": 4,
    }
    cached = {}
    for name, served in servers.items():
        served.ask(follow)
        usage = served.ask(follow).json["usage"]
        cached[name] = usage["prompt_tokens_details"]["cached_tokens"]
    assert cached["copies"] == cached["none"] == cached["drafts"]


def test_a_cancelled_copy_frees_its_lane(servers: dict[str, Served]) -> None:
    served = servers["copies"]
    with Stream(served.client, **copying(5, max_tokens=1000)) as stream:
        stream.wait()
    eventually(lambda: served.host._worker.idle)
    assert served.ask(copying(5, max_tokens=3)).json["usage"]["completion_tokens"] == 3


# --- counts --------------------------------------------------------------------------------------------


@pytest.mark.clause("JLOG-057", "JLOG-058", "NGRAM-039", "TIMING-011")
def test_the_log_and_the_timings_count_drafts(servers: dict[str, Served]) -> None:
    answer = servers["copies"].ask(copying(6))
    found = servers["copies"].speculative(answer)
    assert (found["backend"], found["draft_window"]) == ("mtp", 3)
    assert sum(found["accepted_per_position"]) == found["accepted_tokens"] > 0
    for part, whole in (
        ("ngram_rounds", "rounds"),
        ("ngram_drafted_tokens", "drafted_tokens"),
        ("ngram_accepted_tokens", "accepted_tokens"),
    ):
        assert 0 < found[part] <= found[whole]
    rounds = found["rounds"] + found["fallback_steps"]
    assert answer.json["usage"]["completion_tokens"] == 1 + rounds + found["accepted_tokens"]
    timings = answer.json["timings"]
    assert timings["draft_n"] == found["drafted_tokens"]
    assert timings["draft_n_accepted"] == found["accepted_tokens"]
    plain = servers["none"].ask(copying(6))
    assert "draft_n" not in plain.json["timings"]
    assert servers["none"].speculative(plain)["rounds"] == 0


@pytest.mark.clause("METRIC-017", "METRIC-019", "METRIC-020")
def test_metrics_grow_by_what_the_log_says_and_while_a_request_runs(servers: dict[str, Served]) -> None:
    served = servers["copies"]
    names = {
        "rounds": "ninfer_spec_decode_rounds_total",
        "accepted_tokens": "ninfer_spec_decode_accepted_tokens_total",
        "fallback_steps": "ninfer_spec_decode_fallback_steps_total",
        "drafted_tokens": "ninfer_spec_decode_draft_tokens_total",
    }
    eventually(lambda: served.host._worker.idle)
    before = {key: served.metric(name) for key, name in names.items()}
    found = served.speculative(served.ask(copying(7)))
    for key, name in names.items():
        eventually(lambda key=key, name=name: served.metric(name) - before[key] == found[key])
    before_stream, ended = served.metric(names["rounds"]), served.host.count(Finished)
    # Slow rounds: the engine tells its counts four times a second.
    slow = patch.object(served.host.program, "before", lambda kind: time.sleep(0.05))
    with slow, Stream(served.client, **copying(8, max_tokens=1500)) as stream:
        stream.wait()
        eventually(lambda: served.metric(names["rounds"]) > before_stream)
        assert served.host.count(Finished) == ended, "the request is still running"
    eventually(lambda: served.host._worker.idle)
    for name in names.values():
        assert servers["none"].metric(name) == 0


@pytest.mark.clause("LOG-021", "NGRAM-041")
def test_throughput_counts_committed_tokens(servers: dict[str, Served]) -> None:
    served = servers["copies"]
    eventually(lambda: served.host._worker.idle)
    before = served.metric("ninfer_decode_tokens_total")
    answer = served.ask(copying(9, max_tokens=129, ignore_eos=True))
    assert answer.json["usage"]["completion_tokens"] == 129
    eventually(lambda: served.metric("ninfer_decode_tokens_total") - before == 128)
    assert served.speculative(answer)["drafted_tokens"] > 0
    timings = answer.json["timings"]
    assert timings["predicted_n"] in (128, 129)


@pytest.mark.clause("PANEL-010")
def test_the_panel_shows_the_sums_of_the_log(servers: dict[str, Served]) -> None:
    served = servers["copies"]
    eventually(lambda: served.host._worker.idle)
    first = served.host.count(Finished)
    answers = [served.ask(copying(number, temperature=0.7, seed=number)) for number in (12, 13)]
    logged = [served.speculative(answer) for answer in answers]
    ended = [event for event in served.host.published if isinstance(event, Finished)][first:]
    found = cells(of(*(done(draft=event.usage.draft) for event in ended), backend="MTP", ngram=True))

    def total(name: str) -> int:
        return sum(line[name] - line[f"ngram_{name}"] for line in logged)

    assert found["MTP"] == f"{100 * total('accepted_tokens') / total('drafted_tokens'):.1f}%"
    assert found["acc/rnd"] == f"{total('accepted_tokens') / total('rounds'):.2f}"
    assert found["ng rnds"] == str(sum(line["ngram_rounds"] for line in logged))


@pytest.mark.clause("PANEL-011")
@pytest.mark.parametrize(
    ("options", "shown"),
    [(["--spec", "mtp"], True), (["--spec", "mtp", "--ngram-draft-tokens", "0"], False), ([], False)],
)
def test_the_panel_has_copies_only_where_they_are_drafted(options: list[str], shown: bool) -> None:
    console = SimpleNamespace(interactive=True)
    reports = build_reports(parse("ninfer-serve", options), console)  # type: ignore[arg-type]
    panel = reports._panel
    assert panel is not None
    assert ("ngram" in panel._names(False)) == shown
    assert ("ng rnds" in panel._names(False)) == shown
