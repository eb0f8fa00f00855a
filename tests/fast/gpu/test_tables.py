"""Block tables and counts on the device are what the host said last, at every launch that looks at them."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.fast.ops.carry.gpu import MARKS
from ninfer.fast.ops.select.gpu import COUNTED, COUNTS, EARLIER
from ninfer.fast.program.gpu.control import Control, ControlSizes
from ninfer.fast.program.gpu.device import Waiter
from ninfer.fast.program.gpu.samplers import Samplers
from ninfer.sampling.parameters import SamplingParameters

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
CPU = torch.device("cpu")
SCRATCH, PAGES, IDS = 999, 2 * MARKS, 30
PENALISED = SamplingParameters(1.0, 0.95, 20, 0.0, 1.5, 0.5, 7)


def control_of(lanes: int) -> Control:
    control = Control(ControlSizes(4, lanes, PAGES, IDS), CPU, Waiter(CPU))
    control.set_scratch(SCRATCH)
    return control


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_what_a_launch_looks_at_of_a_table_is_the_lanes(data: st.DataObject) -> None:
    """Three lanes over two tables: pages come, change and are looked beyond; some launches are eager."""
    control, random = control_of(2), np.random.default_rng(0)
    lanes: list[Any] = [
        SimpleNamespace(slot=slot, pages=[], block_table=np.zeros(PAGES, np.int32)) for slot in range(3)
    ]
    for _ in range(data.draw(st.integers(1, 8))):
        looked: list[tuple[int, Any, int]] = []
        for lane in data.draw(st.permutations(lanes))[: data.draw(st.integers(1, 2))]:
            added = data.draw(st.sampled_from((0, 1, 2, 40, MARKS // 2 + 1)))
            added = min(added, PAGES - len(lane.pages))
            lane.pages += random.integers(0, SCRATCH, added).tolist()
            if lane.pages and data.draw(st.booleans()):
                lane.pages[data.draw(st.integers(0, len(lane.pages) - 1))] = 5  # now shared
            lane.block_table[: len(lane.pages)] = lane.pages
            table = control.table_of(lane)
            pages = data.draw(st.integers(0, min(PAGES, len(lane.pages) + 2)))
            control.set_table(table, lane.block_table, pages, len(lane.pages))
            looked.append((table, lane, pages))
        if data.draw(st.booleans()):
            control.tell_tables()
        else:
            control.begin()
            control.send()
            control.arrive()
        for table, lane, pages in looked:
            wanted = (lane.pages + [SCRATCH] * 2)[:pages]
            assert control.tables[table, :pages].tolist() == wanted


def test_a_table_is_told_once_of_all_pages_that_the_lane_has() -> None:
    control, marks = control_of(1), np.full((3, MARKS), -1, np.int32)
    tables, pages = control._tables, np.arange(20, 25, dtype=np.int32)
    control.set_table(0, pages, 1, 5)
    assert tables.mark(marks)
    assert marks[1, :6].tolist() == [20, 21, 22, 23, 24, -1]
    for looked in range(1, 6):
        control.set_table(0, pages, looked, 5)
        assert not tables.mark(marks)


def test_all_changes_of_a_table_before_a_launch_are_told() -> None:
    control, marks = control_of(1), np.full((3, MARKS), -1, np.int32)
    table = np.arange(20, 29, dtype=np.int32)
    for held in (5, 9, 9):
        control.set_table(0, table, held, held)
    assert control._tables.mark(marks)
    assert marks[0, :10].tolist() == [*range(9), -1]
    assert marks[1, :9].tolist() == table.tolist()


def seen(control: Control, row: int) -> dict[int, int]:
    """What a draw counts, before the drafts of its block: and what the draw itself adds stays."""
    words = control.words[row].tolist()
    if words[COUNTED] >= 0:
        control.counts[words[COUNTS], words[COUNTED]] += 1
    counts = control.counts[words[COUNTS], :IDS]
    return {index: int(count) for index, count in enumerate(counts) if count}


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_counts_are_those_of_the_output_whatever_came_before(data: st.DataObject) -> None:
    """Rounds of one token, drafts and verifications of three sequences over two tables."""
    main = control_of(2)
    own, samplers = Control(ControlSizes(4, 2, PAGES, IDS), CPU, Waiter(CPU), main), Samplers(main)
    token = st.integers(0, IDS - 1)
    members: list[Any] = []
    for slot in range(3):
        first = data.draw(token)
        counts = np.zeros(IDS, np.int32)
        counts[first] = 1
        sampler = SimpleNamespace(parameters=PENALISED, counts=counts)
        members.append(SimpleNamespace(slot=slot, sampler=sampler, pending=first, output=Counter([first])))

    def take(member: Any, tokens: list[int]) -> None:
        for one in tokens:
            member.output[one] += 1
            member.sampler.counts[one] += 1
            member.pending = one

    for _ in range(data.draw(st.integers(1, 9))):
        member = members[data.draw(st.integers(0, 2))]
        table, sampler = main.table_of(member), member.sampler
        kind = data.draw(st.sampled_from(("step", "block", "draft")))
        control = own if kind == "draft" else main
        control.begin()
        tokens = np.array([member.pending, *data.draw(st.lists(token, min_size=1, max_size=3))], np.int32)
        if kind == "step":
            samplers.step(1, table, sampler, 9, member.pending)
        elif kind == "draft":
            samplers.draft(own, 1, table, sampler, 9, member.pending)
        else:
            samplers.block(0, table, sampler, 9, tokens)
        control.send()
        control.arrive()
        assert seen(control, 1 if kind != "block" else 0) == dict(member.output)
        if kind == "step":
            take(member, [data.draw(token)])
        elif kind == "block":
            rows = control.words[: len(tokens), EARLIER]
            assert rows.tolist() == list(range(len(tokens)))
            kept = data.draw(st.integers(0, len(tokens)))
            samplers.committed(table, sampler, tokens, kept)
            take(member, [*tokens[1:kept].tolist(), data.draw(token)] if kept else [])


def test_more_to_count_than_a_round_takes_along_is_counted_too() -> None:
    control = control_of(2)
    control.count(1, [3] * (2 * MARKS) + [4])
    control.send()
    control.arrive()
    assert control.counts[1, 3:5].tolist() == [2 * MARKS, 1]
    control.send()
    control.arrive()
    assert int(control.counts.sum()) == 2 * MARKS + 1


def test_counts_that_are_set_replace_what_waits_to_be_counted() -> None:
    control = control_of(2)
    control.count(0, [1])
    control.count(1, [2])
    control.set_counts(1, np.arange(IDS, dtype=np.int32))
    control.send()
    control.arrive()
    assert control.counts[1, :IDS].tolist() == list(range(IDS))
    assert int(control.counts[0].sum()) == 1
