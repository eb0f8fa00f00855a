"""Which stretch of a text is a tool-call turn, and what calls it holds.

Owns the structure: a region begins at an opener and consists of complete calls, with nothing but white space
around them, to the end of the text. What follows a place does not depend on what led there, so a place that
has failed once is not walked again: all walks together are linear in the text.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from ninfer.output.tools.tags import Tag, TagForms
from ninfer.output.tools.value_ends import ValueEnds

# "cut": the text ends inside a call or its container.
Problem = Literal["malformed_structure", "invalid_tool_name", "undeclared_tool", "trailing_content", "cut"]

Repair = Literal["", "bracket", "opener", "name"]


@dataclass(slots=True)
class RawCall:
    """One call as written; ``parameters`` are (name, start, end) of the texts between the tags, in order.

    ``repair``: its opener had no ``>``, lacked something else, or names no declared tool.
    """

    name: str
    repair: Repair = ""
    parameters: list[tuple[str, int, int]] = field(default_factory=list)


@dataclass(slots=True)
class Walk:
    """What stands from ``start`` on: complete calls, then the end of the text or a problem.

    ``open_call`` is the call that a problem was found in; where that is a cut, ``cut_value`` says that the
    text ends inside its last parameter.
    """

    start: int
    calls: list[RawCall] = field(default_factory=list)
    problem: Problem | None = None
    open_call: RawCall | None = None
    cut_value: bool = False


class _State(NamedTuple):
    """A place between tags: in which container and call, and whether the container still wants its first."""

    at: int
    container: str = ""
    call: str = ""
    wants_call: bool = False

    def may_close(self, tag: Tag) -> bool:
        return tag.word == self.container and not self.wants_call


class Region:
    """The text from the first marker on; ``walks`` tries its openers one after the other.

    ``declared`` are the tools that a call may name. ``tolerant`` repairs openers and keeps undeclared names.
    """

    def __init__(self, text: str, forms: TagForms, declared: Container[str], *, tolerant: bool) -> None:
        self._text = text
        self._forms = forms
        self._declared = declared
        self._tolerant = tolerant
        self._tags = forms.tags(text)
        self._index_at = {tag.start: index for index, tag in enumerate(self._tags)}
        self._values = ValueEnds(text, self._tags, forms)
        self._failed: dict[_State, Problem] = {}
        self._contained: set[int] = set()

    def walks(self) -> Iterator[Walk]:
        """A walk from each opener in order, without those that an earlier walk met inside a container."""
        for tag in self._tags:
            if (tag.kind == "container" or self._opens_call(tag)) and tag.start not in self._contained:
                yield self._walk(tag.start)

    def _walk(self, start: int) -> Walk:
        walk, visited = Walk(start), list[_State]()
        state: _State | None = _State(start)
        while state is not None:
            visited.append(state)
            walk.problem = self._failed.get(state)
            state = None if walk.problem is not None else self._step(walk, state)
        if walk.problem is not None:
            self._failed.update(dict.fromkeys(visited, walk.problem))
        return walk

    def _step(self, walk: Walk, state: _State) -> _State | None:
        """Read one tag (of a parameter all); None at the end and at a problem."""
        index = self._index_at.get(state.at)
        tag = None if index is None else self._tags[index]
        if walk.open_call is not None:
            return self._in_call(walk, walk.open_call, state, index, tag)
        if tag is None and (repaired := self._repaired(state)) is not None:
            return self._open(walk, state, repaired, "opener")
        if tag is not None and self._opens_call(tag):
            return self._open(walk, state, tag, "bracket" if tag.kind == "cut_call" else "")
        if tag is not None and tag.kind == "container" and not state.container:
            return _State(self._after(tag), tag.word, wants_call=True)
        if tag is not None and tag.kind == "container_end" and state.may_close(tag):
            return _State(self._after(tag))
        if state.at < len(self._text) or state.container:
            walk.problem = self._problem(walk, state, tag)
        return None

    def _open(self, walk: Walk, state: _State, tag: Tag, repair: Repair) -> _State:
        walk.open_call = RawCall(tag.name, repair)
        if state.container:
            self._contained.add(tag.start)
        return _State(self._after(tag), state.container, tag.word)

    def _in_call(
        self, walk: Walk, call: RawCall, state: _State, index: int | None, tag: Tag | None
    ) -> _State | None:
        if index is not None and tag is not None and tag.kind == "parameter":
            closer = self._values.closer_of(index)
            end = len(self._text) if closer is None else self._tags[closer].start
            call.parameters.append((tag.name, tag.end, end))
            if closer is None:
                walk.problem, walk.cut_value = "cut", True
                return None
            return state._replace(at=self._after(self._tags[closer]))
        if tag is None or tag.kind != "call_end" or tag.word != state.call:
            walk.problem = self._problem(walk, state, tag)
            return None
        walk.problem = self._name_problem(call)
        if walk.problem is not None:
            return None
        walk.calls.append(call)
        walk.open_call = None
        return _State(self._after(tag), state.container)

    def _name_problem(self, call: RawCall) -> Problem | None:
        forms = self._forms
        if forms.name.fullmatch(call.name) is None or len(call.name.encode()) > forms.longest_name:
            return "invalid_tool_name"
        if call.name not in self._declared:
            if not self._tolerant:
                return "undeclared_tool"
            call.repair = call.repair or "name"
        return None

    def _problem(self, walk: Walk, state: _State, tag: Tag | None) -> Problem:
        if self._forms.unfinished(self._text, state.at):
            return "cut"
        between = walk.open_call is None and not state.container
        wrong_opener = tag is not None and tag.kind == "cut_call"
        return "trailing_content" if between and walk.calls and not wrong_opener else "malformed_structure"

    def _opens_call(self, tag: Tag) -> bool:
        return tag.kind == "call" or (tag.kind == "cut_call" and self._tolerant)

    def _repaired(self, state: _State) -> Tag | None:
        """The damaged opener of a call at ``state``; one without its word must name a declared tool."""
        if not (state.container and self._tolerant):
            return None
        found = self._forms.repaired_opener(self._text, state.at)
        if found is None or (found.word_lost and found.tag.name not in self._declared):
            return None
        return found.tag

    def _after(self, tag: Tag) -> int:
        return self._forms.after_space(self._text, tag.end)
