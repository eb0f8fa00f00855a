"""Frontend files: found, checked, completed aloud."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from ninfer.convert.checkpoint import Checkpoint
from ninfer.convert.resources import Resources, text_resources
from ninfer.errors import CheckpointError
from tests.convert.checkpoints import frontend_files

EOS, END_OF_TEXT = 295, 294
TEMPLATE, GENERATION = "chat_template.jinja", "generation_config.json"


class Folder:
    """A checkpoint directory whose frontend files a test edits."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config: dict[str, Any] = {}
        self.files: dict[str, Any] = frontend_files(300)
        save_file({"a": torch.ones(1)}, path / "model.safetensors")

    def resources(self, chat_template: Path | None = None) -> Resources:
        """What the converter would embed."""
        for name, content in {"config.json": self.config, **self.files}.items():
            data = (
                content
                if isinstance(content, bytes)
                else content.encode()
                if isinstance(content, str)
                else None
            )
            (self.path / name).write_bytes(json.dumps(content).encode() if data is None else data)
        with Checkpoint(self.path) as checkpoint:
            return text_resources(checkpoint, 300, chat_template)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    return Folder(tmp_path)


def test_complete_files_are_embedded_byte_for_byte_without_notes(folder: Folder) -> None:
    found = folder.resources()
    assert list(found.files) == ["tokenizer.json", "tokenizer_config.json", TEMPLATE, GENERATION]
    assert found.notes == ()
    for role, content in found.files.items():
        assert content == (folder.path / role).read_bytes()


def test_a_named_template_replaces_the_checkpoints(folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "mine.jinja").write_text("mine")
    found = folder.resources(tmp_path / "mine.jinja")
    assert found.files[TEMPLATE] == b"mine"
    assert found.notes == (f"{TEMPLATE}: taken from {tmp_path / 'mine.jinja'}",)


@pytest.mark.parametrize(
    ("name", "member"),
    [
        ("tokenizer_config.json", "text – ü"),
        (
            "tokenizer_config.json",
            [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "text – ü"}],
        ),
        ("chat_template.json", "text – ü"),
    ],
)
def test_older_exports_keep_the_template_as_a_member(folder: Folder, name: str, member: Any) -> None:
    del folder.files[TEMPLATE]
    folder.files[name] = {**folder.files.get(name, {}), "chat_template": member}
    found = folder.resources()
    assert found.files[TEMPLATE].decode() == "text – ü"
    assert found.notes == (f"{TEMPLATE}: taken from {name}'s chat_template member",)


def test_no_template_at_all_asks_for_one(folder: Folder) -> None:
    del folder.files[TEMPLATE]
    with pytest.raises(CheckpointError, match="--chat-template"):
        folder.resources()


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_missing_tokenizer_file_is_named(folder: Folder, name: str) -> None:
    del folder.files[name]
    with pytest.raises(CheckpointError, match=f"{name}: missing"):
        folder.resources()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", b"", "tokenizer.json: empty"),
        ("tokenizer.json", b"[]", "tokenizer.json: must hold a JSON object"),
        ("tokenizer.json", b"{", "tokenizer.json: not JSON"),
        ("tokenizer.json", {"model": {}}, "tokenizer.json: model.vocab or added_tokens is malformed"),
        (
            "tokenizer.json",
            {"model": {"vocab": {"a": "x"}}},
            "tokenizer.json: model.vocab or added_tokens is malformed",
        ),
        (
            "tokenizer.json",
            {"model": {"vocab": {"a": 300}}},
            "token id 300 is not below config.json's vocab_size 300",
        ),
        ("tokenizer.json", {"model": {"vocab": {"a": -1}}}, "token id -1"),
        (
            "tokenizer.json",
            {"model": {"vocab": {}}, "added_tokens": [{"id": 1}]},
            "tokenizer.json: .* malformed",
        ),
        ("tokenizer_config.json", {"added_tokens_decoder": {"300": {"content": "x"}}}, "token id 300"),
        (
            "tokenizer_config.json",
            {"added_tokens_decoder": {"x": {}}},
            "tokenizer_config.json: added_tokens_decoder",
        ),
        (TEMPLATE, b"\xff\xfe", "chat_template.jinja: not UTF-8 at byte 0"),
        (TEMPLATE, b"", "chat_template.jinja: empty"),
        (TEMPLATE, b"x" * (16 * 1024 * 1024 + 1), "at most 16777216 are allowed"),
        (GENERATION, b"5", "generation_config.json: must hold a JSON object"),
    ],
)
def test_a_file_that_cannot_serve_is_refused(folder: Folder, name: str, content: Any, message: str) -> None:
    folder.files[name] = content
    with pytest.raises(CheckpointError, match=message):
        folder.resources()


@pytest.mark.parametrize("form", ["text", "object"])
def test_absent_stop_ids_come_from_tokenizer_and_config_aloud(folder: Folder, form: str) -> None:
    del folder.files[GENERATION]
    if form == "object":
        folder.files["tokenizer_config.json"]["eos_token"] = {"content": "<|im_end|>", "lstrip": False}
    folder.config = {"eos_token_id": EOS, "text_config": {"eos_token_id": END_OF_TEXT}}
    found = folder.resources()
    assert json.loads(found.files[GENERATION]) == {"eos_token_id": [EOS, END_OF_TEXT]}
    origin = "taken from tokenizer_config.json and config.json"
    assert found.notes == (f"{GENERATION}: is absent; stop ids [{EOS}, {END_OF_TEXT}] {origin}",)


def test_a_generation_config_without_stop_ids_keeps_its_other_members(folder: Folder) -> None:
    folder.files[GENERATION] = {"top_k": 20, "eos_token_id": None}
    found = folder.resources()
    assert json.loads(found.files[GENERATION]) == {"top_k": 20, "eos_token_id": [EOS]}
    assert "lacks eos_token_id" in found.notes[0]


def test_an_end_token_that_only_the_decoder_knows_is_found(folder: Folder) -> None:
    del folder.files[GENERATION]
    folder.files["tokenizer_config.json"]["eos_token"] = "<|audio_pad|>"
    assert json.loads(folder.resources().files[GENERATION]) == {"eos_token_id": [296]}


def test_no_stop_id_anywhere_is_refused(folder: Folder) -> None:
    del folder.files[GENERATION]
    del folder.files["tokenizer_config.json"]["eos_token"]
    with pytest.raises(CheckpointError, match="names no eos_token_id"):
        folder.resources()
