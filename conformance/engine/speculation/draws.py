"""Groups of a speculation campaign, drawn from one seeded generator: requests, engines and drafters.

Owns values only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.engine.draws import Random, draw_sampling
from conformance.engine.speculation.drive import Asked, Got, token_bytes
from ninfer.engine.requests import GenerationRequest
from ninfer.engine.settings import DraftSettings
from tests.support.nano import VOCABULARY

CONTEXT = 512


@dataclass(frozen=True, slots=True)
class DrafterDraw:
    """Who drafts: the model's head, or one that is wrong as often as ``wrong`` says (None: the head)."""

    settings: DraftSettings
    wrong: float | None
    sources: bool


def draw_drafter(random: Random, lanes: int) -> DrafterDraw:
    """Any widths that a start would allow; sources make copies of the answers likely."""
    copies = int(_one(random, (0, 15, 15, 31, 63) if lanes == 1 else (0, 7, 15, 15)))
    return DrafterDraw(
        settings=DraftSettings(
            backend="mtp",
            tokens=int(_one(random, (1, 2, 3, 5, 15))),
            adaptive=bool(random.random() < 0.25),
            lookup=int(_one(random, (0, 0, 1, 3))),
            copy_tokens=copies,
            copy_match=int(_one(random, (4, 8, 12))),
        ),
        wrong=_one(random, (None, None, 0.0, 0.1, 0.5, 1.0)),
        sources=bool(random.random() < 0.6),
    )


def draw_requests(random: Random, count: int, prefix: str = "") -> list[Asked]:
    """``count`` requests around page borders and tails; some are cancelled."""
    asked = []
    for index in range(count):
        length = int(random.integers(1, 150))
        if random.random() < 0.2:
            length = 64 * int(random.integers(1, 4)) + int(random.integers(-2, 3))
        most = int(_one(random, (1, 2, 5, 17, 33, 64, 80)))
        if random.random() < 0.1:  # up to the very end of the context
            length, most = CONTEXT - int(random.integers(1, 70)), CONTEXT
        prompt = random.integers(4, VOCABULARY, length).astype("<i4")
        if random.random() < 0.3:  # a prompt that repeats itself
            prompt = np.tile(prompt[: max(1, length // 3)], 4)[:length]
        request = GenerationRequest(
            id=f"{prefix}{index}",
            tokens=prompt.tobytes(),
            positions=b"",
            initial_channel=_one(random, ("content", "reasoning")),
            sampling=draw_sampling(random),
            max_tokens=most,
            stop_token_ids=(),
        )
        cancel = int(random.integers(1, most + 1)) if random.random() < 0.08 else None
        asked.append(Asked(request, int(random.integers(0, 4 * count)), cancel))
    return asked


def with_stops_and_sources(
    random: Random, asked: Sequence[Asked], got: dict[str, Got], sources: bool
) -> list[Asked]:
    """The same requests with stops that will be met, and with sources that hold their answers.

    A source is the answer between other tokens, one token of it changed now and then.
    """
    result = []
    for one in asked:
        tokens, members = got[one.request.id].tokens, dict[str, Any]()
        if len(tokens) > 4 and random.random() < 0.3:
            at = int(random.integers(1, len(tokens) - 2))
            if random.random() < 0.5:
                members["stop_token_ids"] = (tokens[at], 5)
            else:
                members["stops"] = (b"".join(map(token_bytes, tokens[at : at + 3])).decode(), "\x00")
        if sources and tokens:
            source = np.array(tokens, "<i4")
            if random.random() < 0.5:
                source[random.integers(len(source))] = random.integers(VOCABULARY)
            noise = random.integers(4, VOCABULARY, 9).astype("<i4")
            members["copy_sources"] = (np.concatenate([noise, source, noise]).tobytes(),)
        result.append(Asked(_replaced(one.request, members), one.arrives, one.cancel_after))
    return result


def _replaced(request: GenerationRequest, members: dict[str, Any]) -> GenerationRequest:
    values = {name: getattr(request, name) for name in request.__struct_fields__}
    return GenerationRequest(**(values | members))


def _one(random: Random, values: Sequence[Any]) -> Any:
    return values[int(random.integers(len(values)))]
