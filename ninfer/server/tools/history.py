"""Calls and results of earlier turns: arguments as values, results matched with their calls.

Owns the pairing: a turn that called is followed by one result for each call, in any order; prompts have them
in the order of the calls.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ninfer.errors import RequestError
from ninfer.prompt.conversation import Message
from ninfer.server.json_body import NotAnObject, read_object
from ninfer.server.members import Members

_CODE = "invalid_tool_history"


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One message, and where it stands in the request.

    ``calls`` are (key, path) of the calls that an assistant made, ``answers`` the key of the call that a
    result belongs to, as its member ``answers_at`` says: an id, or a legacy function's name.
    """

    message: Message
    where: Members
    calls: tuple[tuple[str, str], ...] = ()
    answers: str | None = None
    answers_at: str = ""


def call_arguments(members: Members, name: str) -> dict[str, Any]:
    """A call's arguments: a JSON object in a string, members in order; absent, null or empty is ``{}``.

    Errors: ``RequestError`` naming the member for anything else.
    """
    text = members.string(name)
    if text is None or not text.strip():
        return {}
    try:
        return read_object(text.encode())
    except NotAnObject as error:
        raise members.invalid(name, f"must be the text of a JSON object: {error}") from error


def paired(entries: Iterable[HistoryEntry]) -> tuple[Message, ...]:
    """The messages with every turn's results in the order of its calls.

    Results before the first assistant turn stand as they are: the history was cut or imported.
    Errors: ``RequestError`` ``invalid_tool_history`` for a call without result before the next message, a
    result without call, a second result, and calls that cannot be told apart.
    """
    messages: list[Message] = []
    turn = _Turn()
    began = False
    for entry in entries:
        if entry.answers is not None:
            if not began:
                messages.append(entry.message)
            else:
                turn.answer(entry)
            continue
        messages += turn.results()
        turn = _Turn(entry.calls)
        began = began or entry.message.role == "assistant"
        messages.append(entry.message)
    # A last turn without any result is not a history but a turn to continue; prompts refuse that themselves.
    messages += turn.results() if turn.answered else []
    return tuple(messages)


class _Turn:
    """The calls of one turn and the results that came for them."""

    def __init__(self, calls: tuple[tuple[str, str], ...] = ()) -> None:
        self._paths: dict[str, str] = {}
        for key, path in calls:
            if key in self._paths:
                raise RequestError(
                    _CODE, f"{path} {key!a} stands for another call of the turn already.", path
                )
            self._paths[key] = path
        self._found: dict[str, Message] = {}

    @property
    def answered(self) -> bool:
        return bool(self._found)

    def answer(self, entry: HistoryEntry) -> None:
        key = entry.answers
        assert key is not None
        if key not in self._paths:
            raise entry.where.invalid(entry.answers_at, f"{key!a} names no call of the turn before", _CODE)
        if key in self._found:
            raise entry.where.invalid(entry.answers_at, f"{key!a} has a result already", _CODE)
        self._found[key] = entry.message

    def results(self) -> list[Message]:
        for key, path in self._paths.items():
            if key not in self._found:
                raise RequestError(_CODE, f"{path} {key!a} has no result before the next message.", path)
        return [self._found[key] for key in self._paths]
