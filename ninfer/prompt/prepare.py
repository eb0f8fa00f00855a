"""Conversation → PreparedPrompt: options, rendering, tokens, positions and the initial channel.

Owns the order of these steps and what makes a conversation no prompt. Safe to call from several threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ninfer import spec
from ninfer.errors import ArtifactError, RequestError
from ninfer.prompt.collector import Collector, Unit, Units
from ninfer.prompt.continuation import cut_at, open_final_message
from ninfer.prompt.conversation import Conversation, MediaPart, Message, TemplateOptions, TextPart
from ninfer.prompt.frontiers import FrontierFinder
from ninfer.prompt.history import History, RenderedConversation, message_keys
from ninfer.prompt.options import resolve_options
from ninfer.prompt.positions import TextPositions
from ninfer.prompt.prepared import Channel, PreparedPrompt, joined
from ninfer.prompt.rendering import Rendering
from ninfer.prompt.replay import LoopRecord
from ninfer.prompt.segments import SegmentCache
from ninfer.prompt.surrogates import find_surrogate
from ninfer.prompt.template import ChatTemplate
from ninfer.prompt.tokenizer import TokenArray, Tokenizer

_PROBE = (Message("user", (TextPart("Hello"),)),)


class PromptPreparer:
    """Prepares prompts with one tokenizer, one template and the server's option defaults.

    ``accepted_efforts`` are the reasoning efforts that the template rendered when it was tried, none where
    it cannot be tried; others are replaced by the nearest.
    """

    def __init__(
        self, tokenizer: Tokenizer, template: ChatTemplate, defaults: TemplateOptions | None = None
    ) -> None:
        """Renders a one-message chat once per effort.

        Errors: ``ArtifactError`` for a template whose control tokens cannot be told from input.
        """
        limits = spec.document("prompt")["cache"]
        self._tokenizer = tokenizer
        self._template = template
        self._defaults = TemplateOptions() if defaults is None else defaults
        self._splitter = Units(tokenizer.control_pattern, tokenizer.control_tokens)
        self._single = {
            index: np.array([index], dtype=np.int32) for index in tokenizer.control_tokens.values()
        }
        self._segments = SegmentCache(tokenizer.encode_ordinary, limits["segment_bytes"])
        self._history = History(limits["conversations"], limits["conversation_bytes"])
        self._positions = TextPositions()
        self._frontiers = FrontierFinder(tokenizer)
        efforts: list[str] = spec.document("prompt")["options"]["reasoning_efforts"]
        self.accepted_efforts = tuple(effort for effort in efforts if self._renders(effort))

    def prepare(self, conversation: Conversation) -> PreparedPrompt:
        """The prompt of a conversation; a final assistant message is continued in place if it says so.

        Shapes: see ``PreparedPrompt``; its arrays are read-only.
        Errors: ``RequestError``: ``invalid_prompt`` (param ``messages``) with the template's own words or for
        a continuation that is not allowed; ``conflicting_template_option``, ``invalid_type`` and
        ``invalid_value`` for options and lone surrogates; ``vision_disabled`` for media.
        """
        options = resolve_options(conversation.options, self._defaults, self.accepted_efforts)
        messages, tag = conversation.messages, None
        if conversation.continues_final:
            messages, tag = open_final_message(messages, options.thinking_refused)
        variables = {
            **options.variables,
            "tools": [tool.definition for tool in conversation.tools] or None,
            "add_generation_prompt": tag is None,
            "continue_final_message": tag is not None,
        }
        keys = message_keys(messages)
        earlier, shared = self._history.find(variables, keys)
        _refuse_media(messages, shared)
        rendering = self._render(messages, variables, earlier, shared)
        text = rendering.collector.text()
        if tag is not None:
            cut = _cut(rendering, joined(text), tag)
            text = ((cut, len(cut)),)
        try:
            arrays = self._arrays(rendering.collector.units)
        except ValueError as error:
            path = find_surrogate(conversation)
            raise RequestError("invalid_value", f"{path} holds a lone surrogate", path) from error
        base = earlier.offsets[rendering.skipped] if earlier is not None and rendering.skipped else 0
        tokens = _joined(earlier, base, arrays)
        offsets: list[int] = []
        if rendering.record is not None:
            offsets = _offsets(rendering.record, rendering.skipped, earlier, base, arrays)
            made = rendering.source.made
            self._history.add(
                RenderedConversation(variables, keys, made, rendering.record, offsets, tokens, text),
                earlier if earlier and shared == len(earlier.keys) else None,
            )
        channel = self._initial_channel(tokens)
        frontiers = self._frontiers.find(conversation, tokens, offsets)
        positions = self._positions(len(tokens))
        return PreparedPrompt(tokens, positions, channel, channel == "reasoning", text, frontiers)

    def _render(
        self,
        messages: tuple[Message, ...],
        variables: Mapping[str, Any],
        earlier: RenderedConversation | None = None,
        shared: int = 0,
    ) -> Rendering:
        rendering = Rendering(Collector(self._splitter), messages, earlier, shared)
        self._template.render(rendering, variables)
        return rendering

    def _arrays(self, units: Sequence[Unit]) -> list[TokenArray]:
        encoded = iter(self._segments.encode([unit for unit in units if isinstance(unit, str)]))
        return [next(encoded) if isinstance(unit, str) else self._single[unit] for unit in units]

    def _initial_channel(self, tokens: TokenArray) -> Channel:
        """``reasoning`` iff the last turn is an assistant's, open, and begins with an open think block."""
        control = self._tokenizer.control_tokens
        tail = _after_last(tokens, control.get("<|im_start|>", -1))
        header = self._segments.encode(["assistant\n"])[0]
        if tail is None or not np.array_equal(tail[: len(header)], header):
            return "content"
        inside = tail[len(header) :]
        opens = len(inside) > 0 and inside[0] == control.get("<think>", -1)
        closing = {control.get("</think>"), control.get("<|im_end|>")}
        return "reasoning" if opens and closing.isdisjoint(inside.tolist()) else "content"

    def _renders(self, effort: str) -> bool:
        """Whether the template takes this effort on a one-message chat."""
        variables = {"tools": None, "add_generation_prompt": True, "continue_final_message": False}
        try:
            rendering = self._render(_PROBE, {**variables, "reasoning_effort": effort})
        except RequestError:
            return False
        spelled = self._tokenizer.control_pattern.findall(joined(rendering.collector.text()))
        if len(spelled) != sum(isinstance(unit, int) for unit in rendering.collector.units):
            raise ArtifactError(
                self._template.name,
                f"makes control tokens ({', '.join(sorted(set(spelled)))}) by an operation through which "
                "template text cannot be told from input; write them as plain template text",
            )
        return True


