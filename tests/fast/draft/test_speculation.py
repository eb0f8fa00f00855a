"""Rounds with drafts: which row proposes what, how wide the round is, and how widths are chosen."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from conformance.engine.speculation.drafters import KnowingDrafter
from conformance.engine.speculation.drive import Asked, Got, Service, program_of, serve
from ninfer.cli.engine_options import draft_settings
from ninfer.cli.parser import parse
from ninfer.engine.requests import GenerationRequest, SamplingParameters
from ninfer.engine.settings import DraftSettings
from ninfer.errors import OptionError
from ninfer.fast.draft import speculation
from ninfer.fast.draft.ngram.index import NgramIndex
from ninfer.fast.draft.speculation import RoundTrace, verified_columns
from ninfer.fast.program.program import Lane, Program
from tests.fast.draft.asking import asked, settings
from tests.fast.program.conftest import Artifacts
from tests.support.nano import VOCABULARY

MIB = 2**20


def answer_as_source(program: Program, seed: int) -> bytes:
    """The answer to the request of this seed, as a text beside its prompt."""
    got, _ = serve(program, [asked("plain", seed)])
    return np.array(got["plain"].tokens, "<i4").tobytes()


def is_copy(trace: RoundTrace) -> bool:
    return any(trace.copied)


@pytest.mark.clause("NGRAM-005", "NGRAM-020")
def test_a_copied_row_makes_a_copy_round(program: Program) -> None:
    source = answer_as_source(program, 1)
    got, traces = serve(program, [asked("a", 1, sources=(source,))], settings())
    copies = [trace for trace in traces if is_copy(trace)]
    assert len(copies) == got["a"].draft.ngram_rounds > 0
    assert {trace.width for trace in copies} == {16}
    assert max(columns for trace in copies for columns in trace.columns) == 16
    assert all(trace.width <= 4 and max(trace.columns) <= 4 for trace in traces if not is_copy(trace))
    novel, traces = serve(program, [asked("b", 2)], settings())
    assert (novel["b"].draft.ngram_rounds, novel["b"].draft.rounds > 0) == (0, True)
    assert not any(map(is_copy, traces))


@pytest.mark.clause("NGRAM-007")
def test_a_row_without_a_match_verifies_its_own_drafts_in_a_copy_round(program: Program) -> None:
    source = answer_as_source(program, 1)
    answers = {name: got.tokens for name, got in serve(program, [asked("b", 2)])[0].items()}
    drafter = KnowingDrafter(0.0, np.random.default_rng(0), answers | {"a": [0] * 100})
    got, traces = serve(program, [asked("a", 1, sources=(source,)), asked("b", 2)], settings(), drafter)
    mixed = [trace for trace in traces if len(trace.columns) == 2 and any(trace.copied)]
    assert mixed
    assert all(not all(trace.copied) for trace in mixed)
    beside = [
        committed
        for trace in mixed
        for copied, committed in zip(trace.copied, trace.committed, strict=True)
        if not copied
    ]
    assert max(beside) == 4, "three drafts and the bonus, beside a copy"
    draft = got["b"].draft
    assert draft.accepted_tokens - draft.ngram_accepted_tokens > 0


@pytest.mark.clause("NGRAM-006")
def test_adaptive_widths_stay_with_copies(program: Program) -> None:
    widths = []
    for copies in (0, 15):
        _, traces = serve(program, [asked("a", 3, 200)], settings(adaptive=True, copy_tokens=copies))
        widths.append({trace.width for trace in traces if not is_copy(trace)})
    assert widths[0] <= {1, 2, 3, 4}
    assert widths[0] >= {1, 4}, "both ends are measured first"
    assert widths[1] <= {1, 2, 3, 4}


def test_rounds_that_nobody_has_anything_to_say_of_are_counted_and_change_nothing(program: Program) -> None:
    """A drafter that is never right, and others that join and leave meanwhile."""
    names = "abc"
    requests = [
        Asked(asked(name, seed, 200 - 70 * seed).request, arrives=40 * seed)
        for seed, name in enumerate(names)
    ]
    plain, _ = serve(program, requests)
    told = list[int]()

    class Counting(KnowingDrafter):
        def committed(self, lane: Lane, first: int, outputs: Sequence[int]) -> None:
            told.append(len(outputs))

    answers = {name: plain[name].tokens for name in names}
    wrong = Counting(1.0, np.random.default_rng(0), answers, untold=16)
    got, traces = serve(program, requests, settings(adaptive=True, copy_tokens=0), wrong)
    assert {name: one.tokens for name, one in got.items()} == {
        name: one.tokens for name, one in plain.items()
    }
    for name, one in got.items():
        assert one.draft.rounds + one.draft.fallback_steps == len(plain[name].tokens) - 1
    assert sum(len(trace.columns) for trace in traces) == sum(len(one.tokens) - 1 for one in plain.values())
    assert sum(told) < sum(len(trace.columns) for trace in traces) / 2


def test_a_request_that_has_ended_is_not_held_on_to(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose rounds were passed over until the end."""
    tokens = serve(program, [asked("a", 1, 200)])[0]["a"].tokens
    wrong = KnowingDrafter(1.0, np.random.default_rng(0), {"a": tokens}, untold=16)
    service = Service(program, settings(adaptive=True, copy_tokens=0), wrong)
    drafts, ends = service.worker._speculation, list[Callable[[], object]]()
    assert drafts is not None
    passes = drafts.passes

    def watched(members: Sequence[Any]) -> bool:
        passed = passes(members)
        if passed:
            ends[:] = [weakref.ref(members[0].turn)]
        return passed

    monkeypatch.setattr(drafts, "passes", watched)
    try:
        service.serve([asked("a", 1, 200)])
        gc.collect()
        assert [end() for end in ends] == [None]
    finally:
        service.close()


