"""State images: zeroed, apart from each other, each part of a layer in its own place."""

from __future__ import annotations

import numpy as np
import pytest

from ninfer.fast.memory.states import StateImages
from tests.support.nano_weights import artifact_config, text_config_members

CONFIG = artifact_config(text_config_members("dense"))


def test_parts_of_an_image_do_not_overlap() -> None:
    states, gdn = StateImages(CONFIG, 2), CONFIG.gdn
    assert gdn is not None
    slot = states.allocate()
    parts = [(states.hidden_offset, (CONFIG.hidden,))]
    for layer, kind in enumerate(CONFIG.layer_types):
        assert (
            (layer in states.window_offsets)
            == (layer in states.state_offsets)
            == (kind == "linear_attention")
        )
    parts += [(offset, (gdn.taps - 1, gdn.channels)) for offset in states.window_offsets.values()]
    parts += [
        (offset, (gdn.value_heads, gdn.key_dim, gdn.value_dim)) for offset in states.state_offsets.values()
    ]
    for number, (offset, shape) in enumerate(parts):
        view = states.floats(slot, offset, shape)
        assert (view == 0).all(), "overlaps an earlier part"
        view[:] = number + 1
    for number, (offset, shape) in enumerate(parts):
        assert (states.floats(slot, offset, shape) == number + 1).all()


def test_slots_are_apart_aligned_and_where_they_say() -> None:
    states = StateImages(CONFIG, 3)
    slots = [states.allocate() for _ in range(3)]
    assert sorted(slots) == [0, 1, 2]
    for slot in slots:
        assert states.address(slot) % 64 == 0
        assert states.address(slot) == states.image(slot).ctypes.data
        states.image(slot)[:] = slot + 1
    for slot in slots:
        assert (states.image(slot) == slot + 1).all()
        assert len(states.image(slot)) == states.image_bytes
    with pytest.raises(IndexError):
        states.allocate()
    assert states.free_slots == 0


def test_a_slot_comes_back_zeroed() -> None:
    states = StateImages(CONFIG, 2)
    slot = states.allocate()
    other = states.allocate()
    states.image(other)[:] = 7
    states.image(slot).view(np.float32)[:] = np.nan
    states.free(slot)
    assert states.free_slots == 1
    assert states.allocate() == slot
    assert not states.image(slot).any()
    assert (states.image(other) == 7).all()


def test_a_slot_given_back_twice_is_noticed() -> None:
    states = StateImages(CONFIG, 2)
    slot = states.allocate()
    states.free(slot)
    with pytest.raises(AssertionError):
        states.free(slot)
