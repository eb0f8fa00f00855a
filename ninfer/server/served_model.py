"""The model behind the public name: what the artifact says of it and how prompts are prepared for it.

Owns the facts that HTTP handlers and ``ninfer`` need of an artifact. No weights are read here; the engine
process does that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ninfer.artifact import Artifact, WeightSummary
from ninfer.errors import ArtifactError, OptionError, RequestError
from ninfer.model.config import TextConfig, parse_text_config
from ninfer.output.early_close import early_close_tokens
from ninfer.prompt import ChatTemplate, PromptPreparer, Tokenizer
from ninfer.prompt.conversation import Conversation, TemplateOptions
from ninfer.prompt.copy_sources import Encode
from ninfer.prompt.prepared import PreparedPrompt
from ninfer.server.members import shown

DEMONSTRATION_WARNING = (
    "demonstration model: the small model that ships with NInfer; name an artifact to serve your own"
)


class Preparer(Protocol):
    """Renders and tokenises conversations; safe to call from several threads."""

    def prepare(self, conversation: Conversation) -> PreparedPrompt: ...


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model as this process serves it.

    ``path`` is its artifact. ``created`` is in Unix seconds; ``early_close`` are the ids that end thinking at
    a budget; ``prefill_signature`` names what prefilling costs; ``encode_sources`` makes texts beside the
    prompt to tokens, where answers may be copied from such.
    """

    path: Path
    public_id: str
    config: TextConfig
    weights: WeightSummary
    preparer: Preparer
    token_domain: int
    stop_token_ids: tuple[int, ...]
    max_context: int
    created: int
    early_close: tuple[int, ...]
    prefill_signature: str
    warning: str | None = None
    encode_sources: Encode | None = None


@dataclass(frozen=True, slots=True)
class ModelChoices:
    """What the command line says about the model; None leaves the artifact's own.

    ``copies``: answers may be copied from texts, which are then made of tool results.
    """

    model_id: str | None = None
    chat_template: Path | None = None
    max_context: int = 8192
    template_defaults: TemplateOptions = field(default_factory=TemplateOptions)
    demonstration: bool = False
    copies: bool = False
    early_close_message: str | None = None


def open_served_model(path: Path, choices: ModelChoices) -> ServedModel:
    """Read an artifact's directory and text resources.

    Errors: ``ArtifactError``; ``OptionError`` when ``--max-context`` or ``--chat-template`` does not fit.
    """
    with Artifact.open(path) as artifact:
        config = parse_text_config(artifact.directory.components["text"].config)
        _check_context(choices.max_context, config)
        config_bytes = artifact.resource("text", "tokenizer_config.json")
        tokenizer = Tokenizer.from_resources(artifact.resource("text", "tokenizer.json"), config_bytes)
        return ServedModel(
            path=path,
            public_id=choices.model_id or artifact.public_name,
            config=config,
            weights=artifact.weight_summary(),
            preparer=_preparer(artifact, choices, tokenizer, config_bytes),
            token_domain=tokenizer.vocabulary_size,
            stop_token_ids=_stop_token_ids(artifact.resource("text", "generation_config.json")),
            max_context=choices.max_context,
            created=int(path.stat().st_mtime),
            early_close=early_close_tokens(tokenizer, choices.early_close_message),
            prefill_signature=artifact.prefill_signature(),
            warning=DEMONSTRATION_WARNING if choices.demonstration else None,
            encode_sources=tokenizer.encode_ordinary if choices.copies else None,
        )


def require_model(model: ServedModel, name: str) -> None:
    """Errors: ``RequestError`` ``model_not_found`` unless ``name`` is the public one."""
    if name != model.public_id:
        raise RequestError(
            "model_not_found",
            f"The model {shown(name)} does not exist; this server has {model.public_id!r}.",
            "model",
        )


def _check_context(max_context: int, config: TextConfig) -> None:
    if max_context > config.max_positions:
        raise OptionError(
            "--max-context",
            f"{max_context} exceeds the model's native context of {config.max_positions} tokens",
        )


def _preparer(
    artifact: Artifact, choices: ModelChoices, tokenizer: Tokenizer, tokenizer_config: bytes
) -> PromptPreparer:
    """With the artifact's template, or the one that ``--chat-template`` names."""
    defaults = choices.template_defaults
    if choices.chat_template is None:
        source = artifact.resource("text", "chat_template.jinja")
        return PromptPreparer(tokenizer, ChatTemplate(source, tokenizer_config), defaults)
    path = choices.chat_template
    try:
        template = ChatTemplate(path.read_bytes(), tokenizer_config, path.name)
        return PromptPreparer(tokenizer, template, defaults)
    except OSError as error:
        raise OptionError("--chat-template", f"cannot read {path}: {error.strerror}") from error
    except ArtifactError as error:
        raise OptionError("--chat-template", str(error)) from error


def _stop_token_ids(generation_config: bytes) -> tuple[int, ...]:
    """``eos_token_id`` of generation_config.json: one id or a list. Errors: ``ArtifactError``."""
    where = "components.text generation_config.json"
    try:
        config: Any = json.loads(generation_config)
    except ValueError as error:
        raise ArtifactError(where, f"is not JSON: {error}") from error
    value = config.get("eos_token_id") if isinstance(config, Mapping) else None
    ids = value if isinstance(value, list) else [value]
    if not ids or not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in ids):
        raise ArtifactError(f"{where} eos_token_id", "must be a token id or a list of them")
    return tuple(ids)
