"""What an engine process is started with; the whole of its configuration, serialisable.

Owns the value only: option parsing stands in ``cli``, loading in each engine.
"""

from __future__ import annotations

import msgspec


class DraftSettings(msgspec.Struct, frozen=True):
    """Speculative decoding: the drafter and what stands beside it.

    ``backend`` is ``mtp``; ``tokens`` its most drafts in a round. ``proposal_head`` drafts with the
    artifact's indexed head, ``adaptive`` chooses widths by measurement. ``lookup`` is the length of the
    suffix that looks itself up (0: off); ``copy_tokens`` the most copied drafts of a round (0: off) and
    ``copy_match`` the least match that licenses a copy.
    """

    backend: str
    tokens: int
    proposal_head: bool = False
    adaptive: bool = False
    lookup: int = 0
    copy_tokens: int = 0
    copy_match: int = 12

    @property
    def most_drafts(self) -> int:
        """The most drafts of a row in a round, of any kind."""
        return max(self.tokens, self.copy_tokens)


class CacheSettings(msgspec.Struct, frozen=True):
    """The prefix cache as asked for; None follows from the rest. ``reuse`` False: it is off.

    ``snapshot_slots`` state images beyond the lanes', at most ``taps_per_request`` new ones of a prompt,
    ``tap_ladder`` the base of the ladder and ``tap_min_gap`` its least step, in tokens.
    """

    reuse: bool = True
    snapshot_slots: int | None = None
    taps_per_request: int | None = None
    tap_ladder: int | None = None
    tap_min_gap: int | None = None


class EngineSettings(msgspec.Struct, frozen=True):
    """``engine`` is ``fast``, ``reference`` or ``scripted`` (tests: ``script`` is its file).

    ``max_context`` bounds prompt plus output tokens of every request. ``float64`` switches the reference
    engine's arithmetic. ``chat_template`` is not here: prompts arrive prepared. ``report_scheduling`` asks
    for ``SchedulingTransition`` events.
    The rest is the fast engine's: requests at once (``lanes``), tokens in the KV pool (``kv_capacity``, None:
    sized from free memory), ``kv_format``, prompt tokens per unit, threads (None: all of this process's
    cores), the type of activations in prefill's products, and the longest a request may wait for a lane.
    ``device`` is the CUDA device it runs on where there is one; ``vram_headroom_mib`` stays free there when
    the KV pool is sized, ``cuda_graph`` False launches kernels one by one, and ``deterministic`` keeps a
    row's result apart from its batch where that costs something.
    ``draft`` asks for speculation, of either engine; ``cache`` says what is kept of earlier prompts (None:
    nothing).
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
    device: int = 0
    vram_headroom_mib: int = 1024
    cuda_graph: bool = True
    deterministic: bool = False
    queue_limit_s: float | None = None
    draft: DraftSettings | None = None
    cache: CacheSettings | None = None