def _refuse_media(messages: Sequence[Message], known: int) -> None:
    for index in range(known, len(messages)):
        if any(isinstance(part, MediaPart) for part in messages[index].parts):
            path = f"messages[{index}].content"
            raise RequestError("vision_disabled", f"{path} holds media, but vision is not enabled", path)


def _joined(earlier: RenderedConversation | None, base: int, arrays: list[TokenArray]) -> TokenArray:
    taken_over = [earlier.tokens[:base]] if earlier is not None and base else []
    tokens = np.concatenate([*taken_over, *arrays])
    tokens.flags.writeable = False  # the history shares it
    return tokens


def _offsets(
    record: LoopRecord,
    start: int,
    earlier: RenderedConversation | None,
    base: int,
    arrays: list[TokenArray],
) -> list[int]:
    """Tokens up to the last control token before each boundary; before ``start`` the earlier ones."""
    totals = np.cumsum([0, *map(len, arrays)]).tolist()
    offsets = list(earlier.offsets[:start]) if earlier is not None and start else []
    for boundary in record.boundaries[start:]:
        offsets.append(0 if boundary.mark is None else base + totals[boundary.mark.units])
    return offsets


def _cut(rendering: Rendering, text: str, tag: str) -> str:
    """End a rendering at the message to continue; returns its text."""
    cut_at(rendering.collector.units, tag)
    if text.count(tag) > 1:
        rendering.record = None  # the template used the message twice: its marks are off by a tag
    text = text[: text.rindex(tag)].replace(tag, "")
    if rendering.record is not None:
        rendering.record.drop_after(len(text))
    return text


def _after_last(tokens: TokenArray, token_id: int) -> TokenArray | None:
    """What follows the last ``token_id``, looking at ever more of the end; None without one."""
    window = 64
    while True:
        found = np.flatnonzero(tokens[-window:] == token_id)
        if len(found):
            return tokens[max(len(tokens) - window, 0) + int(found[-1]) + 1 :]
        if window >= len(tokens):
            return None
        window *= 8
