"""Which bytes of an object have been written: every byte once, none twice."""

from __future__ import annotations

import bisect
from collections.abc import Iterable


class Coverage:
    """Sorted, disjoint, merged intervals of one object of ``size`` bytes."""

    def __init__(self, size: int, written: Iterable[tuple[int, int]] = ()) -> None:
        self._size = size
        self._begins: list[int] = []
        self._ends: list[int] = []
        for begin, end in written:
            assert self.add(begin, end), "gaps are disjoint"

    def add(self, begin: int, end: int) -> bool:
        """Note [begin, end). False, and nothing noted, if it overlaps earlier bytes or leaves the object."""
        index = bisect.bisect_right(self._begins, begin)
        after_previous = index == 0 or self._ends[index - 1] <= begin
        before_next = index == len(self._begins) or end <= self._begins[index]
        if not (0 <= begin < end <= self._size and after_previous and before_next):
            return False
        joins_next = index < len(self._begins) and self._begins[index] == end
        if joins_next:
            end = self._ends.pop(index)
            self._begins.pop(index)
        if index and self._ends[index - 1] == begin:
            self._ends[index - 1] = end
        else:
            self._begins.insert(index, begin)
            self._ends.insert(index, end)
        return True

    def first_hole(self) -> tuple[int, int] | None:
        """The first range not written yet, or None."""
        if not self._begins or self._begins[0] > 0:
            return 0, self._begins[0] if self._begins else self._size
        if self._ends[0] == self._size:
            return None
        return self._ends[0], self._begins[1] if len(self._begins) > 1 else self._size
