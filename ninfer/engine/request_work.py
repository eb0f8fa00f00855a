"""What one request saw of the worker, and its pauses: the engine's half of the request log.

Owns the records only; ``account.py`` makes them.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ninfer.engine.statistics import HostSeconds, Transfers


class UnitSeconds(msgspec.Struct, frozen=True):
    """Work submitted for one request: host time before, the wait for it, host time after, device time."""

    submit_s: float = 0.0
    wait_s: float = 0.0
    post_s: float = 0.0
    gpu_s: float = 0.0


class FirstOutput(msgspec.Struct, frozen=True):
    """Frozen just before the first delta that is not empty; ``elapsed_s`` runs from submission.

    It splits into ``queue_s``, ``binding_s``, ``paused_s`` and the resident rest, whose exposure to the
    worker is ``host`` and ``device_wait_s``. ``prefill`` and ``replay`` are this request's own units.
    """

    elapsed_s: float
    queue_s: float
    binding_s: float
    paused_s: float
    host: HostSeconds
    device_wait_s: float
    prefill: UnitSeconds
    replay: UnitSeconds
    computed_prefill_tokens: int
    transfers: Transfers = Transfers()


AdmissionFallback = Literal[
    "none", "source_invalid", "source_revoked", "cost_changed", "capacity_limit", "isolated_capacity"
]


class RequestWork(msgspec.Struct, frozen=True):
    """What one request saw of the worker while it was resident. Not to be summed over requests.

    ``decode_s`` is the wall time of its decode rounds, ``decode_share_s`` the same with each round's time
    split over its rows.
    """

    engine_request_id: int = 0
    queue_s: float = 0.0
    computed_prefill_tokens: int = 0
    host: HostSeconds = HostSeconds()
    device_wait_s: float = 0.0
    draft_wait_s: float = 0.0
    decode_host_s: float = 0.0
    decode_device_wait_s: float = 0.0
    decode_rounds: int = 0
    decode_s: float = 0.0
    decode_share_s: float = 0.0
    prefill_units: int = 0
    control_units: int = 0
    preemptions: int = 0
    snapshot_restores: int = 0
    replay_restores: int = 0
    replayed_tokens: int = 0
    paused_ns: int = 0
    device_to_host_bytes: int = 0
    host_to_device_bytes: int = 0
    preferred_reused_tokens: int = 0
    source_wait_s: float = 0.0
    revoked_checkpoints: int = 0
    admission_fallback: AdmissionFallback = "none"
    first_output: FirstOutput | None = None


TransitionKind = Literal[
    "pause_started",
    "paused",
    "restore_started",
    "restored",
    "replay_complete",
    "recovery_complete",
    "snapshot_revoked",
    "terminal",
]


class TokenProgress(msgspec.Struct, frozen=True):
    """Tokens done so far: prefill, decode and control, replay."""

    prefill_tokens: int = 0
    decode_tokens: int = 0
    replayed_tokens: int = 0


class SchedulingTransition(msgspec.Struct, frozen=True, tag="scheduling"):
    """A request's pause, restore or recovery; published only where ``report_scheduling`` asks for it.

    ``steady_ns`` is the worker's clock, ``elapsed_ns`` runs from submission. ``route`` is None until the
    saved form is chosen. ``engine`` and ``request`` count the whole engine's work and this request's.
    """

    id: str
    transition: TransitionKind
    route: Literal["snapshot", "replay"] | None
    preemption_index: int
    steady_ns: int
    elapsed_ns: int
    engine: TokenProgress
    request: TokenProgress
    engine_request_id: int = 0