@pytest.mark.clause("OPT-096")
def test_a_suffix_looks_itself_up_within_the_neural_window(program: Program) -> None:
    """A drafter that knows nothing shows whose drafts were right."""
    source = answer_as_source(program, 4)
    nothing = KnowingDrafter(1.0, np.random.default_rng(0), {"a": [0] * 300})
    prompt = np.concatenate([np.frombuffer(source, "<i4"), np.frombuffer(source, "<i4")[:5]])
    repeated = Asked(
        GenerationRequest(
            id="a", tokens=prompt.astype("<i4").tobytes(), positions=b"", initial_channel="content",
            sampling=SamplingParameters(0.0, 1.0, 0, 0.0, -2.0, 0.0, 0), max_tokens=120, stop_token_ids=(),
        )
    )  # fmt: skip
    plain, _ = serve(program, [repeated])
    got, traces = serve(program, [repeated], settings(lookup=1, copy_tokens=0), nothing)
    assert got["a"].tokens == plain["a"].tokens
    assert max(max(trace.columns) for trace in traces) == 4
    assert max(max(trace.committed) for trace in traces) <= 4
    assert got["a"].draft.accepted_tokens > 0
    both, _ = serve(program, [asked("b", 1, sources=(answer_as_source(program, 1),))], settings(lookup=3))
    assert both["b"].draft.ngram_rounds > 0


@pytest.mark.parametrize(
    ("lanes", "copies", "columns"),
    [(1, 0, 4), (1, 15, 16), (1, 63, 64), (3, 2, 12), (4, 15, 64), (8, 15, 64)],
)
def test_a_verification_holds_the_widest_block_of_every_lane_and_64_columns_at_most(
    lanes: int, copies: int, columns: int
) -> None:
    assert verified_columns(settings(copy_tokens=copies), lanes) == columns


@pytest.mark.parametrize(("lanes", "copies"), [(1, 0), (1, 15), (2, 3)])
def test_rounds_fit_the_workspace_that_is_planned_for_them(
    artifact: Artifacts,
    program: Program,
    lanes: int,
    copies: int,
) -> None:
    """Everybody proposes all that may be proposed, and answers as in the widest workspace."""
    source = answer_as_source(program, 1)
    drafts = settings(copy_tokens=copies)
    requests = [asked(name, 1, sources=(source,)) for name in "ab"[:lanes]]
    wanted, _ = serve(program, requests)
    columns = verified_columns(drafts, lanes)
    with program_of(artifact("dense", mtp=True), lanes=lanes, verified=columns) as narrow:
        assert narrow.workspace_bytes < program.workspace_bytes
        got, traces = serve(narrow, requests, drafts)
        assert {name: one.tokens for name, one in got.items()} == {
            name: one.tokens for name, one in wanted.items()
        }
        assert max(sum(trace.columns) for trace in traces) == columns


