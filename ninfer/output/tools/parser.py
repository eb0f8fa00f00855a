"""Running text of one turn → text and structured tool calls.

Owns the way of a turn without constraints: text in front of a marker is published at once, the rest is read
at the end as a whole, so cuts of the text cannot matter. Protocol-neutral; ids are the caller's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ninfer.output.thinking import ChannelText
from ninfer.output.tools.markers import MarkerScanner
from ninfer.output.tools.parsed import FallbackReason, ParsedCall, ParsedTurn, ToolParse
from ninfer.output.tools.regions import RawCall, Region, Walk
from ninfer.output.tools.tags import tag_forms
from ninfer.output.tools.values import ToolTypes, json_text
from ninfer.prompt.conversation import Tool
from ninfer.prompt.prepared import Channel


class ToolParser:
    """Feed a turn's text with ``push``, then call ``finish`` once.

    Without tools every text passes as it is: so too for a request that allows no call.
    """

    def __init__(self, tools: Sequence[Tool], tolerant: bool = False) -> None:
        """``tolerant`` recovers calls that a strict reading turns to text (``--tolerant-tool-calls``)."""
        self._forms = tag_forms()
        self._types = ToolTypes(tuple(tools))
        self._tolerant = tolerant
        self._content = MarkerScanner(self._forms) if tools else None
        self._reasoning = MarkerScanner(self._forms) if tools and tolerant else None
        self._content_began = False

    def push(self, channel: Channel, text: str) -> list[ChannelText]:
        """Add text of a channel; returns what may be published, reasoning before content."""
        published: list[ChannelText] = []
        if channel == "content" and text:
            published += self._release_reasoning()
            self._content_began = True
        scanner = self._content if channel == "content" else self._reasoning
        published.append((channel, text if scanner is None else scanner.feed(text)))
        return [entry for entry in published if entry[1]]

    def finish(self, *, stopped_by_token: bool, truncated: bool, thinking_closed: bool = True) -> ParsedTurn:
        """The turn has ended: by the model's stop token, by a limit (``truncated``) or otherwise.

        ``thinking_closed``: the turn left its thinking, or never had any.
        """
        if self._content is not None and self._content.marker_seen:
            return self._read_content(self._content, truncated)
        if stopped_by_token and not thinking_closed and not self._content_began:
            recovered = self._read_reasoning()
            if recovered is not None:
                return recovered
        texts = self._release_reasoning()
        if self._content is not None:
            texts.append(("content", self._content.space + self._content.region))
        return ParsedTurn(tuple(entry for entry in texts if entry[1]))

    def _release_reasoning(self) -> list[ChannelText]:
        """Held reasoning is reasoning after all."""
        scanner, self._reasoning = self._reasoning, None
        return [] if scanner is None else [("reasoning", scanner.space + scanner.region)]

    def _read_content(self, scanner: MarkerScanner, truncated: bool) -> ParsedTurn:
        text = scanner.region
        walk, reason = self._search(text, truncated)
        if walk is None:
            kept: tuple[ChannelText, ...] = (("content", scanner.space + text),)
            return ParsedTurn(kept, (), ToolParse(marker_seen=True, fallback_reason=reason), text)
        return self._turn("content", scanner.space + text[: walk.start], text, walk, reason)

    def _read_reasoning(self) -> ParsedTurn | None:
        """Calls at the end of thinking that never closed, if they are all there is from a marker on."""
        scanner = self._reasoning
        if scanner is None or not scanner.marker_seen:
            return None
        text = scanner.region
        for walk in Region(text, self._forms, self._types, tolerant=False).walks():
            if walk.problem is None:
                turn = self._turn("reasoning", scanner.space + text[: walk.start], text, walk, "none")
                found = replace(turn.diagnostics, tolerant_recovered=True, recovered_from_reasoning=True)
                return replace(turn, diagnostics=found)
        return None

    def _search(self, text: str, truncated: bool) -> tuple[Walk | None, FallbackReason]:
        """The walk that becomes the turn, and why it is not whole; without one, why the text stays text.

        A region that a limit cut keeps all behind its opener: a quoted call in its last value is no call.
        """
        partial: Walk | None = None
        first: FallbackReason | None = None
        for walk in Region(text, self._forms, self._types, tolerant=self._tolerant).walks():
            if walk.problem is None:
                return walk, _repair_reason(walk)
            first = first or self._reason(walk)
            cut_by_limit = truncated and walk.problem == "cut"
            if cut_by_limit and not walk.calls:
                walk.calls += _cut_call(walk)
            if partial is None and walk.calls:
                partial = walk
            if cut_by_limit:
                break
        if self._tolerant and partial is not None:
            return partial, "truncated_tail"
        return None, first or "malformed_structure"

    def _reason(self, walk: Walk) -> FallbackReason:
        if walk.problem == "cut":
            return "truncated_tail" if self._tolerant else "malformed_structure"
        assert walk.problem is not None
        return walk.problem

    def _turn(
        self, channel: Channel, before: str, text: str, walk: Walk, reason: FallbackReason
    ) -> ParsedTurn:
        counts = _Counts()
        calls = tuple(self._call(call, text, counts) for call in walk.calls)
        before = before.rstrip(self._forms.space_characters)
        diagnostics = ToolParse(
            marker_seen=True,
            structured_call_count=len(calls),
            empty_arguments_omitted=counts.omitted,
            schema_mismatches=counts.mismatched,
            duplicate_parameters_repaired=counts.repeated,
            fallback_reason=reason,
            tolerant_recovered=reason != "none" or any(call.repair for call in walk.calls),
        )
        return ParsedTurn(((channel, before),) if before else (), calls, diagnostics)

    def _call(self, call: RawCall, text: str, counts: _Counts) -> ParsedCall:
        members: dict[str, str] = {}
        named: set[str] = set()
        for name, start, end in call.parameters:
            written = text[start:end] if end < len(text) else self._forms.without_unfinished(text[start:])
            value = self._types.value(call.name, name, written)
            counts.repeated += name in named
            counts.omitted += value.json is None
            counts.mismatched += value.mismatched
            named.add(name)
            if value.json is not None:
                members[name] = value.json
        listed = ",".join(f"{json_text(name)}:{value}" for name, value in members.items())
        return ParsedCall(call.name, "{" + listed + "}")


@dataclass(slots=True)
class _Counts:
    """What typing changed in the arguments of a turn."""

    omitted: int = 0
    mismatched: int = 0
    repeated: int = 0


def _repair_reason(walk: Walk) -> FallbackReason:
    """The contract counts a name without its closing bracket among the truncated tails."""
    return "truncated_tail" if any(call.repair == "bracket" for call in walk.calls) else "none"


def _cut_call(walk: Walk) -> list[RawCall]:
    """The only call of a region, cut by a limit: kept once one of its parameters is complete."""
    call = walk.open_call
    if call is None or len(call.parameters) - walk.cut_value < 1:
        return []
    return [call]
