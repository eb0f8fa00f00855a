"""``namespace(...)`` of chat templates: mutable state that a rendering can follow.

Owns the object only; its own names begin with an underscore, which no template can reach.
"""

from __future__ import annotations

from typing import Any, Protocol

from jinja2.exceptions import SecurityError
from jinja2.utils import Namespace

from ninfer.prompt.replay import ABSENT, Recorder


class Follower(Protocol):
    """Numbers the namespaces of a rendering; ``recorder`` follows the message loop while it runs."""

    recorder: Recorder | None

    def add_namespace(self, namespace: TemplateNamespace) -> int: ...


class TemplateNamespace(Namespace):
    """``namespace(...)``: tells the rendering what the message loop reads and writes."""

    def __init__(self, rendering: Follower, members: dict[str, Any]) -> None:
        for name in members:
            _check_member(name)
        super().__init__(members)
        object.__setattr__(self, "_rendering", rendering)
        object.__setattr__(self, "_number", rendering.add_namespace(self))

    def __getattribute__(self, name: str) -> Any:
        if name in ("_rendering", "_number", "_peek", "_put"):
            return object.__getattribute__(self, name)
        if name.startswith("_"):
            return super().__getattribute__(name)
        value = self._peek(name)
        recorder = self._rendering.recorder
        if recorder is not None:
            recorder.read_member((self._number, name), value)
        if value is ABSENT:
            raise AttributeError(name)
        return value

    def __setitem__(self, name: str, value: Any) -> None:
        _check_member(name)
        super().__setitem__(name, value)
        recorder = self._rendering.recorder
        if recorder is not None:
            recorder.write_member((self._number, name), value)

    def _peek(self, name: str) -> Any:
        """A member's value, or ABSENT, unnoticed."""
        try:
            return super().__getattribute__(name)
        except AttributeError:
            return ABSENT

    def _put(self, name: str, value: Any) -> None:
        """Set a member, unnoticed."""
        super().__setitem__(name, value)


def _check_member(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace member may not begin with an underscore: {name!r}")
