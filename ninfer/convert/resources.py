"""The frontend files an artifact embeds: found in the checkpoint, checked, and completed where the format
asks for it.

Owns which file serves which role and every substitution made for one that is absent; each substitution is
a note for the user and the provenance, never silent. Knows nothing of templates or tokenizers beyond what
must agree with config.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ninfer import spec
from ninfer.convert.checkpoint import Checkpoint
from ninfer.errors import CheckpointError

TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
TEMPLATE, GENERATION = "chat_template.jinja", "generation_config.json"


@dataclass(frozen=True, slots=True)
class Resources:
    """The text component's files by role, in object order, and what was substituted."""

    files: Mapping[str, bytes]
    notes: tuple[str, ...]


def text_resources(checkpoint: Checkpoint, vocabulary: int, chat_template: Path | None = None) -> Resources:
    """Every resource of the text component.

    ``chat_template`` replaces the checkpoint's template; ``vocabulary`` is the number of embedding rows.
    Errors: ``CheckpointError`` naming the file that is missing, empty, not UTF-8, not an object or
    inconsistent.
    """
    roles = spec.document("convert")["resources"]
    found: dict[str, bytes | None] = {
        role: _first(checkpoint.directory, row["from"]) for role, row in roles.items()
    }
    for role in (TOKENIZER, TOKENIZER_CONFIG):
        if found[role] is None:
            raise CheckpointError(f"{checkpoint.directory / role}: missing")
    notes: list[str] = []
    if chat_template is not None:
        found[TEMPLATE] = _read(chat_template)
        notes.append(f"{TEMPLATE}: taken from {chat_template}")
    elif found[TEMPLATE] is None:
        found[TEMPLATE], note = _template_elsewhere(checkpoint)
        notes.append(note)
    files = {
        role: _checked(role, content, roles[role]) for role, content in found.items() if content is not None
    }
    tokens = _tokens(files)
    _check_ids(tokens, vocabulary)
    generation, note = _generation(checkpoint, files, tokens)
    if note:
        notes.append(note)
    files[GENERATION] = generation
    return Resources({role: files[role] for role in roles}, tuple(notes))


def _first(directory: Path, names: list[str]) -> bytes | None:
    for name in names:
        if (directory / name).is_file():
            return _read(directory / name)
    return None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from error


def _checked(role: str, content: bytes, row: Mapping[str, Any]) -> bytes:
    if not content:
        raise CheckpointError(f"{role}: empty")
    if len(content) > row.get("max_bytes", len(content)):
        raise CheckpointError(f"{role}: {len(content)} bytes; at most {row['max_bytes']} are allowed")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{role}: not UTF-8 at byte {error.start}") from error
    if row["json"]:
        _object(role, text)
    return content


def _object(role: str, text: str | bytes) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except ValueError as error:
        raise CheckpointError(f"{role}: not JSON: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{role}: must hold a JSON object")
    return content


def _template_elsewhere(checkpoint: Checkpoint) -> tuple[bytes, str]:
    """Older exports keep the template as a JSON member: one text, or a list of named ones."""
    for name in ("chat_template.json", TOKENIZER_CONFIG):
        if not (checkpoint.directory / name).is_file():
            continue
        template = checkpoint.json_file(name).get("chat_template")
        if isinstance(template, list):
            named = {row.get("name"): row.get("template") for row in template if isinstance(row, dict)}
            template = named.get("default")
        if isinstance(template, str) and template:
            return template.encode(), f"{TEMPLATE}: taken from {name}'s chat_template member"
    raise CheckpointError(
        f"{checkpoint.directory / TEMPLATE}: missing, and {TOKENIZER_CONFIG} has no chat_template; "
        "name one with --chat-template"
    )


def _check_ids(tokens: Mapping[int, str], vocabulary: int) -> None:
    """Every token has an embedding row."""
    lowest, highest = min(tokens, default=-1), max(tokens, default=-1)
    if lowest < 0 or highest >= vocabulary:
        wrong = lowest if lowest < 0 else highest
        raise CheckpointError(
            f"{TOKENIZER}: token id {wrong} is not below config.json's vocab_size {vocabulary}"
        )


def _tokens(files: Mapping[str, bytes]) -> dict[int, str]:
    """Every token by id; the added ones of both files win over base entries."""
    try:
        tokenizer = json.loads(files[TOKENIZER])
        found = {int(number): str(text) for text, number in tokenizer["model"]["vocab"].items()}
        found |= {int(row["id"]): str(row["content"]) for row in tokenizer.get("added_tokens") or []}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{TOKENIZER}: model.vocab or added_tokens is malformed: {error!r}") from error
    try:
        decoder = json.loads(files[TOKENIZER_CONFIG]).get("added_tokens_decoder") or {}
        return found | {int(number): str(row["content"]) for number, row in decoder.items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{TOKENIZER_CONFIG}: added_tokens_decoder is malformed: {error!r}") from error


def _generation(
    checkpoint: Checkpoint, files: Mapping[str, bytes], tokens: Mapping[int, str]
) -> tuple[bytes, str]:
    """``generation_config.json`` with stop ids, which come from tokenizer and config where it names none."""
    content = _object(GENERATION, files[GENERATION]) if GENERATION in files else {}
    if content.get("eos_token_id") not in (None, []):
        return files[GENERATION], ""
    stops = _declared_stops(checkpoint, files, tokens)
    if not stops:
        raise CheckpointError(
            f"{GENERATION}: names no eos_token_id, and neither do config.json and {TOKENIZER_CONFIG}"
        )
    content["eos_token_id"] = stops
    origin = "lacks eos_token_id" if GENERATION in files else "is absent"
    note = f"{GENERATION}: {origin}; stop ids {stops} taken from {TOKENIZER_CONFIG} and config.json"
    return json.dumps(content, ensure_ascii=False, indent=2).encode(), note


def _declared_stops(
    checkpoint: Checkpoint, files: Mapping[str, bytes], tokens: Mapping[int, str]
) -> list[int]:
    """The tokenizer's end token first, then what each level of config.json says: real checkpoints differ
    there.
    """
    token = _object(TOKENIZER_CONFIG, files[TOKENIZER_CONFIG]).get("eos_token")
    end = str(token.get("content") if isinstance(token, dict) else token)
    ids = {text: number for number, text in tokens.items()}
    text_config = checkpoint.config.get("text_config") or {}
    declared = [ids.get(end), checkpoint.config.get("eos_token_id"), text_config.get("eos_token_id")]
    flat = [item for value in declared for item in (value if isinstance(value, list) else [value])]
    return list(dict.fromkeys(item for item in flat if isinstance(item, int) and not isinstance(item, bool)))
