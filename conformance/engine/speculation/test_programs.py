"""The four n-gram programs on the bundled model, and that each of them can fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from conformance.engine.speculation import concurrent, harness, lifecycle, stop_chat, thinking
from conformance.engine.speculation.harness import DIFFERENT, FAILED, USAGE, Engine, Verdict, finish
from ninfer.engine.requests import GenerationRequest
from ninfer.fast.draft.speculation import RequestDraft, Speculation

Output = pytest.CaptureFixture[str]


@pytest.mark.campaign
@pytest.mark.timeout(600)
@pytest.mark.clause("PROG-004", "PROG-006", "PROG-007")
def test_lifecycle(capsys: Output) -> None:
    status = finish(lifecycle.USAGE, lifecycle.run, ["63", "5", "1", "1", "nvfp4", "12", "0", "mtp"])
    out = capsys.readouterr().out
    assert out.startswith("NG63 K5 graphs on head on kv nvfp4 match 12 no soak mtp\n")
    assert status == 0, out
    for section in (
        "retained 0",
        "cancellation",
        "isolation 1",
        "budget 17",
        "page 63",
        "page 65",
        "context 1",
    ):
        assert section in out
    assert "context 70: ok 71" in out or "context 70: ok 70" in out


@pytest.mark.clause("PROG-014", "PROG-015", "PROG-016", "PROG-017")
def test_thinking(capsys: Output) -> None:
    status, out = finish(thinking.USAGE, thinking.run, ["mtp", "5", "15"]), capsys.readouterr().out
    assert status == 0, out
    assert "budget 0 32 thinking: ok" in out


@pytest.mark.clause("PROG-020", "PROG-021", "PROG-022", "PROG-023")
def test_stop_chat(capsys: Output) -> None:
    assert finish(stop_chat.USAGE, stop_chat.run, ["mtp", "15", "--no-cuda-graph"]) == 0, (
        capsys.readouterr().out
    )
    assert capsys.readouterr().out.startswith("graphs off\n")


@pytest.mark.clause("PROG-025", "PROG-026", "PROG-027", "PROG-029", "PROG-030")
def test_concurrent(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    monkeypatch.setattr(concurrent, "SOAK", 1)
    status, out = finish(concurrent.USAGE, concurrent.run, ["mtp", "15", "5"]), capsys.readouterr().out
    assert status == 0, out
    assert out.startswith("context 4096 graphs where the device has them\n")
    assert "free lanes" in out


@pytest.mark.clause("PROG-028")
def test_concurrent_without_copies(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    monkeypatch.setenv("NINFER_NGRAM_TEST_MAX_CONTEXT", "2048")
    monkeypatch.setenv("NINFER_NGRAM_TEST_NO_GRAPH", "1")
    assert finish(concurrent.USAGE, concurrent.run, ["mtp", "0", "2"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("context 2048 eager\n")
    assert "the copying part is skipped" in out
    assert "baseline: ok" in out


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        (thinking, ["mtp", "5"]),
        (thinking, ["mtp", "16", "15"]),
        (lifecycle, ["63", "5"]),
        (stop_chat, ["mtp", "15", "--fast"]),
        (concurrent, ["dflash2", "15", "5"]),
    ],
)
def test_wrong_arguments_are_usage_errors(program: Any, arguments: list[str], capsys: Output) -> None:
    assert finish(program.USAGE, program.run, arguments) == USAGE
    assert "usage: " in capsys.readouterr().err


def test_an_empty_variable_skips(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    monkeypatch.setenv(harness.WEIGHTS, "")
    for program, arguments in ((thinking, ["mtp", "5", "15"]), (stop_chat, ["mtp", "15"])):
        assert finish(program.USAGE, program.run, arguments) == 0
        assert "skipped" in capsys.readouterr().out


@pytest.mark.clause("PROG-008", "PROG-018")
@pytest.mark.parametrize(
    ("failures", "differences", "strict", "status"),
    [
        ([], [], False, 0),
        ([], ["a"], False, 0),
        ([], ["a"], True, DIFFERENT),
        (["a"], ["a"], True, FAILED),
        (["a"], [], False, FAILED),
        ([], [], True, 0),
    ],
)
def test_a_differing_fresh_answer_has_a_status_of_its_own(
    failures: list[str], differences: list[str], strict: bool, status: int
) -> None:
    verdict = Verdict(strict)
    for name in failures:
        verdict.check(name, False)
    for name in differences:
        verdict.fresh(name, False)
    verdict.check("sound", True)
    verdict.fresh("alike", True)
    assert verdict.status == status


@pytest.mark.clause("PROG-006")
def test_a_source_that_leaks_into_another_request_fails_the_lifecycle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Planted: of two that wait together one gets the other's copy source."""
    tested = harness.subject()
    assert tested is not None
    settings = harness.drafts("mtp", 5, 15)
    opened: list[GenerationRequest] = []
    inner: Callable[..., RequestDraft] = Speculation.open

    def leaking(self: Speculation, request: GenerationRequest, room: int) -> RequestDraft:
        opened.append(request)
        draft = inner(self, request, room)
        if len(opened) == 4:  # the second of those that wait together
            draft.index = inner(self, opened[2], room).index
        return draft

    with tested.engine(settings) as engine:
        sources = tested.sources(engine)
        sound = Verdict()
        lifecycle.isolation(sound, tested, engine, sources)
        assert sound.status == 0
        opened.clear()
        monkeypatch.setattr(Speculation, "open", leaking)
        faulty = Verdict()
        lifecycle.isolation(faulty, tested, engine, sources)
        assert faulty.status == FAILED


@pytest.mark.clause("PROG-016")
def test_an_answer_without_an_accepted_copy_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    tested = harness.subject()
    assert tested is not None
    with tested.engine(harness.drafts("mtp", 5, 0)) as engine:
        verdict = Verdict()
        thinking.answer(verdict, tested, engine, tested.sources(engine, 1)[0], 0)
    assert verdict.failures == ["answer 0 copies"]
    assert isinstance(engine, Engine)
