"""Builds the small test tokenizer: byte-level BPE in the Qwen form, with its template and stop ids.

Owns the four text resources of a checkpoint directory for tests. The ids, merges and files are the same
on every run: the corpus stands below and the trainer breaks ties by id.
"""

from __future__ import annotations

import functools
import json
import string
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from ninfer.spec import document

_WORDS = """
the of and to a in is it you that he was for on are with as his they be at one have this from or had by
hot word but what some we can out other were all there when up use your how said an each she which do
their time if will way about many then them write would like so these her long make thing see him two has
look more day could go come did number sound no most people my over know water than call first who may
down side been now find any new work part take get place made live where after back little only round man
year came show every good me give our under name very through just form sentence great think say help low
line differ turn cause much mean before move right boy old too same tell does set three want air well
also play small end put home read hand port large spell add even land here must big high such follow act
why ask men change went light kind off need house picture try us again animal point mother world near
build self earth father head stand own page should country found answer
"""


@functools.cache
def tokenizer_files(vocabulary: int = 512) -> Mapping[str, bytes]:
    """File name → content of the four resources; ``vocabulary`` counts every id, control tokens included."""
    markup = [line.strip() for line in template_source().splitlines()]
    corpus = [_WORDS * 4, *markup, *string.printable]
    base = train(corpus, vocabulary)
    return resources(base)


def write_tokenizer(directory: Path, vocabulary: int = 512) -> Path:
    """Write tokenizer.json, tokenizer_config.json, chat_template.jinja and generation_config.json."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in tokenizer_files(vocabulary).items():
        (directory / name).write_bytes(content)
    return directory


def template_source() -> str:
    """The maintained chat template's text."""
    return files("ninfer.prompt").joinpath("templates/qwen3_8.jinja").read_text(encoding="utf-8")


def train(corpus: Iterable[str], vocabulary: int) -> Tokenizer:
    """A byte-level BPE tokenizer with Qwen's normaliser, split and decoder and no added tokens.

    ``vocabulary`` is the whole token domain, so the base holds that many ids less the control tokens.
    """
    rules = document("prompt")["tokenizer"]
    base_size = vocabulary - len(rules["control_tokens"])
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if base_size < len(alphabet):
        raise ValueError(f"vocabulary {vocabulary} cannot hold 256 bytes and the control tokens")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(rules["split"]), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=base_size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(corpus, trainer)
    if tokenizer.get_vocab_size() != base_size:
        raise ValueError(f"the corpus yields only {tokenizer.get_vocab_size()} of {base_size} entries")
    return tokenizer


def resources(base: Tokenizer) -> dict[str, bytes]:
    """The four resource files of a base tokenizer, with control tokens placed as Qwen places them."""
    added = _added_tokens(base.get_vocab_size())
    form = json.loads(base.to_str())
    form["added_tokens"] = [entry for entry in added if not entry["config_only"]]
    for entry in form["added_tokens"]:
        del entry["config_only"]
    ids = {entry["content"]: entry["id"] for entry in added}
    return {
        "tokenizer.json": _json(form),
        "tokenizer_config.json": _json(_tokenizer_config(base.get_vocab_size())),
        "chat_template.jinja": template_source().encode(),
        "generation_config.json": _json(
            {
                "eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]],
                "pad_token_id": ids["<|endoftext|>"],
            }
        ),
    }


def _tokenizer_config(base_size: int) -> dict[str, Any]:
    decoder = {}
    for entry in _added_tokens(base_size):
        del entry["config_only"]
        decoder[str(entry.pop("id"))] = entry
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": decoder,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 262144,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }


def _added_tokens(base_size: int) -> list[dict[str, Any]]:
    return [
        {
            "id": base_size + index,
            "content": token["text"],
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": token["special"],
            "config_only": token.get("config_only", False),
        }
        for index, token in enumerate(document("prompt")["tokenizer"]["control_tokens"])
    ]


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, indent=1).encode()
