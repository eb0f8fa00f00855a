"""One question answered with or without drafts on this thread, and what its rounds did.

Owns the engine and its accounts. Host time of a round is what is not spent in compiled operations.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from msgspec import structs

from ninfer import collector
from ninfer.artifact import Artifact
from ninfer.engine.events import Delta, EngineEvent, Failed, Finished, Usage
from ninfer.engine.requests import GenerationRequest
from ninfer.engine.settings import CacheSettings, DraftSettings, EngineSettings
from ninfer.fast.draft.speculation import RoundTrace, Speculation
from ninfer.fast.engine import FastWorker
from ninfer.fast.memory.ledger import page_bytes
from ninfer.fast.prefix.limits import CacheLimits
from ninfer.fast.program.program import Program
from ninfer.fast.start import cache_limits, open_speculation, resolve_options
from ninfer.model.config import parse_text_config
from ninfer.prompt import Tokenizer

MAX_CONTEXT = 4096


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one question. ``host_s``: per decode round, time outside of compiled operations."""

    text: str
    ended: bool
    tokens: list[int]
    usage: Usage
    total_s: float
    rounds: list[RoundTrace]
    host_s: float

    @property
    def decode_rate(self) -> float:
        """Tokens per second after the first one."""
        return (self.usage.completion_tokens - 1) / self.usage.decode_s if self.usage.decode_s else 0.0


class Runner:
    """A worker over one program; questions one at a time."""

    def __init__(
        self,
        program: Program,
        speculation: Speculation | None,
        tokenizer: Tokenizer,
        limits: CacheLimits | None = None,
    ) -> None:
        self._program, self.speculation = program, speculation
        self._worker = FastWorker(
            program, tokenizer.token_bytes, self._note, speculation=speculation, limits=limits,
            page_bytes=page_bytes(program.config, program.options.kv_format, program.options.mtp),
        )  # fmt: skip
        self._events: list[EngineEvent] = []
        self._compiled_s = 0.0
        run = program._runner.run

        def timed(begin: int, end: int, rows: int, blocks: int) -> None:
            began = time.perf_counter()
            run(begin, end, rows, blocks)
            self._compiled_s += time.perf_counter() - began

        program._runner.run = timed  # type: ignore[method-assign]

    def answer(self, request: GenerationRequest, traces: bool = True) -> Answer:
        """Serve one request to its end; without ``traces`` no round is listed.

        Errors: ``RuntimeError`` when it fails.
        """
        self._events.clear()
        rounds: list[RoundTrace] = []
        if self.speculation is not None:
            self.speculation.trace = rounds.append if traces else None
        began, steps, host_s = time.perf_counter(), 0, 0.0
        self._worker.submit(request)
        while not self._worker.idle:
            first = any(isinstance(event, Delta) for event in self._events)
            before, compiled = time.perf_counter(), self._compiled_s
            self._worker.step()
            if first:  # a decode round: prefill is over
                host_s += time.perf_counter() - before - (self._compiled_s - compiled)
                steps += 1
        total_s = time.perf_counter() - began
        end = self._events[-1]
        if isinstance(end, Failed):
            raise RuntimeError(f"{end.code}: {end.message}")
        deltas = [event for event in self._events if isinstance(event, Delta)]
        tokens, finished = self.finished
        return Answer(
            text="".join(delta.text for delta in deltas if delta.channel == "content"),
            ended=finished.reason == "stop",
            tokens=tokens,
            usage=finished.usage,
            total_s=total_s,
            rounds=rounds,
            host_s=host_s / max(1, steps),
        )

    def begin(self, request: GenerationRequest) -> None:
        """Submit a request for ``advance``, and take its prompt in."""
        self._events.clear()
        self._worker.submit(request)
        while not any(isinstance(event, Delta) for event in self._events):
            self._worker.step()

    def advance(self, rounds: int) -> tuple[float, bool]:
        """Seconds of so many rounds of what was begun, and whether it has ended."""
        step, idle, began = self._worker.step, False, time.perf_counter()
        for _ in range(rounds):
            step()
            idle = self._worker.idle
            if idle:
                break
        return time.perf_counter() - began, idle

    @property
    def finished(self) -> tuple[list[int], Finished]:
        """Tokens and end of the last request."""
        (end,) = (event for event in self._events if isinstance(event, Finished))
        tokens = [token for event in self._events if isinstance(event, Delta) for token in event.token_ids]
        return tokens, end

    def prepare(self, request: GenerationRequest) -> None:
        """Have the request's prompt in the prefix cache: it is asked for one token."""
        self.answer(structs.replace(request, id=f"{request.id} before", max_tokens=1), traces=False)

    def _note(self, event: EngineEvent) -> None:
        if isinstance(event, Delta | Finished | Failed):
            self._events.append(event)


@contextmanager
def runner(
    path: Path,
    tokenizer: Tokenizer,
    draft: DraftSettings | None,
    threads: int | None,
    activations: str = "float32",
    cache: bool = False,
) -> Iterator[Runner]:
    """A program of its own, so that what drafting costs in prefill shows too; ``cache``: prompts are kept."""
    settings = EngineSettings(
        "fast", str(path), MAX_CONTEXT, threads=threads, activations=activations, draft=draft,
        cache=CacheSettings(reuse=cache),
    )  # fmt: skip
    with Artifact.open(path) as artifact:
        config = parse_text_config(artifact.directory.components["text"].config)
        options = resolve_options(settings, config, min(tokenizer.vocabulary_size, config.vocab))
        program = Program(artifact, config, options)
    with closing(program):
        program.warm_up()
        speculation = open_speculation(draft, program, tokenizer.special_ids)
        collector.set_aside()  # as an engine process does
        yield Runner(program, speculation, tokenizer, cache_limits(settings, options.prefill_chunk))
