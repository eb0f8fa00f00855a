"""How a prepared prompt and the fields of a request become what an engine is asked.

Owns the merge with the process's own values and the context bound. The HTTP protocols and ``ninfer`` share
it; it imports no web framework.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import msgspec

from ninfer.engine.requests import CacheHints, GenerationRequest, ThinkingBudget
from ninfer.errors import RequestError
from ninfer.model.presets import preset
from ninfer.prompt.frontiers import Frontiers
from ninfer.prompt.prepared import PreparedPrompt
from ninfer.prompt.tokenizer import TokenArray
from ninfer.sampling.parameters import SamplingOverrides
from ninfer.sampling.resolve import random_seed, resolve_sampling
from ninfer.server.served_model import ServedModel


@dataclass(frozen=True, slots=True)
class GenerationFields:
    """What a request says about its generation; None leaves the server's own value.

    ``thinking_budget`` caps thinking tokens.
    """

    sampling: SamplingOverrides = field(default_factory=SamplingOverrides)
    seed: int | None = None
    max_tokens: int | None = None
    stops: tuple[str, ...] = ()
    thinking_budget: int | None = None
    ignore_stop_tokens: bool = False


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """What the process says where a request does not (``--temperature`` … ``--seed``, ``--greedy``).

    ``thinking_budget`` is the most tokens of thinking, None without a limit.
    """

    max_tokens: int
    sampling: SamplingOverrides = field(default_factory=SamplingOverrides)
    seed: int | None = None
    greedy: bool = False
    thinking_budget: int | None = None


def generation_defaults(
    options: Mapping[str, Any], max_tokens: int, thinking_budget: int | None = None
) -> GenerationDefaults:
    """The sampling options of ``ninfer-serve`` and ``ninfer``, and the limits of output and thinking."""
    sampling = SamplingOverrides(**{entry.name: options[entry.name] for entry in fields(SamplingOverrides)})
    return GenerationDefaults(max_tokens, sampling, options["seed"], options["greedy"], thinking_budget)


def resolve(
    model: ServedModel,
    defaults: GenerationDefaults,
    request_id: str,
    prompt: PreparedPrompt,
    request: GenerationFields,
    fresh_seed: Callable[[], int] = random_seed,
) -> GenerationRequest:
    """The complete request for an engine.

    Errors: ``RequestError`` ``context_length_exceeded`` when the prompt alone exceeds the context,
    ``thinking_budget_capacity_insufficient`` when the output ends between the budget and its close.
    """
    room = model.max_context - prompt.token_count
    if room < 0:
        raise RequestError(
            "context_length_exceeded",
            # Clients of every protocol know an overflow by these words.
            f"prompt is too long: {prompt.token_count} tokens > {model.max_context} maximum",
            "messages",
        )
    wanted = defaults.max_tokens if request.max_tokens is None else request.max_tokens
    max_tokens = min(wanted, room)
    return GenerationRequest(
        id=request_id,
        tokens=prompt.tokens.astype("<i4", copy=False).tobytes(),
        positions=b"",
        initial_channel=prompt.initial_channel,
        sampling=resolve_sampling(
            preset(model.config, prompt.thinking),
            defaults.sampling,
            request.sampling,
            defaults.greedy,
            defaults.seed if request.seed is None else request.seed,
            fresh_seed,
        ),
        max_tokens=max_tokens,
        stop_token_ids=model.stop_token_ids,
        stops=request.stops,
        ignore_stop_tokens=request.ignore_stop_tokens,
        cache=_cache_hints(prompt.frontiers),
        thinking_budget=_budget(model, defaults, prompt, request, max_tokens),
    )


def _cache_hints(frontiers: Frontiers) -> CacheHints:
    return CacheHints(
        explicit=frontiers.explicit,
        automatic=frontiers.automatic,
        opener=frontiers.opener,
        leading=frontiers.leading,
        messages=frontiers.messages,
    )


def with_copy_sources(request: GenerationRequest, sources: Sequence[TokenArray]) -> GenerationRequest:
    """The same request with texts that its answer may be copied from."""
    packed = tuple(tokens.astype("<i4", copy=False).tobytes() for tokens in sources)
    return msgspec.structs.replace(request, copy_sources=packed)


def _budget(
    model: ServedModel,
    defaults: GenerationDefaults,
    prompt: PreparedPrompt,
    request: GenerationFields,
    max_tokens: int,
) -> ThinkingBudget | None:
    """The budget of a request that begins in thinking; None also where the output ends before it."""
    tokens = defaults.thinking_budget if request.thinking_budget is None else request.thinking_budget
    if tokens is None or prompt.initial_channel != "reasoning" or max_tokens <= tokens:
        return None
    needed = tokens + len(model.early_close) + 1
    if max_tokens < needed:
        raise RequestError(
            "thinking_budget_capacity_insufficient",
            f"The output may have {max_tokens} tokens, but a thinking budget of {tokens} needs {needed} to "
            f"close thinking and go on, or at most {tokens}.",
            "max_tokens",
        )
    return ThinkingBudget(tokens, model.early_close)
