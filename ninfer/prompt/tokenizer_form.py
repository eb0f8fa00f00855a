"""What a tokenizer's two files must say, and the merged list of added tokens.

Owns the checks of ``tokenizer.json`` and ``tokenizer_config.json`` against ``spec/prompt.yaml``; every
refusal is an ``ArtifactError`` that names the member. Encoding stands in ``tokenizer.py``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ninfer import spec
from ninfer.errors import ArtifactError
from ninfer.prompt import byte_alphabet

_FILE = "tokenizer.json"
_CONFIG = "tokenizer_config.json"
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized")


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token whose text is matched whole before BPE; ``special`` ones never show in answers."""

    id: int
    text: str
    special: bool


@dataclass(frozen=True, slots=True)
class TokenizerForm:
    """``document`` is tokenizer.json, ``base`` its vocabulary (text → id, ids 0..n-1), ``added`` by id."""

    document: Mapping[str, Any]
    base: Mapping[str, int]
    added: tuple[AddedToken, ...]

    @property
    def split_pattern(self) -> str:
        """The pre-tokenizer's regular expression."""
        return str(self.document["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"])


def read_form(tokenizer_json: bytes, tokenizer_config: bytes) -> TokenizerForm:
    """Check both files and merge their added tokens.

    Errors: ``ArtifactError`` naming the member that is wrong.
    Source: ``spec/prompt.yaml`` ``tokenizer``.
    """
    document = json_object(_FILE, tokenizer_json)
    config = json_object(_CONFIG, tokenizer_config)
    base = _base_vocabulary(document)
    _check_pipeline(document)
    _check_config(config)
    added = _merge(_added_of_file(document), _added_of_config(config))
    _check_domain(base, added)
    return TokenizerForm(document, base, added)


def json_object(name: str, content: bytes) -> dict[str, Any]:
    """A resource's JSON object. Errors: ``ArtifactError`` naming the file."""
    try:
        value = json.loads(content.decode("utf-8"))
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise ArtifactError(name, f"is not UTF-8 JSON: {error}") from error
    if not isinstance(value, dict):
        raise ArtifactError(name, "must hold a JSON object")
    return value


def _base_vocabulary(document: Mapping[str, Any]) -> dict[str, int]:
    model = document.get("model")
    kind = spec.document("prompt")["tokenizer"]["model"]
    if not isinstance(model, dict) or model.get("type", kind) != kind:
        raise ArtifactError(f"{_FILE} model.type", f"must be {kind}")
    for member in ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(member):
            raise ArtifactError(f"{_FILE} model.{member}", f"must be absent or null, not {model[member]!r}")
    for member in ("byte_fallback", "ignore_merges"):
        if model.get(member):
            raise ArtifactError(f"{_FILE} model.{member}", "must be false")
    vocab = model.get("vocab")
    if not isinstance(vocab, dict) or not all(type(index) is int for index in vocab.values()):
        raise ArtifactError(f"{_FILE} model.vocab", "must map token text to integer ids")
    return vocab


def _check_pipeline(document: Mapping[str, Any]) -> None:
    rules = spec.document("prompt")["tokenizer"]
    for member in ("truncation", "padding"):
        if document.get(member) is not None:
            raise ArtifactError(f"{_FILE} {member}", "must be null")
    for member in ("normalizer", "decoder"):
        value = document.get(member)
        if not isinstance(value, dict) or value.get("type") != rules[member]:
            raise ArtifactError(f"{_FILE} {member}", f"must be {rules[member]}")
    # ByteLevel as a post-processor moves offsets only, never ids.
    post = document.get("post_processor")
    if post is not None and (not isinstance(post, dict) or post.get("type") != "ByteLevel"):
        raise ArtifactError(f"{_FILE} post_processor", "must be null or ByteLevel")
    _check_pre_tokenizer(document.get("pre_tokenizer"))


