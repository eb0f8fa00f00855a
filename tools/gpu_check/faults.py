"""Planted faults: each must make the campaign's comparison worse than the sound program shows.

    python -m tools.gpu_check.faults

A fault counts as caught when the median or the 99th percentile of the logits' error grows by half, the stored
keys move twice as far from the reference's, a token is not what the sampling rules draw from the engine's own
logits, or the tokens that differ from the reference's grow by a quarter and three; all on the same prompts
and rounds. Exits non-zero when one is missed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tools.gpu_check.campaign import SAMPLERS, Case, Outcome

Plant = Callable[[Case], None]
ROUNDS, LANES = 60, 5


def on_send(change: Callable[[Any], None]) -> Plant:
    """Change the control arrays before each is carried over."""

    def plant(case: Case) -> None:
        control = case.program._control
        send = control.send

        def wrong() -> None:
            change(control)
            send()

        control.send = wrong

    return plant


def after_round(change: Callable[[Case], None]) -> Plant:
    """Change device memory after each round."""

    def plant(case: Case) -> None:
        real = case.program.round

        def wrong(rows: Any) -> list[int]:
            drawn = real(rows)
            change(case)
            return drawn

        case.program.round = wrong  # type: ignore[method-assign]

    return plant


def _add(name: str, columns: slice | int, amount: int) -> Plant:
    def change(control: Any) -> None:
        getattr(control, name)[:, columns] += amount

    return on_send(change)


def _set(name: str, column: int, value: int) -> Plant:
    def change(control: Any) -> None:
        getattr(control, name)[:, column] = value

    return on_send(change)


def _swap(name: str, column: int) -> Plant:
    def change(control: Any) -> None:
        rows = getattr(control, name)
        rows[[0, 1], column] = rows[[1, 0], column]

    return on_send(change)


def _wrong_page(case: Case) -> None:
    control = case.program._control
    real = control.set_table

    def wrong(index: int, table: np.ndarray, pages: int, held: int) -> None:
        table = table.copy()
        if pages > 2:
            table[1] = table[0]  # the keys of another place
        real(index, table, pages, held)

    control.set_table = wrong


def _stale_ring(case: Case) -> None:
    images, at = case.program.states.images, case.program.states.window_at[0]
    width = case.config.gdn.channels if case.config.gdn is not None else 0
    images[:, at : at + width].zero_()


def _neighbour_scales(case: Case) -> None:
    assert case.program.pages is not None
    for pool in case.program.pages.layers.values():
        pool.key_scales.copy_(pool.key_scales.roll(1, 2))


def _wrong_weight_scale(case: Case) -> None:
    matrix = next(layer.gdn for layer in case.program._model.layers if layer.gdn is not None).inputs.parts[0][
        0
    ]
    matrix.scales.copy_(matrix.scales.roll(1, 2))


def _no_final_norm(case: Case) -> None:
    case.program._model.final_norm.fill_(1.0)


def _lost_key(case: Case) -> None:
    assert case.program.pages is not None
    for pool in case.program.pages.layers.values():
        pool.keys[:, :, 5].zero_()


FAULTS: dict[str, tuple[Plant, str, str]] = {
    "rotary position off by one": (_add("host_rows", slice(2, 5), 1), "bf16", "bf16"),
    "wrong page": (_wrong_page, "bf16", "bf16"),
    "two state slots swapped": (_swap("host_blocks", 2), "bf16", "bf16"),
    "two tokens swapped": (_swap("host_rows", 0), "bf16", "bf16"),
    "stale convolution column": (after_round(_stale_ring), "bf16", "bf16"),
    "penalty dropped": (_set("host_words", 2, -1), "bf16", "bf16"),
    "token not counted": (_set("host_words", 3, -1), "bf16", "bf16"),
    "seed ignored": (_set("host_words", 0, 0), "bf16", "bf16"),
    "draw keyed one place late": (_add("host_words", 1, 1), "bf16", "bf16"),
    "state not committed": (_set("host_blocks", 3, 0), "bf16", "bf16"),
    "a neighbour's key scale": (after_round(_neighbour_scales), "bf16", "int8"),
    "a neighbour's weight scale": (_wrong_weight_scale, "q4", "bf16"),
    "final norm without weight": (_no_final_norm, "bf16", "bf16"),
    "a key lost": (after_round(_lost_key), "bf16", "bf16"),
    "temperature ignored": (_set("host_numbers", 0, 0), "bf16", "bf16"),
}


def outcome(weights: str, kv_format: str, plant: Plant | None) -> Outcome:
    """The judged case, with the fault or without."""
    case = Case("heads", weights, kv_format, LANES, ROUNDS)
    rng = np.random.default_rng(7)
    if plant is not None:
        plant(case)
    sequences = [case.start(rng, SAMPLERS[i % len(SAMPLERS)], longest=260) for i in range(LANES)]
    for _ in range(ROUNDS):
        case.round(sequences)
    return case.judge(sequences)


def caught(sound: Outcome, faulty: Outcome) -> bool:
    """Whether the comparison shows the fault."""
    errors = faulty.median > 1.5 * sound.median or faulty.p99 > 1.5 * sound.p99
    keys = faulty.stored > 2 * sound.stored
    return errors or keys or faulty.own_differ > 0 or faulty.differ > 1.25 * sound.differ + 3


def main() -> None:
    """Plant every fault."""
    sound: dict[tuple[str, str], Outcome] = {}
    missed = []
    for name, (plant, weights, kv_format) in FAULTS.items():
        key = (weights, kv_format)
        if key not in sound:
            sound[key] = outcome(*key, None)
            again = outcome(*key, None)
            assert not caught(sound[key], again), "the sound program differs from itself"
            print(f"sound {replace(sound[key], name='').line()}", flush=True)
        try:
            found = outcome(weights, kv_format, plant)
            seen = caught(sound[key], found)
            print(f"{'caught' if seen else 'MISSED'} {name}: err={found.median:.2e}/{found.p99:.2e} "
                  f"tokens={found.differ} own={found.own_differ}", flush=True)  # fmt: skip
        except AssertionError as error:
            seen = True
            print(f"caught {name}: {error}", flush=True)
        if not seen:
            missed.append(name)
    print(f"faults={len(FAULTS)} missed={len(missed)}")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
