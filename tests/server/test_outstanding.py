"""The count of requests the server holds: full means 429, a slot is free when its last holder lets go."""

from __future__ import annotations

import pytest

from ninfer.errors import RequestError
from ninfer.server.outstanding import Outstanding


def test_slots_are_counted_and_the_next_is_refused() -> None:
    outstanding = Outstanding(2)
    first, _ = outstanding.take(), outstanding.take()
    with pytest.raises(RequestError) as caught:
        outstanding.take()
    assert caught.value.code == "server_overloaded"
    first.release()
    assert outstanding.taken == 1
    outstanding.take()


def test_a_slot_waits_for_its_last_holder() -> None:
    outstanding = Outstanding(1)
    slot = outstanding.take()
    slot.hold()
    slot.release()
    assert outstanding.taken == 1
    slot.release()
    assert outstanding.taken == 0
