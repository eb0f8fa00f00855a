"""One generation request as sinks see it, from its preparation to its end.

Owns frozen values only. Seconds are unrounded; moments are Unix seconds. Counts only, never text, but for the
ids of committed tokens, which the request log keeps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ninfer.engine.events import FinishReason, Usage
from ninfer.engine.request_work import RequestWork
from ninfer.output.tools import ToolParse
from ninfer.sampling.parameters import SamplingParameters

Protocol = Literal["openai_chat", "openai_responses", "anthropic_messages"]
Outcome = Literal["completed", "cancelled", "failed", "rejected"]


@dataclass(frozen=True, slots=True)
class RequestShape:
    """What a request's body asks for, as parsed; None where it is silent.

    ``model`` is the name the client gave. ``tool_choice`` is a kind, never a tool's name.
    ``semantic_change``: a Responses child whose ``preserve_thinking`` differs from its parent's.
    """

    protocol: Protocol
    model: str
    stream: bool = False
    messages: int = 0
    media_items: int = 0
    tools: int = 0
    tool_choice: str | None = None
    tool_history: bool = False
    max_tokens: int | None = None
    reasoning_effort: str | None = None
    preserve_thinking: bool | None = None
    semantic_change: bool = False


@dataclass(frozen=True, slots=True)
class Preparation:
    """What preparing took, in this request alone; media members stay 0 for text."""

    total_s: float
    tokenize_s: float = 0.0
    acquisition_s: float = 0.0
    media_preprocess_s: float = 0.0
    media_preprocess_work_s: float = 0.0
    media_bytes: int = 0
    raw_patches: int = 0
    vision_tokens: int = 0
    patch_bytes: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    singleflight_waits: int = 0
    built_patch_bytes: int = 0
    reused_patch_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request ready for the engine. ``number`` counts within this server.

    ``answer_id`` is the id of its answer, ``http_id`` that of the HTTP exchange. ``max_tokens`` is the budget
    in force; ``context_bound`` says that the context cut it. ``thinking``: the answer opens in thinking.
    """

    number: int
    http_id: str
    answer_id: str
    shape: RequestShape
    prompt_tokens: int
    max_tokens: int
    context_bound: bool
    sampling: SamplingParameters
    thinking: bool
    thinking_budget: int | None
    preparation: Preparation


@dataclass(frozen=True, slots=True)
class SentError:
    """An error as its protocol's client gets it."""

    status: int
    type: str
    code: str
    param: str | None
    message: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """Preparation failed."""

    number: int
    http_id: str
    shape: RequestShape
    error: SentError


@dataclass(frozen=True, slots=True)
class BudgetReport:
    """How a thinking budget was applied."""

    model_thinking_tokens: int = 0
    control_tokens: int = 0
    applied: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """The engine returned an outcome. ``stop`` tells what ended it; ``ttft_s`` runs from reception."""

    request: PreparedRequest
    reason: FinishReason
    stop: Literal["none", "output_limit", "context_capacity", "stop_token", "stop_string", "cancelled"]
    usage: Usage
    work: RequestWork
    token_ids: tuple[int, ...]
    ttft_s: float | None
    total_s: float
    reuse_path: str = "root"
    tool_parse: ToolParse = field(default_factory=ToolParse)
    budget: BudgetReport = field(default_factory=BudgetReport)

    @property
    def outcome(self) -> Outcome:
        return "cancelled" if self.reason == "cancelled" else "completed"


@dataclass(frozen=True, slots=True)
class Errored:
    """A prepared request ended without an outcome; ``code`` is None where it was cancelled before one.

    ``queue_s`` is what it had waited.
    """

    request: PreparedRequest
    code: str | None
    message: str
    total_s: float
    queue_s: float

    @property
    def outcome(self) -> Outcome:
        return "cancelled" if self.code is None else "failed"


Terminal = Done | Errored
