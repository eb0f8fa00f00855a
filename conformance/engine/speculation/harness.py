"""What the n-gram programs share: an artifact by environment variable, a worker on this thread, a verdict.

A program ends with 0, with 1 where a mandatory check failed, with 2 where only the separate comparison of
fresh and cached answers differed, and with 64 on wrong arguments.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ninfer import bundled
from ninfer.engine.events import Delta, EngineEvent, Failed, Finished
from ninfer.engine.requests import GenerationRequest
from ninfer.engine.settings import DraftSettings, EngineSettings
from ninfer.fast.engine import FastWorker
from ninfer.fast.memory.pages import FORMATS
from ninfer.fast.start import open_worker
from ninfer.prompt.conversation import Conversation, Message, TemplateOptions, TextPart
from ninfer.prompt.copy_sources import copy_sources
from ninfer.sampling.parameters import SamplingOverrides
from ninfer.server.resolution import GenerationDefaults, GenerationFields, resolve, with_copy_sources
from ninfer.server.served_model import ModelChoices, ServedModel, open_served_model
from tools.tiny.data.documents import exam_document

WEIGHTS = "NINFER_NGRAM_TEST_WEIGHTS"
FAILED, DIFFERENT, USAGE = 1, 2, 64
_SOURCES, _TRIED = 2, 40


class UsageError(Exception):
    """The arguments are wrong; the message says how they go."""


@dataclass(slots=True)
class Result:
    """One answer."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    thought: str = ""
    end: Finished | None = None

    @property
    def usage(self) -> Any:
        assert self.end is not None
        return self.end.usage

    @property
    def copied(self) -> int:
        """Accepted copied tokens."""
        return 0 if self.usage.draft is None else int(self.usage.draft.ngram_accepted_tokens)


@dataclass(slots=True)
class Verdict:
    """Named checks as they are made; ``strict`` lets a differing fresh answer count."""

    strict: bool = False
    failures: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)

    def check(self, name: str, holds: bool, what: object = "") -> None:
        """A mandatory check."""
        print(f"{name}: {'ok' if holds else 'FAILED'} {what}".rstrip(), flush=True)
        if not holds:
            self.failures.append(name)

    def fresh(self, name: str, same: bool) -> None:
        """The separate diagnostic: fresh prefill against cached state."""
        print(f"{name}: fresh and cached answers {'agree' if same else 'differ'}", flush=True)
        if not same:
            self.differences.append(name)

    @property
    def status(self) -> int:
        if self.failures:
            return FAILED
        return DIFFERENT if self.strict and self.differences else 0


class Engine:
    """A worker whose cycles this thread runs."""

    def __init__(
        self,
        path: Path,
        draft: DraftSettings | None,
        *,
        lanes: int = 1,
        context: int = 2048,
        kv: str = "bf16",
    ) -> None:
        settings = EngineSettings(
            "fast", str(path), context, lanes=lanes, kv_format=kv, prefill_chunk=256, draft=draft
        )
        self.results: dict[str, Result] = {}
        worker = open_worker(settings, lambda loaded, total: None, self._publish)
        assert isinstance(worker, FastWorker)
        self.worker, self.lanes, self.context = worker, lanes, context
        self._serial = 0

    def run(self, *requests: GenerationRequest) -> list[Result]:
        """Serve requests together to their ends."""
        names = [self.submit(request) for request in requests]
        self.drain()
        return [self.results[name] for name in names]

    def submit(self, request: GenerationRequest) -> str:
        """Queue a request under a name of its own."""
        self._serial += 1
        name = f"{request.id}-{self._serial}"
        self.results[name] = Result()
        self.worker.submit(msgspec.structs.replace(request, id=name))
        return name

    def drain(self) -> None:
        """Cycle until nothing is left to do."""
        while not self.worker.idle:
            self.worker.step()

    def _publish(self, event: EngineEvent) -> None:
        if isinstance(event, Delta):
            result = self.results[event.id]
            result.tokens += event.token_ids
            if event.channel == "content":
                result.text += event.text
            else:
                result.thought += event.text
        elif isinstance(event, Finished):
            self.results[event.id].end = event
        elif isinstance(event, Failed):
            raise AssertionError(f"request {event.id} failed: {event.code}: {event.message}")


