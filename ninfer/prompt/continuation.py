"""Continuing a final assistant message in place.

Owns when that is allowed and how the open end is found in a rendering: a tag at the end of the message shows
where any template, whether it knows of continuations or not, put the end of the text.
"""

from __future__ import annotations

import dataclasses

from ninfer.errors import RequestError
from ninfer.prompt.collector import Unit
from ninfer.prompt.conversation import MediaPart, Message, TextPart

# Noncharacters of Unicode, which text for interchange does not hold.
_TAG = "\ufdd0end of the message to continue\ufdd1"


def open_final_message(
    messages: tuple[Message, ...], thinking_refused: bool
) -> tuple[tuple[Message, ...], str | None]:
    """The messages to render and the tag that ends a final assistant message, None without one.

    Errors: ``RequestError`` ``invalid_prompt`` where the message cannot be continued.
    Source: contract ``serving.md``, messages and templates.
    """
    if not messages or messages[-1].role != "assistant":
        return messages, None
    last = messages[-1]
    if any(isinstance(part, MediaPart) for part in last.parts):
        raise _refused("holds media")
    if last.tool_calls:
        raise _refused("holds complete tool calls; send their results after it")
    if not thinking_refused:
        raise _refused(
            "needs thinking disabled in the request (enable_thinking false or reasoning_effort none)"
        )
    text = "".join(part.text for part in last.parts if isinstance(part, TextPart))
    tag = _TAG
    while tag in text:
        tag += _TAG
    opened = dataclasses.replace(last, parts=(TextPart(text + tag),))
    return (*messages[:-1], opened), tag


def cut_at(units: list[Unit], tag: str) -> None:
    """End the units where the tag last stands, and take out any other that the template made.

    Errors: ``RequestError`` ``invalid_prompt`` where the template dropped the message.
    """
    for index in range(len(units) - 1, -1, -1):
        unit = units[index]
        if isinstance(unit, str) and tag in unit:
            units[index:] = [unit[: unit.rindex(tag)]]
            break
    else:
        raise _refused("is not rendered by the chat template")
    units[:] = [unit.replace(tag, "") if isinstance(unit, str) else unit for unit in units]


def _refused(why: str) -> RequestError:
    return RequestError(
        "invalid_prompt", f"The final assistant message is to be continued, but it {why}.", "messages"
    )
