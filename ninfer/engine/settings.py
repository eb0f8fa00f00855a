"""What an engine process is started with; the whole of its configuration, serialisable.

Owns the value only: option parsing stands in ``cli``, loading in each engine.
"""

from __future__ import annotations

import msgspec


class EngineSettings(msgspec.Struct, frozen=True):
    """``engine`` is ``reference`` (later also ``fast``) or ``scripted`` (tests: ``script`` is its file).

    ``max_context`` bounds prompt plus output tokens of every request. ``float64`` switches the reference
    engine's arithmetic. ``chat_template`` is not here: prompts arrive prepared.
    """

    engine: str
    artifact: str
    max_context: int
    float64: bool = False
    script: str | None = None
