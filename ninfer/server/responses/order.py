"""Where a Responses stream stands in its table of ``spec/http/streams.yaml``.

Owns the walk: an event that the table does not allow is our own mistake, and the way from a text to the next
Item is the table's.
"""

from __future__ import annotations

from collections.abc import Mapping

from ninfer import spec

_PREFIX = "response."


class StreamOrder:
    """One stream's place in the table."""

    def __init__(self) -> None:
        table = spec.document("http/streams")["responses"]
        self._transitions: Mapping[str, Mapping[str, str]] = table["transitions"]
        self._ends: list[str] = table["end"]
        self._state: str = table["start"]

    @property
    def state(self) -> str:
        return self._state

    @property
    def ended(self) -> bool:
        return self._state in self._ends

    def take(self, event: str) -> None:
        """Go on by ``event``; AssertionError where the table has no such way."""
        following = self._transitions[self._state].get(event)
        assert following is not None, f"{event} in state {self._state} of the stream"
        self._state = following

    def closing(self) -> str | None:
        """The event that closes what is open here; None between Items."""
        return next((event for event in self._transitions[self._state] if ".done" in event), None)


def wire_type(event: str) -> str:
    """The ``type`` of an event of the table."""
    name = event.partition("/")[0]
    return name if name == "error" else _PREFIX + name
