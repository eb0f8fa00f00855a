"""Conversations, tokenizers and preparers for the tests of this folder."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from ninfer.prompt import (
    ChatTemplate,
    Conversation,
    Message,
    PreparedPrompt,
    PromptPreparer,
    TemplateOptions,
    TextPart,
    Tokenizer,
    Tool,
    ToolCall,
)
from tests.support.tokenizer import tokenizer_files

_TYPED = ("enable_thinking", "preserve_thinking", "reasoning_effort", "add_vision_id")


@functools.cache
def tokenizer() -> Tokenizer:
    """The test tokenizer."""
    files = tokenizer_files()
    return Tokenizer.from_resources(files["tokenizer.json"], files["tokenizer_config.json"])


@functools.lru_cache(maxsize=64)
def template(source: str | bytes | None = None) -> ChatTemplate:
    """A template, by default the maintained one; it keeps nothing between renderings."""
    files = tokenizer_files()
    return ChatTemplate(source or files["chat_template.jinja"], files["tokenizer_config.json"])


def preparer(source: str | None = None, **defaults: Any) -> PromptPreparer:
    """A fresh preparer with nothing cached."""
    return PromptPreparer(tokenizer(), template(source), TemplateOptions(**defaults))


def message(entry: Mapping[str, Any]) -> Message:
    """A message from its OpenAI-like dictionary."""
    return Message(
        role=entry["role"],
        parts=(TextPart(entry["content"]),),
        reasoning=entry.get("reasoning_content"),
        tool_calls=tuple(
            ToolCall(call["function"]["name"], call["function"]["arguments"], call.get("id"))
            for call in entry.get("tool_calls", ())
        ),
        tool_call_id=entry.get("tool_call_id"),
    )


def conversation(
    messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None, **options: Any
) -> Conversation:
    """A conversation from OpenAI-like dictionaries; ``options`` beyond the typed ones are kwargs."""
    typed = {name: options.pop(name) for name in _TYPED if name in options}
    return Conversation(
        tuple(map(message, messages)),
        tuple(Tool(tool["function"]["name"], tool) for tool in tools or ()),
        TemplateOptions(**typed, kwargs=options),
    )


def user(text: str) -> dict[str, Any]:
    """A user message."""
    return {"role": "user", "content": text}


def assistant(text: str, reasoning: str | None = None, **more: Any) -> dict[str, Any]:
    """An assistant message."""
    extra = {} if reasoning is None else {"reasoning_content": reasoning}
    return {"role": "assistant", "content": text, **extra, **more}


def control_ids(prompt: PreparedPrompt) -> list[int]:
    """The control tokens of a prompt, in order."""
    known = set(tokenizer().control_tokens.values())
    return [token for token in prompt.tokens.tolist() if token in known]
