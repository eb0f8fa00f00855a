"""Serves requests through the real worker with and without drafts, on the caller's own thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from conformance.engine.drive import disturb
from conformance.engine.speculation.drafters import KnowingDrafter
from ninfer.artifact import Artifact
from ninfer.engine.events import Delta, DraftUsage, EngineEvent, Failed, Finished, LogRecord, Started
from ninfer.engine.requests import GenerationRequest
from ninfer.engine.settings import DraftSettings
from ninfer.fast.draft.speculation import Drafter, RoundTrace, Speculation
from ninfer.fast.engine import FastWorker
from ninfer.fast.program.program import Lane, Program, ProgramOptions
from ninfer.model.config import parse_text_config
from tests.support.nano import VOCABULARY

_PATIENCE = 100_000
# Ids 0..3 end copy sources here.
SPECIAL = np.zeros(VOCABULARY, bool)
SPECIAL[:4] = True


def token_bytes(token: int) -> bytes:
    """One printable character per id, so that stop strings can be cut out of any answer."""
    return bytes([33 + token % 90])


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, the cycle in which it arrives, and after how many published tokens it is cancelled."""

    request: GenerationRequest
    arrives: int = 0
    cancel_after: int | None = None


@dataclass(slots=True)
class Got:
    """What one request got."""

    tokens: list[int] = field(default_factory=list)
    text: dict[str, str] = field(default_factory=dict)
    end: Finished | Failed | None = None

    @property
    def draft(self) -> DraftUsage:
        assert isinstance(self.end, Finished)
        assert self.end.usage.draft is not None
        return self.end.usage.draft

    @property
    def outcome(self) -> tuple[object, ...]:
        """All of it that a drafter must not change."""
        assert isinstance(self.end, Finished), self.end
        usage = self.end.usage
        counts = usage.completion_tokens, usage.reasoning_tokens
        return self.tokens, self.text, self.end.reason, self.end.stop_string, counts


@contextmanager
def program_of(path: Path, **sizes: object) -> Iterator[Program]:
    """A program with a prediction head over an artifact."""
    fields: dict[str, object] = {
        "lanes": 4, "max_context": 512, "pages": 64, "kv_format": "float32", "prefill_chunk": 64,
        "threads": 1, "vocabulary": VOCABULARY, "mtp": True,
    }  # fmt: skip
    with Artifact.open(path) as artifact:
        config = parse_text_config(artifact.directory.components["text"].config)
        program = Program(artifact, config, ProgramOptions(**(fields | sizes)))  # type: ignore[arg-type]
    with closing(program):
        yield program


class Service:
    """One worker over a program; ``traces`` are its rounds."""

    def __init__(
        self, program: Program, settings: DraftSettings | None = None, drafter: Drafter | None = None
    ) -> None:
        self.got: dict[str, Got] = {}
        self.records: list[str] = []
        self.traces: list[RoundTrace] = []
        self._drafter, self._prompts = drafter, dict[str, int]()
        self._opened: Lane | None = None
        self._open, program.open_lane = program.open_lane, self._open_lane  # type: ignore[method-assign]
        self._program = program
        speculation = None
        if settings is not None:
            used = drafter or program.mtp
            assert used is not None
            speculation = Speculation(program, settings, used, SPECIAL)
            speculation.trace = self.traces.append
        self.worker = FastWorker(program, token_bytes, self._publish, speculation=speculation)

    def close(self) -> None:
        self._program.open_lane = self._open  # type: ignore[method-assign]

    def _open_lane(self, ceiling: int = 0) -> Lane:
        self._opened = self._open(ceiling)
        return self._opened

    def _publish(self, event: EngineEvent) -> None:
        if isinstance(event, LogRecord) and event.level != "debug":
            self.records.append(event.message)
        elif isinstance(event, Started) and isinstance(self._drafter, KnowingDrafter):
            assert self._opened is not None
            self._drafter.assign(self._opened.slot, event.id, self._prompts[event.id])
        elif isinstance(event, Delta):
            got = self.got[event.id]
            got.tokens += event.token_ids
            got.text[event.channel] = got.text.get(event.channel, "") + event.text
        elif isinstance(event, Finished | Failed):
            assert self.got[event.id].end is None
            self.got[event.id].end = event

    def serve(self, asked: Sequence[Asked]) -> dict[str, Got]:
        """Everybody's answer; the program is whole and idle afterwards."""
        coming = sorted(asked, key=lambda one: one.arrives)
        cancelling = [one for one in asked if one.cancel_after is not None]
        for one in asked:
            self.got[one.request.id] = Got()
            self._prompts[one.request.id] = len(one.request.tokens) // 4
        for cycle in range(_PATIENCE):
            while coming and coming[0].arrives <= cycle:
                self.worker.submit(coming.pop(0).request)
            self.worker.step()
            for one in cancelling:
                got = self.got[one.request.id]
                if got.end is None and len(got.tokens) >= (one.cancel_after or 0):
                    self.worker.cancel(one.request.id)
            if not coming and self.worker.idle:
                break
        assert all(got.end is not None for got in self.got.values()), "a request never ended"
        assert not self.records, self.records
        self._program.check_integrity()
        return self.got


def serve(
    program: Program,
    asked: Sequence[Asked],
    settings: DraftSettings | None = None,
    drafter: Drafter | None = None,
    random: np.random.Generator | None = None,
) -> tuple[dict[str, Got], list[RoundTrace]]:
    """The answers with these drafts (None: without any), on disturbed memory, and the rounds."""
    if random is not None:
        disturb(program, random)
    service = Service(program, settings, drafter)
    try:
        return service.serve(asked), service.traces
    finally:
        service.close()