@pytest.mark.clause("NGRAM-027")
def test_the_index_is_built_by_whoever_submits(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes: here it ends only when a lane has decoded its whole answer meanwhile."""
    service, decoded, builders = Service(program, settings()), threading.Event(), list[int]()

    def build(*arguments: Any) -> NgramIndex:
        builders.append(threading.get_ident())
        assert len(builders) == 1 or decoded.wait(60), "the lane waits for the index"
        return NgramIndex(*arguments)

    monkeypatch.setattr(speculation, "NgramIndex", build)
    long = np.random.default_rng(2).integers(4, VOCABULARY, 100_000).astype("<i4").tobytes()
    monkeypatch.setattr(program, "options", dataclasses.replace(program.options, max_context=110_000))
    try:
        service.got |= {"a": Got(), "b": Got()}
        service.worker.submit(asked("a", 1).request)
        submitter = threading.Thread(
            target=lambda: service.worker.submit(structs.replace(asked("b", 2).request, tokens=long))
        )
        submitter.start()
        while not service.worker.idle:
            service.worker.step()
        assert len(service.got["a"].tokens) == 60
        assert submitter.is_alive(), "preparation takes as long as the index does"
        decoded.set()
        submitter.join()
        assert builders == [threading.get_ident(), submitter.ident]
        index = service.worker._drafts["b"].index
        assert index is not None
        assert index.length == 100_000, "before the worker has done anything"
        service.worker.cancel("b")
        while not service.worker.idle:
            service.worker.step()
    finally:
        decoded.set()
        service.close()


def test_what_was_committed_is_added_to_the_prompts_index(program: Program) -> None:
    service = Service(program, settings())
    try:
        service.got["a"] = Got()
        service.worker.submit(asked("a", 1).request)
        index = service.worker._drafts["a"].index
        assert index is not None
        assert index.length == 50
        while not service.worker.idle:
            service.worker.step()
        assert index.length == 50 + 60
    finally:
        service.close()


@pytest.mark.clause("NGRAM-028")
def test_every_held_request_has_its_index_until_it_ends(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seventeen prompts of 200,000 tokens: what the process holds, as the system counts it."""
    monkeypatch.setattr(program, "options", dataclasses.replace(program.options, max_context=210_000))
    service = Service(program, settings())
    prompt = np.random.default_rng(3).integers(4, VOCABULARY, 200_000).astype("<i4").tobytes()
    names = [str(number) for number in range(17)]
    before = resident_bytes()
    try:
        for name in names:
            service.got[name] = Got()
            service.worker.submit(structs.replace(asked(name, 1).request, tokens=prompt))
        held = resident_bytes() - before
        sizes = [draft.index.bytes for draft in service.worker._drafts.values() if draft.index is not None]
        assert len(sizes) == 17
        assert max(sizes) <= 36 * MIB
        assert held == pytest.approx(sum(sizes), rel=0.1)
        assert held > 17 * 20 * MIB
        for name in names:
            service.worker.cancel(name)
        while not service.worker.idle:
            service.worker.step()
        # Other tests' leftovers move what the process holds by some 20 MiB.
        assert resident_bytes() - before < held / 8
    finally:
        service.close()


def resident_bytes() -> int:
    """What the process holds, without what it has freed and the C library keeps for later."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.clause("NGRAM-001", "NGRAM-002", "SETTLE-004", "START-040", "SETTLE-003", "START-036")
@pytest.mark.parametrize("program_name", ["ninfer-serve", "ninfer", "ninfer-bench"])
def test_defaults_and_ranges_of_every_program(program_name: str) -> None:
    needed = ["--prompt", "x"] if program_name == "ninfer" else []
    lanes = {"ninfer-serve": "--max-concurrency", "ninfer-bench": "--concurrency"}.get(program_name)

    def drafts(*arguments: str) -> DraftSettings:
        found = draft_settings(parse(program_name, [*needed, "--spec", "mtp", *arguments]))
        assert found is not None
        return found

    assert (drafts().copy_tokens, drafts().copy_match, drafts().tokens) == (15, 12, 3)
    assert drafts("--ngram-draft-tokens", "63").copy_tokens == 63
    assert [drafts("--draft-tokens", str(count)).tokens for count in (1, 15)] == [1, 15]
    for wrong in ("0", "16"):
        with pytest.raises(OptionError, match="--draft-tokens"):
            drafts("--draft-tokens", wrong)
    with pytest.raises(OptionError, match="--ngram-draft-tokens"):
        drafts("--ngram-draft-tokens", "64")
    if lanes is not None:
        for count in range(1, 9):
            assert drafts(lanes, str(count)).copy_tokens == 15
        with pytest.raises(OptionError, match="--ngram-draft-tokens"):
            drafts(lanes, "2", "--ngram-draft-tokens", "16")
