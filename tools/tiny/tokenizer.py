"""The tokenizer of ninfer-tiny: byte-level BPE of 3,584 entries, Qwen's split and control tokens.

    python -m tools.tiny.tokenizer      # trains and writes tools/tiny/tokenizer/

Trained once on the recipe's own data and the standard library; the files are committed, so that every machine
and Python version tokenises alike. Running this again after a change of the data makes another vocabulary and
every earlier checkpoint worthless: do it only before a training from scratch.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from ninfer.spec import document
from tools.tiny.data import corpus
from tools.tiny.data.documents import draw_document
from tools.tiny.data.render import segments, template_source
from tools.tiny.shape import TINY

DIRECTORY = Path(__file__).parent / "tokenizer"
TEMPLATE = "chat_template.jinja"
_DOCUMENTS = 12_000
_SOURCE_CHARACTERS = 3_000_000


def load(directory: Path = DIRECTORY) -> Tokenizer:
    """The trained tokenizer with every control token that training data may hold."""
    return Tokenizer.from_file(str(directory / "tokenizer.json"))


def fingerprint(directory: Path = DIRECTORY) -> str:
    """Names the vocabulary: weights mean nothing under another one, so checkpoints carry it."""
    return hashlib.blake2b((directory / "tokenizer.json").read_bytes(), digest_size=8).hexdigest()


def check_fingerprint(state: dict[str, Any]) -> None:
    """Errors: ValueError where a checkpoint's ``state`` names another vocabulary than the committed one.

    A checkpoint that names none is let through: the first ones did not.
    """
    trained, here = state.get("tokenizer"), fingerprint()
    if trained not in (None, here):
        raise ValueError(f"the checkpoint was trained with tokenizer {trained}, {DIRECTORY} holds {here}")


def train(vocabulary: int, corpus_texts: Iterable[str]) -> dict[str, bytes]:
    """The resource files of a tokenizer of ``vocabulary`` ids in all."""
    rules = document("prompt")["tokenizer"]
    control = rules["control_tokens"]
    base_size = vocabulary - len(control)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(rules["split"]), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=base_size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(corpus_texts, trainer)
    if tokenizer.get_vocab_size() != base_size:
        raise ValueError(f"the corpus yields {tokenizer.get_vocab_size()} entries of {base_size}")
    return _files(json.loads(tokenizer.to_str()), control, base_size)


def _files(form: dict[str, Any], control: list[dict[str, Any]], base_size: int) -> dict[str, bytes]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    entries = [
        ({"id": base_size + i, "content": token["text"], **flags, "special": token["special"]}, token)
        for i, token in enumerate(control)
    ]
    form["added_tokens"] = [entry for entry, token in entries if not token.get("config_only", False)]
    ids = {entry["content"]: entry["id"] for entry, _ in entries}
    added = {str(entry["id"]): {k: v for k, v in entry.items() if k != "id"} for entry, _ in entries}
    config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": TINY.max_positions,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    stops = {"eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]], "pad_token_id": ids["<|endoftext|>"]}
    contents = {"tokenizer.json": form, "tokenizer_config.json": config, "generation_config.json": stops}
    return {name: _json(value) for name, value in contents.items()}


def resources(directory: Path = DIRECTORY) -> dict[str, bytes]:
    """The four files of a checkpoint: the trained ones and the maintained chat template."""
    found = {path.name: path.read_bytes() for path in sorted(directory.glob("*.json"))}
    return {**found, TEMPLATE: template_source().encode()}


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, indent=1).encode()


def training_text(seed: int = 11) -> Iterator[str]:
    """What the vocabulary is counted on: half conversations of the recipe, half source code."""
    rng = random.Random(seed)
    for _ in range(_DOCUMENTS):
        for text, _answer in segments(draw_document(rng)):
            yield from _ordinary(text)
    size = 0
    while size < _SOURCE_CHARACTERS:
        text = corpus.excerpt(rng, "train", 1_500)
        size += len(text)
        yield text


def _ordinary(text: str) -> list[str]:
    """Text between control tokens."""
    pieces = [text]
    for token in document("prompt")["tokenizer"]["control_tokens"]:
        pieces = [part for piece in pieces for part in piece.split(token["text"])]
    return [piece for piece in pieces if piece]


def main() -> None:
    DIRECTORY.mkdir(exist_ok=True)
    for name, content in train(TINY.vocab, training_text()).items():
        (DIRECTORY / name).write_bytes(content)


if __name__ == "__main__":
    main()
