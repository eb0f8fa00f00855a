"""How a follow-up turn skips the part of the message loop that it shares with an earlier rendering.

While the loop of a template runs, a ``Recorder`` notes before every iteration where the text stands, and
what the iterations so far depended on: the messages they looked at, members of namespaces set before the
loop, and comparisons with such members. A later rendering whose head, options and first messages are the
same may then begin the loop at the furthest iteration whose dependencies still hold. Names set at top level
are compared whole. Owns records and that judgement; knows neither Jinja nor tokens.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ninfer.prompt.collector import Mark, Unit
from ninfer.prompt.exact import same

Member = tuple[int, str]  # the how-manieth namespace, and the name of its member

ABSENT: Any = object()  # the value of a member that a namespace does not have
_IMMUTABLE = (str, int, float, bool, type(None))
COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "gt": operator.gt,
    "gteq": operator.ge,
    "lt": operator.lt,
    "lteq": operator.le,
    "eq": operator.eq,
    "ne": operator.ne,
}
_MIRRORED = {"gt": "lt", "gteq": "lteq", "lt": "gt", "lteq": "gteq", "eq": "eq", "ne": "ne"}


class Need(NamedTuple):
    """From ``iteration`` on, ``member`` must lie in low..high or, where those are open, equal ``value``."""

    iteration: int
    member: Member
    value: Any
    low: float = -math.inf
    high: float = math.inf

    @property
    def exact(self) -> bool:
        """Whether the value itself counts, not only how it compares."""
        return self.low == -math.inf and self.high == math.inf

    def holds(self, current: Any) -> bool:
        """Whether the member's value in another rendering would have led to the same text."""
        if self.exact:
            return same(self.value, current)
        return type(current) is int and self.low <= current <= self.high


class Boundary(NamedTuple):
    """The state before one iteration; ``written`` are the members set by the loop so far."""

    mark: Mark | None
    written: tuple[tuple[Member, Any], ...]


@dataclass(slots=True)
class LoopRecord:
    """What one rendering of the loop left behind.

    ``head`` are the units before the loop and ``head_mark`` their end. ``horizons[i]`` is the last message
    that iterations 0..i looked at (infinite: something no later rendering can be sure of).
    """

    head: Sequence[Unit]
    head_mark: Mark | None
    captured: Mapping[str, Any]
    namespaces: int
    boundaries: list[Boundary] = field(default_factory=list)
    horizons: list[float] = field(default_factory=list)
    needs: list[Need] = field(default_factory=list)

    def fits(self, other: LoopRecord) -> bool:
        """Whether both loops were entered in the same state, namespace members aside."""
        return (
            self.head_mark is not None
            and self.head_mark == other.head_mark
            and self.namespaces == other.namespaces
            and list(self.head) == list(other.head)
            and same(self.captured, other.captured)
        )

    def drop_after(self, characters: int) -> None:
        """Forget the boundaries behind a text that was cut to this length."""
        for index, boundary in enumerate(self.boundaries):
            if boundary.mark is not None and boundary.mark.characters > characters:
                del self.boundaries[index:], self.horizons[index:]
                return

    def reach(self, shared: int, current: Callable[[Member], Any]) -> int:
        """How many iterations a rendering may skip whose first ``shared`` messages are the same."""
        count = min(shared, len(self.boundaries) - 1)
        for need in self.needs:
            if need.iteration < count and not need.holds(current(need.member)):
                count = need.iteration
        while count > 0 and (self.horizons[count - 1] >= shared or self.boundaries[count].mark is None):
            count -= 1
        return max(count, 0)


class Recorder:
    """Follows one run of the loop; ``start`` iterations were taken over from ``earlier``."""

    def __init__(self, record: LoopRecord, earlier: LoopRecord | None, start: int) -> None:
        self.record = record
        self.start = start
        self._written: dict[Member, Any] = {}
        self._horizon: float = -1
        self._iteration = start - 1
        if earlier is not None and start > 0:
            record.boundaries = earlier.boundaries[:start]
            record.horizons = earlier.horizons[:start]
            record.needs = [need for need in earlier.needs if need.iteration < start]
            self._written = dict(earlier.boundaries[start].written)
            self._horizon = record.horizons[-1]
        self._needed = {need.member for need in record.needs if need.exact}

    @property
    def written(self) -> Mapping[Member, Any]:
        """Members set by the loop so far, with their values."""
        return self._written

    def begin(self, mark: Mark | None) -> None:
        """The next iteration starts, or the loop has ended, at ``mark``."""
        if self._iteration >= self.start:
            self.record.horizons.append(self._horizon)
        self._iteration += 1
        boundaries = self.record.boundaries
        written = tuple(self._written.items())
        if boundaries and boundaries[-1].written == written:
            written = boundaries[-1].written
        boundaries.append(Boundary(mark, written))

    def read_message(self, index: int) -> None:
        """The iteration looked at message ``index``."""
        self._horizon = max(self._horizon, index)

    def spoil(self) -> None:
        """The iteration did something that another rendering cannot be sure to repeat."""
        self._horizon = math.inf

    def read_member(self, member: Member, value: Any) -> None:
        """The iteration read a namespace member."""
        if member in self._written or member in self._needed:
            return
        self._needed.add(member)
        self.record.needs.append(Need(self._iteration, member, value))

    def write_member(self, member: Member, value: Any) -> None:
        """The iteration set a namespace member."""
        if not isinstance(value, _IMMUTABLE):
            self.spoil()
        self._written[member] = value

    def compare(self, member: Member, value: Any, comparison: str, other: Any, mirrored: bool) -> None:
        """The iteration compared a member with ``other`` and needs only the outcome to be the same."""
        name = _MIRRORED[comparison] if mirrored else comparison
        if type(value) is not int or type(other) is not int or name in ("eq", "ne"):
            self.read_member(member, value)
        elif member not in self._written and member not in self._needed:
            low, high = _same_outcome(name, value, other)
            self.record.needs.append(Need(self._iteration, member, None, low, high))


def _same_outcome(name: str, value: int, other: int) -> tuple[float, float]:
    """The range of integers that compare with ``other`` as ``value`` does."""
    if COMPARISONS[name](value, other):
        ranges = {"gt": (other + 1, math.inf), "gteq": (other, math.inf)}
        return ranges.get(name, (-math.inf, other - 1 if name == "lt" else other))
    ranges = {"lt": (other, math.inf), "lteq": (other + 1, math.inf)}
    return ranges.get(name, (-math.inf, other if name == "gt" else other - 1))
