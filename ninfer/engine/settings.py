"""What an engine process is started with; the whole of its configuration, serialisable.

Owns the value only: option parsing stands in ``cli``, loading in each engine.
"""

from __future__ import annotations

import msgspec


class EngineSettings(msgspec.Struct, frozen=True):
    """``engine`` is ``fast``, ``reference`` or ``scripted`` (tests: ``script`` is its file).

    ``max_context`` bounds prompt plus output tokens of every request. ``float64`` switches the reference
    engine's arithmetic. ``chat_template`` is not here: prompts arrive prepared. ``report_scheduling`` asks
    for ``SchedulingTransition`` events.
    The rest is the fast engine's: requests at once (``lanes``), tokens in the KV pool (``kv_capacity``, None:
    sized from free memory), ``kv_format``, prompt tokens per unit, threads (None: all of this process's
    cores), the type of activations in prefill's products, and the longest a request may wait for a lane.
    """

    engine: str
    artifact: str
    max_context: int
    float64: bool = False
    script: str | None = None
    report_scheduling: bool = False
    lanes: int = 1
    kv_capacity: int | None = None
    kv_format: str = "bf16"
    prefill_chunk: int = 1024
    threads: int | None = None
    activations: str = "float32"
    queue_limit_s: float | None = None
