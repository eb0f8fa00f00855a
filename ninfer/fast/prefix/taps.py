"""Where a prompt leaves snapshots, decided from the prompt alone before it is computed.

Sources, their order and which of them are exact stand in ``spec/cache.yaml``. An exact tap splits the prefill
chunk where it lies; a flexible one is taken at the chunk border that reaches it, or at the start of the last
chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ninfer import spec
from ninfer.engine.requests import CacheHints
from ninfer.fast.ops.control import PAGE_TOKENS
from ninfer.fast.prefix.limits import CacheLimits
from ninfer.fast.prefix.snapshots import Kind


@dataclass(frozen=True, slots=True)
class Tap:
    """A snapshot to take at ``place``, or (flexible) at the chunk border nearest behind it."""

    place: int
    exact: bool
    kind: Kind
    source: str


@dataclass(frozen=True, slots=True)
class Situation:
    """What the planner knows of a prompt of ``length`` tokens that resumes at ``base``.

    ``existing`` are frontiers of snapshots that it already has; ``from_endpoint``: it resumed from one.
    ``frontier`` moves a place that is none (inside an image) to the nearest one before.
    """

    length: int
    base: int
    existing: frozenset[int] = frozenset()
    from_endpoint: bool = False
    frontier: Callable[[int], int] = lambda place: place


def plan_taps(situation: Situation, hints: CacheHints, limits: CacheLimits) -> tuple[Tap, ...]:
    """At most ``limits.taps_per_request`` taps, in order of their places."""
    table = spec.document("cache")
    near, chosen = int(table["cluster_tokens"]), list[Tap]()
    taken = {situation.base, *situation.existing}
    semantic = _clusters(situation, hints, table["taps"], near)
    for row in table["taps"]:
        source, exact = row["source"], row["exact"]
        for wanted in _wanted(situation, hints, limits, source, semantic):
            if len(chosen) == limits.taps_per_request:
                break
            place = situation.frontier(wanted)
            if not situation.base < place < situation.length or place in taken:
                continue
            if source != "explicit" and _crowded(source, place, taken, near, limits):
                continue
            taken.add(place)
            chosen.append(Tap(place, exact, Kind(row["kind"]), source))
    return tuple(sorted(chosen, key=lambda tap: tap.place))


def _clusters(
    situation: Situation, hints: CacheHints, rows: list[dict[str, object]], near: int
) -> dict[str, int]:
    """Semantic boundaries by source; of those near each other the earliest, for the most wanted of them."""
    sources = [str(row["source"]) for row in rows if row["source"] not in ("explicit", "tail", "ladder")]
    found = sorted(
        (place, rank)
        for rank, source in enumerate(sources)
        for place in _places(hints, source)
        if not (source == "opener" and situation.from_endpoint)
    )
    clusters: list[tuple[int, int]] = []
    for place, rank in found:
        if clusters and place - clusters[-1][0] < near:
            clusters[-1] = (clusters[-1][0], min(clusters[-1][1], rank))
        else:
            clusters.append((place, rank))
    return {sources[rank]: place for place, rank in clusters}


def _places(hints: CacheHints, source: str) -> tuple[int, ...]:
    place: int | None = getattr(hints, source)
    return () if place is None else (place,)


def _wanted(
    situation: Situation, hints: CacheHints, limits: CacheLimits, source: str, semantic: dict[str, int]
) -> Iterator[int]:
    """Places of one source, the most wanted first."""
    if source == "explicit":
        yield from reversed(hints.explicit)
    elif source == "tail":
        yield situation.length - 1
    elif source == "ladder":
        step = limits.tap_ladder
        while situation.length - step > situation.base:
            place = situation.length - step
            yield max((b for b in hints.messages if place - limits.tap_min_gap < b <= place), default=place)
            step *= 2
    elif source in semantic:
        yield semantic[source]


def _crowded(source: str, place: int, taken: set[int], near: int, limits: CacheLimits) -> bool:
    """Whether another snapshot makes this one needless."""
    if source == "ladder":
        return any(abs(place - other) < limits.tap_min_gap for other in taken)
    return any(0 <= place - other <= near for other in taken)


class TapSchedule:
    """A plan as prefill meets it: where chunks end, and which taps are due there."""

    def __init__(self, taps: tuple[Tap, ...], length: int, chunk: int) -> None:
        self._waiting = list(taps)
        self._length, self._chunk = length, chunk

    @property
    def waiting(self) -> tuple[Tap, ...]:
        """Taps that are not taken yet."""
        return tuple(self._waiting)

    def add(self, tap: Tap) -> None:
        """One more, for a sibling that waits for it."""
        self._waiting = sorted([*self._waiting, tap], key=lambda one: one.place)

    def end(self, frontier: int) -> int:
        """Where the chunk from ``frontier`` on ends: a multiple of 64, an exact tap or the prompt's end."""
        end = min(self._length, frontier // PAGE_TOKENS * PAGE_TOKENS + self._chunk)
        return min([end, *(tap.place for tap in self._waiting if tap.exact and tap.place > frontier)])

    def due(self, frontier: int) -> Kind | None:
        """What kind of snapshot to take after the chunk that ended at ``frontier``; forgets what is past."""
        last = frontier < self._length and self.end(frontier) == self._length
        due = [
            tap
            for tap in self._waiting
            if tap.place <= frontier or (last and not tap.exact and frontier < self._length)
        ]
        self._waiting = [tap for tap in self._waiting if tap not in due]
        wanted = [tap for tap in due if not tap.exact or tap.place == frontier]
        if not wanted or frontier >= self._length:
            return None
        return max((tap.kind for tap in wanted), key=lambda kind: kind is Kind.BOUNDARY)
