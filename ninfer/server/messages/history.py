"""Messages in order as the turns of a conversation.

Owns what the protocol says about order: neighbours of one role are one turn, a turn that called tools is
followed by one result for every call, and a last assistant turn is continued.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from ninfer import spec
from ninfer.errors import RequestError
from ninfer.prompt.conversation import Message, TextPart
from ninfer.server.members import Members
from ninfer.server.messages.blocks import Block, Reasoning, Result, Use, read_content
from ninfer.server.messages.cache_control import CacheMarkers

_TOOL_HISTORY = "invalid_tool_history"


@dataclass(slots=True)
class _Turn:
    """Neighbouring messages of one role; ``where`` is the first of them."""

    role: str
    where: Members
    blocks: list[tuple[Block, Members]] = field(default_factory=list)


def read_history(body: Members, markers: CacheMarkers) -> tuple[Message, ...]:
    """The member ``messages``. Errors: ``RequestError`` naming the message or block that is wrong."""
    entries = body.required_objects("messages")
    if not entries:
        raise body.invalid("messages", "must hold at least one message")
    turns = list(_turns(entries, markers))
    messages: list[Message] = []
    open_calls: list[Use] = []
    for index, turn in enumerate(turns):
        if turn.role == "assistant":
            if open_calls:
                raise _unanswered(open_calls[0])
            message, open_calls = _assistant(turn)
            messages.append(message)
        elif turn.role == "user":
            messages += _user(turn, open_calls, begins=index == 0)
            open_calls = []
        else:
            messages.append(Message("system", tuple(_texts(turn.blocks))))
    if open_calls:
        raise _unanswered(open_calls[0])
    return tuple(messages)


def _turns(entries: Sequence[Members], markers: CacheMarkers) -> Iterator[_Turn]:
    roles: list[str] = spec.document("http/messages")["roles"]
    read = []
    for entry in entries:
        entry.required_string("role")
        role = entry.choice("role", roles)
        assert role is not None
        read.append((role, entry, list(read_content(entry, role, markers))))
    # System messages stand for themselves, wherever they are.
    for (role, _), group in groupby(enumerate(read), lambda item: _run(item[1][0], item[0])):
        members = [item for _, item in group]
        yield _Turn(role, members[0][1], [block for _, _, blocks in members for block in blocks])


def _run(role: str, index: int) -> tuple[str, int]:
    return role, index if role == "system" else -1


def _assistant(turn: _Turn) -> tuple[Message, list[Use]]:
    """One assistant turn: reasoning, then text, then calls."""
    reasoning: list[str] = []
    parts: list[TextPart] = []
    uses: list[Use] = []
    for block, where in turn.blocks:
        if isinstance(block, Reasoning):
            if parts or uses:
                raise _order(where, "thinking must come before text and tool_use")
            reasoning.append(block.text)
        elif isinstance(block, TextPart):
            if uses and block.text.strip():
                raise _order(where, "text must come before tool_use")
            if not uses:
                parts.append(block)
        elif isinstance(block, Use):
            if any(block.call.id == other.call.id for other in uses):
                raise block.block.invalid("id", f"{block.call.id!r} is used twice in one turn", _TOOL_HISTORY)
            uses.append(block)
    message = Message(
        "assistant",
        tuple(parts),
        reasoning="".join(reasoning) or None,
        tool_calls=tuple(use.call for use in uses),
    )
    return message, uses


def _user(turn: _Turn, open_calls: Sequence[Use], *, begins: bool) -> Iterator[Message]:
    """The results of the calls before, in call order, then what the user says."""
    results: list[Result] = []
    rest: list[tuple[Block, Members]] = []
    for block, where in turn.blocks:
        if not isinstance(block, Result):
            rest.append((block, where))
        elif rest:
            raise where.invalid("type", "tool_result must come before other blocks", _TOOL_HISTORY)
        else:
            results.append(block)
    yield from _results(results, open_calls, begins=begins)
    if rest or not results:
        yield Message("user", tuple(_texts(rest)))


def _results(results: Sequence[Result], open_calls: Sequence[Use], *, begins: bool) -> Iterator[Message]:
    by_id: dict[str, Result] = {}
    known = {use.call.id for use in open_calls}
    for result in results:
        if result.id in by_id:
            raise result.block.invalid("tool_use_id", f"{result.id!r} has a result already", _TOOL_HISTORY)
        if not begins and result.id not in known:
            raise result.block.invalid(
                "tool_use_id", f"{result.id!r} names no call of the turn before", _TOOL_HISTORY
            )
        by_id[result.id] = result
    for use in open_calls:
        if use.call.id not in by_id:
            raise _unanswered(use)
    order = results if begins else [by_id[use.call.id or ""] for use in open_calls]
    for result in order:
        yield Message("tool", result.parts, tool_call_id=result.id)


def _texts(blocks: Sequence[tuple[Block, Members]]) -> Iterator[TextPart]:
    return (block for block, _ in blocks if isinstance(block, TextPart))


def _unanswered(use: Use) -> RequestError:
    return use.block.invalid(
        "id", f"{use.call.id!r} has no tool_result at the start of the next user message", _TOOL_HISTORY
    )


def _order(where: Members, problem: str) -> RequestError:
    return RequestError("invalid_assistant_history", f"{where.path}: {problem}.", where.path)