@dataclass(frozen=True, slots=True)
class Subject:
    """An artifact under test, and prompts for it."""

    path: Path
    model: ServedModel

    @contextmanager
    def engine(self, draft: DraftSettings | None, **sizes: Any) -> Iterator[Engine]:
        """An engine with these drafts; closed afterwards."""
        engine = Engine(self.path, draft, **sizes)
        try:
            yield engine
        finally:
            engine.worker._program.close()

    def request(
        self, messages: Sequence[Message], *, thinking: bool = False, tokens: int = 400, **fields: Any
    ) -> GenerationRequest:
        """A greedy request, unless its sampling says otherwise."""
        sampling = fields.pop("sampling", SamplingOverrides(temperature=0.0, presence_penalty=0.0))
        options = TemplateOptions(enable_thinking=thinking)
        conversation = Conversation(tuple(messages), (), options)
        prompt = self.model.preparer.prepare(conversation)
        chosen = GenerationFields(sampling=sampling, seed=1, max_tokens=tokens, **fields)
        request = resolve(self.model, GenerationDefaults(tokens), "request", prompt, chosen)
        assert self.model.encode_sources is not None
        room = self.model.max_context - prompt.token_count
        return with_copy_sources(request, copy_sources(conversation, self.model.encode_sources, room))

    def copy(self, source: str, prefill: str = "", **fields: Any) -> GenerationRequest:
        """A request to repeat ``source``, whose answer begins with ``prefill``."""
        messages = [said("user", f"Copy this code exactly\n\n{source}")]
        if prefill:
            messages.append(said("assistant", prefill))
        return self.request(messages, **fields)

    def sources(
        self, engine: Engine, count: int = _SOURCES, begun: Callable[[str], str] = lambda source: ""
    ) -> list[str]:
        """Texts that the model repeats exactly by itself, without drafts, also from ``begun`` of them on."""
        rng, found = random.Random("ngram programs"), list[str]()
        for _ in range(_TRIED):
            document = exam_document(rng, "copy-code")
            source = document.exchanges[-1].answer
            if not 400 < len(source) < 900:
                continue
            if all(self._repeats(engine, source, prefill) for prefill in {"", begun(source)}):
                found.append(source)
            if len(found) == count:
                return found
        raise AssertionError(f"the model repeats only {len(found)} of {_TRIED} texts exactly")

    def _repeats(self, engine: Engine, source: str, prefill: str) -> bool:
        (result,) = engine.run(self.copy(source, prefill))
        return prefill + result.text == source


def said(role: Any, text: str) -> Message:
    """One message of text."""
    return Message(role, (TextPart(text),))


def subject(context: int = 2048) -> Subject | None:
    """The artifact that the variable names, or the bundled one; None where it is set to nothing: skip."""
    named = os.environ.get(WEIGHTS)
    if named == "":
        return None
    path = bundled.path() if named is None else Path(named)
    return Subject(path, open_served_model(path, ModelChoices(max_context=context, copies=True)))


def drafts(backend: str, neural: int, copies: int, **members: Any) -> DraftSettings:
    """The speculation that a program's arguments ask for. Errors: ``UsageError``."""
    if backend != "mtp":
        raise UsageError(f"backend {backend} does not work yet; only mtp does")
    return DraftSettings(backend, neural, copy_tokens=copies, **members)


def kv_format(asked: str) -> str:
    """The KV format, or bf16 with a line where this device has no such format."""
    if asked in FORMATS:
        return asked
    print(f"kv {asked} is not available on this device: bf16 instead")
    return "bf16"


def number(text: str, name: str, least: int, most: int) -> int:
    """One argument. Errors: ``UsageError``."""
    if not text.isdigit() or not least <= int(text) <= most:
        raise UsageError(f"{name} must be in {least}..{most}, not {text!r}")
    return int(text)


def finish(usage: str, program: Callable[[list[str]], int], argv: Sequence[str] | None = None) -> int:
    """Run a program on its arguments; its exit status."""
    try:
        return program(list(sys.argv[1:] if argv is None else argv))
    except UsageError as error:
        print(f"usage: {usage}\n{error}", file=sys.stderr)
        return USAGE


def switches(argv: list[str], known: Mapping[str, str]) -> tuple[list[str], set[str]]:
    """Arguments without switches, and the switches given. Errors: ``UsageError``."""
    given = {word for word in argv if word.startswith("--")}
    if given - set(known):
        raise UsageError(f"unknown {', '.join(sorted(given - set(known)))}")
    return [word for word in argv if not word.startswith("--")], given