def _check_pre_tokenizer(value: Any) -> None:
    try:
        split, byte_level = value["pretokenizers"]
        right = (
            value["type"] == "Sequence"
            and split["type"] == "Split"
            and split["behavior"] == "Isolated"
            and split.get("invert", False) is False
            and isinstance(split["pattern"]["Regex"], str)
            and byte_level["type"] == "ByteLevel"
            and byte_level.get("add_prefix_space") is False
            and byte_level.get("use_regex") is False
        )
    except (TypeError, KeyError, ValueError):
        right = False
    if not right:
        raise ArtifactError(
            f"{_FILE} pre_tokenizer",
            "must be Split (Regex, Isolated), then ByteLevel without prefix space or own regex",
        )


def _check_config(config: Mapping[str, Any]) -> None:
    for member in ("add_bos_token", "add_prefix_space"):
        if config.get(member):
            raise ArtifactError(f"{_CONFIG} {member}", f"must be false, not {config[member]!r}")
    pad = token_text(config.get("pad_token"))
    expected = spec.document("prompt")["tokenizer"]["pad_token"]
    if pad is not None and pad != expected:
        raise ArtifactError(f"{_CONFIG} pad_token", f"must be {expected!r}, not {pad!r}")


def token_text(value: Any) -> str | None:
    """A special token of tokenizer_config.json, which is its text or an object that holds it."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _added_of_file(document: Mapping[str, Any]) -> list[AddedToken]:
    entries = document.get("added_tokens", [])
    if not isinstance(entries, list):
        raise ArtifactError(f"{_FILE} added_tokens", "must be an array")
    return [_added(f"{_FILE} added_tokens[{i}]", entry, None) for i, entry in enumerate(entries)]


def _added_of_config(config: Mapping[str, Any]) -> list[AddedToken]:
    entries = config.get("added_tokens_decoder", {})
    if not isinstance(entries, dict):
        raise ArtifactError(f"{_CONFIG} added_tokens_decoder", "must be an object")
    return [_added(f"{_CONFIG} added_tokens_decoder.{key}", entry, key) for key, entry in entries.items()]


def _added(where: str, entry: Any, key: str | None) -> AddedToken:
    if not isinstance(entry, dict):
        raise ArtifactError(where, "must be an object")
    text = entry.get("content")
    if not isinstance(text, str) or not text:
        raise ArtifactError(f"{where}.content", "must be nonempty text")
    if key is None:
        index = entry.get("id")
    else:
        index = int(key) if key.isascii() and key.isdigit() else None
    if type(index) is not int or index < 0:
        raise ArtifactError(where, "must have a nonnegative integer id")
    for flag in _FLAGS:
        if entry.get(flag):
            raise ArtifactError(f"{where}.{flag}", "must be false")
    return AddedToken(index, text, bool(entry.get("special")))


def _merge(of_file: list[AddedToken], of_config: list[AddedToken]) -> tuple[AddedToken, ...]:
    by_id: dict[int, AddedToken] = {}
    for source, tokens in ((_FILE, of_file), (_CONFIG, of_config)):
        for token in tokens:
            known = by_id.setdefault(token.id, token)
            if known != token:
                raise ArtifactError(
                    f"{source} added token {token.id}",
                    f"is {token.text!r}, but {known.text!r} elsewhere"
                    if known.text != token.text
                    else "is special in one place and not in another",
                )
    merged = tuple(by_id[index] for index in sorted(by_id))
    texts: dict[str, int] = {}
    for token in merged:
        if texts.setdefault(token.text, token.id) != token.id:
            raise ArtifactError(f"{_FILE} added token {token.id}", f"repeats {token.text!r}")
    return merged


def _check_domain(base: Mapping[str, int], added: tuple[AddedToken, ...]) -> None:
    if sorted(base.values()) != list(range(len(base))):
        raise ArtifactError(f"{_FILE} model.vocab", f"ids must be 0..{len(base) - 1}, each once")
    lacking = byte_alphabet.BYTE_OF.keys() - base.keys()
    if lacking:
        raise ArtifactError(f"{_FILE} model.vocab", f"lacks {len(lacking)} of the 256 single bytes")
    for expected, token in enumerate(added, start=len(base)):
        if token.id != expected:
            raise ArtifactError(
                f"{_FILE} added token {token.id}", f"ids must go on without a gap: {expected} is missing"
            )
        if token.text in base:
            raise ArtifactError(f"{_FILE} added token {token.id}", f"{token.text!r} is in model.vocab too")
