"""One rendering under way: its collector, its namespaces, and the message loop's start and records.

Owns the run-time side of ``replay.py`` for one call; made anew for every rendering.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from jinja2 import Undefined

from ninfer.prompt.collector import Collector, Mark
from ninfer.prompt.conversation import Message
from ninfer.prompt.message_view import MessageSource, MessageView
from ninfer.prompt.namespace import TemplateNamespace
from ninfer.prompt.prepared import Text
from ninfer.prompt.replay import ABSENT, LoopRecord, Member, Recorder

_PLAIN = (str, int, float, bool, type(None), list, tuple, dict)


class Earlier(Protocol):
    """An earlier rendering whose first ``shared`` messages and whose options are the same."""

    @property
    def record(self) -> LoopRecord: ...

    @property
    def made_messages(self) -> list[Any]: ...

    def text_before(self, mark: Mark) -> Text: ...


class Rendering:
    """``skipped`` counts the iterations taken over from ``earlier``; ``record`` is this one's own."""

    def __init__(
        self, collector: Collector, messages: tuple[Message, ...], earlier: Earlier | None, shared: int
    ) -> None:
        made = earlier.made_messages[:shared] if earlier is not None else ()
        self.collector = collector
        self.source = MessageSource(messages, self, made)
        self.messages = MessageView(self.source)
        self.recorder: Recorder | None = None
        self.record: LoopRecord | None = None
        self.skipped = 0
        self._earlier = earlier
        self._shared = shared
        self._namespaces: list[TemplateNamespace] = []

    def add_namespace(self, namespace: TemplateNamespace) -> int:
        """Register a new namespace; returns its number in order of creation."""
        self.spoil()
        self._namespaces.append(namespace)
        return len(self._namespaces) - 1

    def read_message(self, index: int) -> None:
        """``Reader``: the loop's iteration looked at message ``index``."""
        if self.recorder is not None:
            self.recorder.read_message(index)

    def read_all_messages(self) -> None:
        """``Reader``: the loop's iteration depends on all messages."""
        self.spoil()

    def spoil(self) -> None:
        """The loop's iteration did something that a replay cannot repeat."""
        if self.recorder is not None:
            self.recorder.spoil()

    def enter_loop(self, messages: Any, captured: Mapping[str, Any]) -> Iterable[Any]:
        """The iterable of the message loop: the messages themselves where they cannot be followed."""
        values = {name: _comparable(value) for name, value in captured.items()}
        if messages is not self.messages or self.record is not None or ABSENT in values.values():
            untouched: Iterable[Any] = messages
            return untouched
        collector = self.collector
        record = LoopRecord(collector.units[:], collector.mark(), values, len(self._namespaces))
        start = self._take_over(record)
        self.record = record
        self.recorder = Recorder(record, None if self._earlier is None else self._earlier.record, start)
        return LoopEntry(self, start)

    def leave_loop(self) -> None:
        """The loop has ended: what follows is rendered anew every time."""
        self.recorder = None

    def _take_over(self, record: LoopRecord) -> int:
        earlier = self._earlier
        if earlier is None or not earlier.record.fits(record):
            return 0
        start = earlier.record.reach(self._shared, self._current)
        if start > 0:
            boundary = earlier.record.boundaries[start]
            assert boundary.mark is not None
            self.collector.resume(earlier.text_before(boundary.mark), boundary.mark)
            for (number, name), value in boundary.written:
                self._namespaces[number]._put(name, value)
        self.skipped = start
        return start

    def _current(self, member: Member) -> Any:
        number, name = member
        return self._namespaces[number]._peek(name) if number < len(self._namespaces) else ABSENT


class LoopEntry:
    """What the message loop iterates over, from message ``start`` on."""

    def __init__(self, rendering: Rendering, start: int) -> None:
        self.start = start
        self._rendering = rendering
        self._count = len(rendering.source.messages)

    def __iter__(self) -> Iterator[Any]:
        rendering = self._rendering
        recorder, collector, source = rendering.recorder, rendering.collector, rendering.source
        assert recorder is not None
        for index in range(self.start, self._count):
            recorder.begin(collector.mark())
            recorder.read_message(index)
            yield source.get(index)
        recorder.begin(collector.mark())
        rendering.leave_loop()

    def peek(self, index: int) -> Any:
        """Message ``index``, unnoticed."""
        return self._rendering.source.get(index)

    def length(self) -> int:
        """``loop.length``: no later rendering has the same."""
        self._rendering.spoil()
        return self._count

    def look_at(self, index: int, missing: Any) -> Any:
        """Message ``index``, or ``missing`` after the last, which a longer conversation cannot share."""
        self._rendering.read_message(index)
        return self._rendering.source.get(index) if index < self._count else missing

    def spoil(self) -> None:
        """The loop keeps state that a replay would miss."""
        self._rendering.spoil()


def _comparable(value: Any) -> Any:
    """A top-level name's value as ``exact.same`` compares it; ABSENT where it cannot be told."""
    if isinstance(value, Undefined):
        return "undefined", ""
    if isinstance(value, TemplateNamespace):
        return "namespace", value._number
    return value if isinstance(value, _PLAIN) else ABSENT
