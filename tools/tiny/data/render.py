"""Documents as text in the chat template's form, prompt and answer parts kept apart.

The template is not run for each document (it would cost more than everything else): its fixed texts are read
off by rendering probes once, and a test holds the result token for token against ``ninfer.prompt``.
"""

from __future__ import annotations

import functools
import json
from importlib.resources import files
from typing import Any

import jinja2
from jinja2.ext import loopcontrols

from tools.tiny.data.documents import Document
from tools.tiny.data.exchange import Exchange

# A piece of rendered text and whether the model writes it (answers) or reads it (prompts).
Segment = tuple[str, bool]

_PROBE_SYSTEM, _PROBE_TOOL, _PROBE_USER = "@system@", "@tool@", "@user@"


def segments(document: Document) -> list[Segment]:
    """The whole conversation: every answer with its thoughts and its end-of-turn token is the model's."""
    thinking = document.effort is not None
    parts: list[Segment] = []
    prompt = _opening(document)
    last = _last_query(document)
    for index, exchange in enumerate(document.exchanges):
        prompt += _question(exchange) + "<|im_start|>assistant\n"
        shown = document.preserve or index >= last
        if shown:
            prompt += "<think>\n" + ("" if thinking else "\n</think>\n\n")
        reasoning = (
            f"{exchange.thought.text(document.effort or '')}\n</think>\n\n" if thinking and shown else ""
        )
        parts.append((prompt, False))
        parts.append((reasoning + content(exchange) + "<|im_end|>", shown))
        prompt = "\n"
    return parts


def prompt_text(document: Document) -> str:
    """What stands before the last answer."""
    return "".join(text for text, _ in segments(document)[:-1])


def content(exchange: Exchange) -> str:
    """An answer without its thoughts: text, then calls."""
    calls = "\n".join(_call(call.name, call.arguments) for call in exchange.calls)
    return "\n\n".join(part for part in (exchange.answer, calls) if part)


def _call(name: str, arguments: dict[str, Any]) -> str:
    given = "".join(
        f"<parameter={key}>\n{value if isinstance(value, str) else to_json(value)}\n</parameter>\n"
        for key, value in arguments.items()
    )
    return f"<tool_call>\n<function={name}>\n{given}</function>\n</tool_call>"


def _question(exchange: Exchange) -> str:
    if exchange.results:
        told = "".join(f"\n<tool_response>\n{result}\n</tool_response>" for result in exchange.results)
        return f"<|im_start|>user{told}<|im_end|>\n"
    return f"<|im_start|>user\n{exchange.user.strip()}<|im_end|>\n"


def _last_query(document: Document) -> int:
    return max(i for i, exchange in enumerate(document.exchanges) if not exchange.results)


def _opening(document: Document) -> str:
    frame = _frame(document.effort, bool(document.tools), bool(document.system))
    declared = "\n".join(to_json(tool) for tool in document.tools)
    return frame.replace(_PROBE_TOOL, declared).replace(_PROBE_SYSTEM, document.system)


@functools.cache
def _frame(effort: str | None, tools: bool, system: bool) -> str:
    """The system turn of the template for one mode, with places for tools and the user's system text."""
    messages = [{"role": "user", "content": _PROBE_USER}]
    if system:
        messages.insert(0, {"role": "system", "content": _PROBE_SYSTEM})
    options: dict[str, Any] = {"enable_thinking": False} if effort is None else {"reasoning_effort": effort}
    text = _template().render(messages=messages, tools=[_PROBE_TOOL] if tools else None, **options)
    return text[: text.index("<|im_start|>user")].replace(f'"{_PROBE_TOOL}"', _PROBE_TOOL)


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = to_json
    return environment.from_string(template_source())


def template_source() -> str:
    """The maintained chat template."""
    return files("ninfer").joinpath("prompt/templates/qwen3_8.jinja").read_text(encoding="utf-8")


def to_json(value: Any) -> str:
    """JSON as the template writes it."""
    return json.dumps(value, ensure_ascii=False)
