"""What fails in a round with drafts: as little is lost as may be, and what was committed stands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from conformance.engine.speculation.drafters import KnowingDrafter
from conformance.engine.speculation.drive import Asked, Got, Service, serve
from ninfer.engine.events import Failed
from ninfer.fast.draft import speculation
from ninfer.fast.draft.ngram.index import NgramIndex
from ninfer.fast.program.program import Program
from tests.fast.draft.asking import asked, settings


def test_a_request_whose_index_fails_goes_on_without_copies(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(*arguments: Any) -> NgramIndex:
        raise MemoryError("Unable to allocate 9 GiB")

    wanted, _ = serve(program, [asked("a", 1)])
    service = Service(program, settings())
    monkeypatch.setattr(speculation, "NgramIndex", build)
    try:
        service.got["a"] = Got()
        service.worker.submit(asked("a", 1, sources=(b"\x04\0\0\0" * 9,)).request)
        while not service.worker.idle:
            service.worker.step()
    finally:
        service.close()
    assert service.got["a"].tokens == wanted["a"].tokens
    assert service.got["a"].draft.rounds > 0, "the drafter goes on"
    assert service.got["a"].draft.ngram_rounds == 0
    (record,) = service.records
    assert record == "request a goes on without copies: MemoryError: Unable to allocate 9 GiB"


def run_to_end(service: Service, *requests: Asked) -> dict[str, Got]:
    """As ``Service.serve``, where failures are expected."""
    service.got |= {one.request.id: Got() for one in requests}
    for one in requests:
        service.worker.submit(one.request)
    while not service.worker.idle:
        service.worker.step()
    return service.got


def test_drafts_that_were_accepted_come_before_the_failure_of_their_own_round(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, _ = serve(program, [asked("a", 1)])
    service = Service(program, settings())
    account, counted = service.worker._account, list[int]()
    committed = account.committed

    def fail(request: Any, tokens: int) -> None:
        counted.append(tokens)
        if tokens > 1:
            raise AssertionError("ours")
        committed(request, tokens)

    monkeypatch.setattr(account, "committed", fail)
    source = np.array(wanted["a"].tokens, "<i4").tobytes()
    try:
        got = run_to_end(service, asked("a", 1, sources=(source,)))["a"]
    finally:
        service.close()
    assert isinstance(got.end, Failed)
    assert got.tokens == wanted["a"].tokens[: sum(counted)]
    assert counted[-1] > 1


def test_a_verification_that_fails_hurts_nobody_of_another_in_the_same_round(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four requests in verifications of two rows: one of them fails once."""
    names = "abcd"
    wanted, _ = serve(program, [asked(name, seed) for seed, name in enumerate(names)])
    drafter = KnowingDrafter(1.0, np.random.default_rng(0), {name: wanted[name].tokens for name in names})
    service = Service(program, settings(copy_tokens=0), drafter)
    service.worker._speculation._columns = 8  # type: ignore[union-attr]
    verify, full, failed = program.verify, [0], [0]

    def fail(blocks: Any) -> Any:
        full[0] += sum(len(block.tokens) for block in blocks) == 8
        if full[0] == 4 and not failed[0]:
            failed[0] = len(blocks)
            raise MemoryError("no room")
        return verify(blocks)

    monkeypatch.setattr(program, "verify", fail)
    service._prompts |= dict.fromkeys(names, 50)
    try:
        got = run_to_end(service, *(asked(name, seed) for seed, name in enumerate(names)))
    finally:
        service.close()
    ends = {name: type(one.end) for name, one in got.items()}
    assert list(ends.values()).count(Failed) == failed[0] == 2
    for name, end in ends.items():
        assert got[name].tokens == wanted[name].tokens[: len(got[name].tokens)]
        assert (len(got[name].tokens) == 60) == (end is not Failed)
    assert service.records == ["worker out of memory: no room - recovering"]
