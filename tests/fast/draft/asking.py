"""What tests of drafts ask, and of whom."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.engine.speculation.drive import Asked
from ninfer.engine.requests import GenerationRequest, SamplingParameters
from ninfer.engine.settings import DraftSettings
from tests.support.nano import VOCABULARY

GREEDY = SamplingParameters(0.0, 1.0, 0, 0.0, 0.0, 0.0, 0)


def asked(name: str, seed: int, tokens: int = 60, sources: tuple[bytes, ...] = ()) -> Asked:
    """A request with a prompt of its own."""
    prompt = np.random.default_rng(seed).integers(4, VOCABULARY, 50).astype("<i4")
    return Asked(
        GenerationRequest(
            id=name, tokens=prompt.tobytes(), positions=b"", initial_channel="content", sampling=GREEDY,
            max_tokens=tokens, stop_token_ids=(), copy_sources=sources,
        )
    )  # fmt: skip


def settings(**members: Any) -> DraftSettings:
    """MTP with three drafts beside copies of fifteen."""
    return DraftSettings(**({"backend": "mtp", "tokens": 3, "copy_tokens": 15, "copy_match": 8} | members))
