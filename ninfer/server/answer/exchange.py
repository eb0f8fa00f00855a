"""One request's way through the server, for every protocol: slot, body, preparation, generation, pieces.

Owns the order of these steps and what is held meanwhile. An adapter gives ``read``, which makes its own
request of a body's members; everything an engine needs of it is its ``ask``.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from sanic.request import Request

from ninfer.engine.requests import GenerationRequest
from ninfer.errors import RequestError
from ninfer.output.tools import ToolParser as QwenTools
from ninfer.prompt.conversation import Conversation, Tool
from ninfer.prompt.copy_sources import copy_sources
from ninfer.prompt.prepared import PreparedPrompt
from ninfer.server.answer.parsing import NoTools, ToolParser
from ninfer.server.answer.pieces import Ended, Piece
from ninfer.server.answer.reader import AnswerReader
from ninfer.server.envelopes import Envelope, request_id, sent
from ninfer.server.event_stream import EventStream
from ninfer.server.generation import Services
from ninfer.server.json_body import parse_object
from ninfer.server.observe.observer import RequestObservation
from ninfer.server.observe.records import Preparation, PreparedRequest, RequestShape, SentError
from ninfer.server.observe.shape import shape_of
from ninfer.server.outstanding import Outstanding
from ninfer.server.resolution import GenerationFields, resolve, with_copy_sources
from ninfer.server.transport import read_body


@dataclass(frozen=True, slots=True)
class Ask:
    """What a request of any protocol asks of the model.

    ``callable_tools`` are those whose calls are read out of the answer; empty: markup is text.
    ``tool_choice`` is the kind of choice that the body makes and ``semantic_change`` a Responses child's new
    ``preserve_thinking``, ``inherits_preservation`` that it named none: for the request log only.
    """

    conversation: Conversation
    fields: GenerationFields
    callable_tools: tuple[Tool, ...] = ()
    tool_choice: str | None = None
    semantic_change: bool = False
    inherits_preservation: bool = False


class Asking(Protocol):
    """An adapter's own request; ``model`` is the name that the client gave."""

    @property
    def model(self) -> str: ...

    @property
    def stream(self) -> bool: ...

    @property
    def ask(self) -> Ask: ...


R = TypeVar("R", bound=Asking)
T = TypeVar("T")
Reader = Callable[[Mapping[str, Any]], R]


@dataclass(frozen=True, slots=True)
class Prepared(Generic[R]):
    """A request ready for the engine, under the id that its answer carries."""

    id: str
    request: R
    prompt: PreparedPrompt
    generation: GenerationRequest
    context_bound: bool


class Exchange(Generic[R]):
    """A running generation: the request as read, and the pieces of its answer as they come."""

    def __init__(
        self,
        services: Services,
        prepared: Prepared[R],
        events: EventStream,
        observation: RequestObservation,
    ) -> None:
        self.services = services
        self.prepared = prepared
        self.observation = observation
        self._events = events
        self._reader = AnswerReader(
            tool_parser(prepared.request.ask, services.tolerant_tool_calls),
            context_bound=prepared.context_bound,
        )

    @property
    def request(self) -> R:
        return self.prepared.request

    async def take(self, timeout_s: float | None = None) -> list[Piece]:
        """The pieces that are there, at least one event's; empty after ``timeout_s`` without one.

        Errors: ``RequestError`` or ``EngineError`` when the generation fails.
        """
        pieces = [piece for event in await self._events.take(timeout_s) for piece in self._reader.feed(event)]
        if pieces and isinstance(pieces[-1], Ended):
            self.observation.settled(pieces[-1].tool_parse)
        return pieces

    @property
    def ended(self) -> bool:
        """Whether the last piece was taken."""
        return self._events.exhausted


def tool_parser(ask: Ask, tolerant: bool) -> ToolParser:
    """The reader of tool markup for one request."""
    return QwenTools(ask.callable_tools, tolerant) if ask.callable_tools else NoTools()


