"""One chat template: compiled once, rendered for every prompt.

Owns loading, the variables every template gets and the translation of its failures. Which options a request
may set stands in ``options.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jinja2

from ninfer import spec
from ninfer.errors import ArtifactError, RequestError
from ninfer.prompt.environment import TemplateEnvironment
from ninfer.prompt.provenance import template_text
from ninfer.prompt.rendering import Rendering
from ninfer.prompt.tokenizer_form import json_object, token_text


class ChatTemplate:
    """A Jinja chat template with the special-token variables of its tokenizer."""

    def __init__(
        self, source: str | bytes, tokenizer_config: bytes, name: str = "chat_template.jinja"
    ) -> None:
        """Compile ``source``; ``name`` is what errors call it.

        Errors: ``ArtifactError`` with the line for what Jinja does not accept.
        """
        self.name = name
        self.special_tokens = _special_tokens(json_object("tokenizer_config.json", tokenizer_config))
        text = _decoded(source, name)
        self._environment = TemplateEnvironment()
        try:
            self._template = self._environment.load(text)
        except jinja2.TemplateSyntaxError as error:
            raise ArtifactError(f"{name} line {error.lineno}", str(error.message)) from error
        except (jinja2.TemplateError, RecursionError, ValueError, SyntaxError) as error:
            raise ArtifactError(name, f"cannot be compiled: {error}") from error

    @property
    def replayable(self) -> bool:
        """Whether follow-up turns can skip the iterations that an earlier rendering ran."""
        return self._environment.replayable

    def render(self, rendering: Rendering, variables: Mapping[str, Any]) -> None:
        """Render into ``rendering``'s collector.

        Errors: ``RequestError`` ``invalid_prompt`` with the template's own message.
        """
        self._environment.rendering = rendering
        context = self._template.new_context(
            {**self.special_tokens, **variables, "messages": rendering.messages}
        )
        feed = rendering.collector.feed
        try:
            for piece in self._template.root_render_func(context):
                feed(piece)
        except RequestError:
            raise
        except Exception as error:  # template code can raise anything
            raise RequestError(
                "invalid_prompt", f"The chat template refuses this prompt: {error}", "messages"
            ) from error
        rendering.collector.finish()


def _decoded(source: str | bytes, name: str) -> str:
    limit = spec.document("prompt")["template"]["maximum_bytes"]
    try:
        encoded = source.encode() if isinstance(source, str) else source
        text = encoded.decode()
    except UnicodeError as error:
        raise ArtifactError(name, f"is not UTF-8: {error}") from error
    if len(encoded) > limit:
        raise ArtifactError(name, f"has {len(encoded)} bytes; at most {limit} are allowed")
    return text


def _special_tokens(config: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in spec.document("prompt")["options"]["special_tokens"]:
        value = config.get(name)
        if isinstance(value, list):
            found[name] = [template_text(text) for text in map(token_text, value) if text is not None]
        elif (text := token_text(value)) is not None:
            found[name] = template_text(text)
    return found
