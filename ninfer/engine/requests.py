"""What an engine is asked: one generation request, complete and serialisable.

Owns the frames that cross the process border towards the engine. Everything is resolved before it gets
here: presets, process overrides and request fields are merged, the seed is drawn.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ninfer.sampling.parameters import SamplingParameters

__all__ = [
    "CacheHints",
    "CancelRequest",
    "Command",
    "GenerationRequest",
    "SamplingParameters",
    "Shutdown",
    "ThinkingBudget",
]


class ThinkingBudget(msgspec.Struct, frozen=True):
    """The most tokens a model may think: where thinking is still open then, ``closing`` follows unsampled.

    ``closing`` ids end the thinking; they are committed whole or not at all.
    """

    tokens: int
    closing: tuple[int, ...]


class CacheHints(msgspec.Struct, frozen=True):
    """Places of a prompt that others may share, in tokens from its start; they change no token.

    ``explicit`` and ``automatic`` are the client's; ``opener`` is where the assistant's turn begins,
    ``tools`` and ``leading`` where the tool list and the leading instructions end, ``messages`` every
    message border.
    """

    explicit: tuple[int, ...] = ()
    automatic: int | None = None
    opener: int | None = None
    tools: int | None = None
    leading: int | None = None
    messages: tuple[int, ...] = ()


class GenerationRequest(msgspec.Struct, frozen=True, tag="generate"):
    """One request.

    ``tokens`` is the prompt as little-endian int32 bytes, ``positions`` the [3, T] axes likewise (empty:
    text-only, every axis 0..T-1). ``max_tokens`` counts every committed output token. ``stop_token_ids``
    end the answer and are not published. ``stops`` apply to both channels. ``ignore_stop_tokens``
    keeps generating past the stop ids (benchmarks and tests). ``copy_sources`` are token sequences beside the
    prompt, int32 bytes each, from which drafts may be copied; they change no token of the answer.
    ``cache`` says where others may share the prompt. ``waited_s`` is how long the request was prepared before
    it was submitted: a limit on waiting counts it.
    """

    id: str
    tokens: bytes
    positions: bytes
    initial_channel: Literal["reasoning", "content"]
    sampling: SamplingParameters
    max_tokens: int
    stop_token_ids: tuple[int, ...]
    stops: tuple[str, ...] = ()
    ignore_stop_tokens: bool = False
    copy_sources: tuple[bytes, ...] = ()
    thinking_budget: ThinkingBudget | None = None
    cache: CacheHints = CacheHints()
    waited_s: float = 0.0


class CancelRequest(msgspec.Struct, frozen=True, tag="cancel"):
    """Stop a queued or running request; it ends with ``Finished(reason="cancelled")``."""

    id: str


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """End every request with ``service_unavailable`` and leave the engine process."""


Command = GenerationRequest | CancelRequest | Shutdown