@asynccontextmanager
async def exchanging(
    request: Request,
    read: Reader[R],
    new_id: Callable[[], str],
    own: Callable[[RequestError], RequestError] = lambda error: error,
) -> AsyncIterator[Exchange[R]]:
    """Take a request's body to a running generation; its slot is taken until the block ends.

    ``read`` and preparation run in a worker thread. ``own`` is how the protocol words an error of shared
    steps. Errors: ``RequestError``, ``EngineError``.
    """
    services: Services = request.app.ctx.services
    envelope: Envelope = request.app.ctx.envelopes.of(request.path)
    name = request_id(request)

    def as_sent(error: Exception) -> SentError:
        return sent(envelope, name, own(error) if isinstance(error, RequestError) else error)

    gone = threading.Event()
    with services.operations.observer.watching(name, request.path, as_sent) as observation:
        work = functools.partial(prepare, services, read, new_id, observation, cancelled=gone.is_set)
        try:
            async with (
                preparing(request, services.outstanding, work) as prepared,
                services.generating(prepared.generation, observation) as events,
            ):
                yield Exchange(services, prepared, events, observation)
        finally:
            gone.set()  # whoever still prepares need not go on


@asynccontextmanager
async def preparing(
    request: Request, capacity: Outstanding, work: Callable[[Mapping[str, Any]], T]
) -> AsyncIterator[T]:
    """Read a body and run ``work`` on its members in a worker thread, in a slot of ``capacity``.

    Token counts use it with their own capacity. Errors: ``RequestError`` of body, JSON and ``work``.
    """
    services: Services = request.app.ctx.services
    slot = capacity.take()
    try:
        # Nobody keeps the bytes: they would be held as long as the answer takes.
        body = [await read_body(request, services.max_request_bytes, services.limits)]
        yield await services.in_thread(slot, lambda: work(parse_object(body.pop())))
    finally:
        slot.release()


def prepare(
    services: Services,
    read: Reader[R],
    new_id: Callable[[], str],
    observation: RequestObservation,
    members: Mapping[str, Any],
    cancelled: Callable[[], bool] = lambda: False,
) -> Prepared[R]:
    """Everything between a body's members and the engine. Errors: ``RequestError``."""
    asked = read(members)
    observation.preparing(_shape(observation.path, asked))
    with observation.refusals():
        prepared = _prepare(services, asked, new_id, cancelled)
    observation.prepared(_record(observation, prepared))
    return prepared


def _shape(path: str, asked: Asking) -> RequestShape:
    ask = asked.ask
    shape = shape_of(path, asked.model, asked.stream, ask.conversation, ask.fields)
    if ask.inherits_preservation:
        shape = replace(shape, preserve_thinking=None)
    return replace(shape, tool_choice=ask.tool_choice, semantic_change=ask.semantic_change)


def _record(observation: RequestObservation, prepared: Prepared[R]) -> PreparedRequest:
    generation, budget = prepared.generation, prepared.generation.thinking_budget
    return PreparedRequest(
        number=observation.number,
        http_id=observation.http_id,
        answer_id=prepared.id,
        shape=observation.shape,
        prompt_tokens=prepared.prompt.token_count,
        max_tokens=generation.max_tokens,
        context_bound=prepared.context_bound,
        sampling=generation.sampling,
        thinking=generation.initial_channel == "reasoning",
        thinking_budget=None if budget is None else budget.tokens,
        preparation=Preparation(total_s=observation.elapsed_s),
    )


def _prepare(
    services: Services, asked: R, new_id: Callable[[], str], cancelled: Callable[[], bool]
) -> Prepared[R]:
    prompt = services.model.preparer.prepare(asked.ask.conversation)
    answer_id = new_id()
    fields = asked.ask.fields
    generation = resolve(services.model, services.defaults, answer_id, prompt, fields)
    if services.model.encode_sources is not None:
        room = services.model.max_context - prompt.token_count
        sources = copy_sources(asked.ask.conversation, services.model.encode_sources, room, cancelled)
        generation = with_copy_sources(generation, sources)
    wanted = services.defaults.max_tokens if fields.max_tokens is None else fields.max_tokens
    return Prepared(answer_id, asked, prompt, generation, context_bound=generation.max_tokens < wanted)


async def collected(exchange: Exchange[R]) -> list[Piece]:
    """Every piece of the answer. Errors: as ``Exchange.take``."""
    pieces: list[Piece] = []
    while not exchange.ended:
        pieces += await exchange.take()
    return pieces
