"""Pinned memory is never filled while a launch may still read it, however late launches run."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ninfer.fast.ops.gpu_control import ROW_WORDS
from ninfer.fast.program.gpu.control import Control, ControlSizes
from ninfer.fast.program.gpu.staging import Ring, Staged
from tests.fast.gpu.late import LateDevice

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
CPU = torch.device("cpu")
# Numbers of records to send, and waits (0) between them.
SENDS = st.lists(st.sampled_from((0, 1, 2, 4, 8)), max_size=14)


@settings(deadline=None, max_examples=60)
@given(SENDS, st.sampled_from((8, 9, 11, 16, 19)))
@example([8, 8], 8)
@example([8, 0, 2, 4, 4, 1], 11)  # what is left out at the end is not free for the next record
def test_each_launch_reads_its_own_records_of_a_ring(sends: list[int], length: int) -> None:
    device, rows = LateDevice(), torch.zeros(8, ROW_WORDS, dtype=torch.int32)
    ring, read = Ring(rows, length, device), []
    for number, count in enumerate(sends):
        if not count:
            device.wait()
            continue
        ring.next(count)[:] = number

        def pull(number: int = number, count: int = count) -> None:
            ring.pull(count)
            read.append((number, rows[:count].unique().tolist()))

        device.launch(pull)
    device.wait()
    assert read == [(number, [number]) for number, count in enumerate(sends) if count]


def test_launches_follow_each_other_without_a_wait_while_the_ring_has_room() -> None:
    device = LateDevice()
    ring = Ring(torch.zeros(4, ROW_WORDS, dtype=torch.int32), 12, device)
    for _ in range(3):
        ring.next(4)
        device.launch(lambda: ring.pull(4))
    assert device.waits == 0
    ring.next(1)
    assert device.waits == 1


@settings(deadline=None, max_examples=40)
@given(SENDS)
def test_each_launch_reads_its_own_fill(sends: list[int]) -> None:
    device, target = LateDevice(), torch.zeros(8, 3, dtype=torch.int32)
    staged, read = Staged(target, device), []
    for number, count in enumerate(sends):
        if not count:
            device.wait()
            continue
        staged.fill()[:count] = number
        staged.sent()

        def carry(number: int = number, count: int = count) -> None:
            staged.carry(count)
            read.append((number, target[:count].unique().tolist()))

        device.launch(carry)
    device.wait()
    assert read == [(number, [number]) for number, count in enumerate(sends) if count]


@settings(deadline=None, max_examples=40)
@given(st.lists(st.sampled_from(("main", "own", "wait")), max_size=12))
def test_each_round_reads_its_own_records_and_changes(rounds: list[str]) -> None:
    """Two controls over the same tables and counts: changes go with whichever is sent first, once."""
    device, sizes = LateDevice(), ControlSizes(rows=3, lanes=2, pages=9, vocabulary=40)
    main = Control(sizes, CPU, device)
    controls, read, wanted = {"main": main, "own": Control(sizes, CPU, device, main)}, [], []
    for number, name in enumerate(rounds):
        if name == "wait":
            device.wait()
            continue
        control = controls[name]
        control.begin()
        control.host_rows[:], control.host_numbers[:] = number, number + 0.5
        table = np.full(9, 100 + number, np.int32)
        control.set_table(number % 2, table, 3, 5)
        main.count(number % 2, [number, number])
        control.send()

        def arrive(control: Control = control, number: int = number) -> None:
            control.arrive()
            read.append((
                control.rows.unique().tolist(), control.numbers.unique().tolist(),
                main.tables[number % 2].tolist(), main.counts.sum(1).tolist(),
            ))  # fmt: skip

        device.launch(arrive)
        counted = [2 * sum(part % 2 == lane for part in range(number + 1) if rounds[part] != "wait")
                   for lane in range(2)]  # fmt: skip
        wanted.append(([number], [number + 0.5], [100 + number] * 5 + [0] * 4, [*counted, 0]))
    device.wait()
    assert read == wanted
