"""Drafts and the prefix cache together: the same tokens as either alone, over follow-ups and pauses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from conformance.engine.speculation.drive import SPECIAL, program_of, token_bytes
from ninfer.engine.events import Delta, EngineEvent, Failed, Finished, Started
from ninfer.engine.requests import GenerationRequest, SamplingParameters
from ninfer.engine.settings import CacheSettings, DraftSettings
from ninfer.engine.statistics import EngineStatistics
from ninfer.fast.draft.speculation import Speculation
from ninfer.fast.engine import FastWorker
from ninfer.fast.prefix.limits import resolve_limits
from tests.support.nano import VOCABULARY, nano_artifact

CACHE = CacheSettings(True, 16, 8, 128, 64)
DRAFTS = DraftSettings("mtp", 3, copy_tokens=7, copy_match=4)
GREEDY = SamplingParameters(0.0, 1.0, 20, 0.0, 0.0, 0.0, 0)
SEEDED = SamplingParameters(0.8, 0.95, 20, 0.0, 0.5, 0.0, 7)


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nano_artifact(tmp_path_factory.mktemp("drafted"))


class Served:
    """A worker over a program, and what each request got."""

    def __init__(self, worker: FastWorker, events: list[EngineEvent]) -> None:
        self.worker, self.events = worker, events

    def ask(self, name: str, tokens: np.ndarray, count: int, sampling: SamplingParameters) -> None:
        self.worker.submit(
            GenerationRequest(name, tokens.astype("<i4").tobytes(), b"", "content", sampling, count, ())
        )

    def run(self) -> None:
        for _ in range(20_000):
            self.worker.step()
            if self.worker.idle:
                return
        raise AssertionError("a request never ended")

    def tokens(self, name: str) -> list[int]:
        assert not [event for event in self.events if isinstance(event, Failed)]
        own = [event for event in self.events if getattr(event, "id", None) == name]
        return [token for event in own if isinstance(event, Delta) for token in event.token_ids]

    def cached(self, name: str) -> int:
        return next(e.cached_tokens for e in self.events if isinstance(e, Started) and e.id == name)

    def talk(
        self, lengths: Sequence[int], turns: int, count: int, added: int
    ) -> dict[str, tuple[int, list[int]]]:
        """Conversations beside each other; what each turn reused and answered.

        They begin with ``lengths`` tokens; a turn gets an answer of ``count`` and then ``added`` more.
        """
        random, found = np.random.default_rng(2), dict[str, tuple[int, list[int]]]()
        histories = [random.integers(0, VOCABULARY, length).astype(np.int32) for length in lengths]
        for turn in range(turns):
            for which, history in enumerate(histories):
                self.ask(f"{which}.{turn}", history, count, SEEDED if which else GREEDY)
            self.run()
            for which in range(len(histories)):
                name = f"{which}.{turn}"
                found[name] = self.cached(name), self.tokens(name)
                new = random.integers(0, VOCABULARY, added)
                histories[which] = np.concatenate([histories[which], found[name][1], new]).astype(np.int32)
        return found

    @property
    def statistics(self) -> EngineStatistics:
        return [event for event in self.events if isinstance(event, EngineStatistics)][-1]


@contextmanager
def serving(artifact: Path, drafts: bool, cache: bool, pages: int = 64) -> Iterator[Served]:
    slots = CACHE.snapshot_slots or 0
    sizes = {"lanes": 2, "pages": pages, "max_context": 64 * min(pages, 16)}
    with program_of(artifact, snapshot_slots=slots if cache else 0, mtp=drafts, **sizes) as program:
        events: list[EngineEvent] = []
        speculation = None
        if drafts:
            assert program.mtp is not None
            speculation = Speculation(program, DRAFTS, program.mtp, SPECIAL)
        limits = resolve_limits(CACHE, 2, 64) if cache else None
        yield Served(
            FastWorker(
                program, token_bytes, events.append, speculation=speculation, limits=limits, page_bytes=1024
            ),
            events,
        )


def test_drafts_change_nothing_over_reused_prefixes(artifact: Path) -> None:
    with serving(artifact, drafts=False, cache=True) as served:
        plain = served.talk((90, 130), turns=4, count=70, added=25)
    with serving(artifact, drafts=True, cache=True) as served:
        drafted = served.talk((90, 130), turns=4, count=70, added=25)
        assert served.statistics.draft.rounds > 10
    assert drafted == plain
    assert all(cached > 100 for name, (cached, _) in plain.items() if name[2] != "0")


def test_a_drafted_request_that_was_paused_goes_on(artifact: Path) -> None:
    random = np.random.default_rng(4)
    prompts = [random.integers(0, VOCABULARY, 60).astype(np.int32) for _ in range(2)]
    answers = []
    for pages in (64, 9):
        with serving(artifact, drafts=True, cache=True, pages=pages) as served:
            for name, prompt in enumerate(prompts):
                served.ask(str(name), prompt, 350, GREEDY)
            served.run()
            answers.append([served.tokens(str(name)) for name in range(2)])
            pauses = served.statistics.recovery.preemptions
            ends = [event for event in served.events if isinstance(event, Finished)]
            assert [event.usage.completion_tokens for event in ends] == [350, 350]
            assert (pauses > 0) == (pages == 9)
    assert answers[0] == answers[1]
