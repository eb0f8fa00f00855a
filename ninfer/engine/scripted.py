"""An engine that plays a script: given tokens, timings and failures, no model.

Stands behind the real server in tests. A script is a JSON file (``Script``); the request's seed chooses the
play. Token bytes go through the real output session, so channels, stop strings and UTF-8 behave as they do
behind a model.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from ninfer.engine.events import Delta, Finished, FinishReason, Progress, RequestEvent, Started, Usage
from ninfer.engine.requests import GenerationRequest
from ninfer.engine.settings import EngineSettings
from ninfer.engine.statistics import EngineResources
from ninfer.errors import ArtifactError, EngineError
from ninfer.output import OutputSession
from ninfer.prompt.prepared import Channel

_POLL_S = 0.005


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One step of a play, its members in this order.

    ``wait_s`` seconds pass; ``fail`` raises (``exit`` ends the process); ``progress`` reports that many
    prompt tokens; ``text`` or ``hex`` is one output token with these bytes.
    """

    wait_s: float = 0.0
    fail: Literal["assertion", "memory", "device", "unavailable", "exit"] | None = None
    progress: int | None = None
    text: str | None = None
    hex: str | None = None

    @property
    def token(self) -> bytes | None:
        if self.text is not None:
            return self.text.encode()
        return None if self.hex is None else bytes.fromhex(self.hex)


class Play(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one request gets. ``repeat`` plays the steps that many times; the end of them is a stop token."""

    steps: tuple[Step, ...] = (Step(text="ok"),)
    repeat: int = 1
    cached_tokens: int = 0


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``plays`` by seed, or by ``limit N`` for requests whose protocol has no seed, else ``default``.

    ``load_s`` and ``load_error`` shape the start; ``journal`` names a file that gets each request as a line.
    """

    plays: dict[str, Play] = {}
    default: Play = Play()
    load_s: float = 0.0
    load_error: str | None = None
    journal: str | None = None

    def play(self, request: GenerationRequest) -> Play:
        """What ``request`` gets; N is its output limit."""
        for name in (str(request.sampling.seed), f"limit {request.max_tokens}"):
            if name in self.plays:
                return self.plays[name]
        return self.default


def open_engine(
    settings: EngineSettings, listener: Callable[[int, int], None] | None = None
) -> ScriptedEngine:
    """The engine for ``settings.script``. Errors: ``ArtifactError`` when the script says so."""
    assert settings.script is not None, "the scripted engine needs a script"
    script = msgspec.json.decode(Path(settings.script).read_bytes(), type=Script)
    time.sleep(script.load_s)
    if listener is not None:
        listener(1, 1)
    if script.load_error is not None:
        raise ArtifactError("script", script.load_error)
    return ScriptedEngine(script)


class ScriptedEngine:
    """A ``SerialEngine`` over a script."""

    name = "scripted"
    resources = EngineResources(kernels="script")

    def __init__(self, script: Script, clock: Callable[[], float] = time.monotonic) -> None:
        self._script = script
        self._clock = clock

    def generate(
        self, request: GenerationRequest, cancelled: Callable[[], bool], queue_s: float
    ) -> Iterator[RequestEvent]:
        self._record(request)
        play = self._script.play(request)
        return _Performance(request, play, cancelled, queue_s, self._clock).events()

    def _record(self, request: GenerationRequest) -> None:
        if self._script.journal is not None:
            with Path(self._script.journal).open("ab") as journal:
                journal.write(msgspec.json.encode(request) + b"\n")


class _Performance:
    """One play for one request."""

    def __init__(
        self,
        request: GenerationRequest,
        play: Play,
        cancelled: Callable[[], bool],
        queue_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._request = request
        self._play = play
        self._cancelled = cancelled
        self._queue_s = queue_s
        self._clock = clock
        self._started_at = clock()
        self._first_token_s = self._last_token_s = 0.0
        self._prompt_tokens = len(request.tokens) // 4
        self._stop_string: str | None = None
        self._tokens: list[bytes] = []
        self._unpublished: list[int] = []
        self._channel: Channel = request.initial_channel
        self._session = OutputSession(
            lambda index: self._tokens[index], request.initial_channel, request.stops
        )

    def events(self) -> Iterator[RequestEvent]:
        request = self._request
        yield Started(request.id, self._prompt_tokens, self._play.cached_tokens, self._queue_s)
        reason: FinishReason = "length"
        if request.max_tokens > 0:
            reason = yield from self._generate()
        if self._stop_string is None:
            yield from self._deltas(self._session.finish())
        if self._unpublished:
            yield from self._deltas([(self._channel, "")])
        in_thinking = self._session.channel == "reasoning"
        yield Finished(request.id, reason, self._usage(), self._stop_string, in_thinking=in_thinking)

    def _generate(self) -> Generator[RequestEvent, None, FinishReason]:
        for step in self._steps():
            self._perform(step)
            if self._cancelled():
                return "cancelled"
            if step.progress is not None:
                yield self._progress(step.progress)
            if step.token is not None:
                yield from self._push(step.token)
            if self._stop_string is not None:
                return "stop"
            if len(self._tokens) >= self._request.max_tokens:
                return "length"
        return "stop"

    def _steps(self) -> Iterator[Step]:
        for _ in range(self._play.repeat):
            yield from self._play.steps

    def _perform(self, step: Step) -> None:
        until = self._clock() + step.wait_s
        while (left := until - self._clock()) > 0 and not self._cancelled():
            time.sleep(min(left, _POLL_S))
        if step.fail is not None and not self._cancelled():
            _fail(step.fail)

    def _push(self, token: bytes) -> Iterator[Delta]:
        self._last_token_s = self._elapsed()
        if not self._tokens:
            self._first_token_s = self._last_token_s
        self._unpublished.append(len(self._tokens))
        self._tokens.append(token)
        step = self._session.push([len(self._tokens) - 1])
        self._stop_string = step.stop_string
        return self._deltas(step.deltas)

    def _deltas(self, pieces: Sequence[tuple[Channel, str]]) -> Iterator[Delta]:
        """A token's id is its place in the answer."""
        for channel, text in pieces:
            self._channel = channel
            ids, self._unpublished = tuple(self._unpublished), []
            decode_s = self._last_token_s - self._first_token_s
            yield Delta(
                self._request.id, channel, text, ids, len(self._tokens), self._first_token_s, decode_s
            )

    def _progress(self, processed: int) -> Progress:
        return Progress(
            self._request.id, self._prompt_tokens, self._play.cached_tokens, processed, self._elapsed()
        )

    def _elapsed(self) -> float:
        return self._clock() - self._started_at

    def _usage(self) -> Usage:
        return Usage(
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._play.cached_tokens,
            completion_tokens=len(self._tokens),
            reasoning_tokens=self._session.reasoning_tokens,
            prefill_s=self._first_token_s,
            decode_s=self._last_token_s - self._first_token_s,
            time_to_first_token_s=self._first_token_s,
        )


def _fail(kind: str) -> None:
    if kind == "assertion":
        raise AssertionError("a scripted failure")
    if kind == "memory":
        raise MemoryError("a scripted failure")
    if kind == "device":
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    if kind == "unavailable":
        raise EngineError("engine_unavailable", "a scripted failure")
    os._exit(9)
