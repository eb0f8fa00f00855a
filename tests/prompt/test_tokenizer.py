"""The tokenizer: form checks, ordinary text that stays ordinary, bytes, long text."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from ninfer.errors import ArtifactError
from ninfer.prompt import Tokenizer, byte_alphabet
from ninfer.prompt import tokenizer as tokenizer_module
from ninfer.spec import document
from tests.prompt.building import tokenizer
from tests.support.tokenizer import tokenizer_files

CONTROL = document("prompt")["tokenizer"]["control_tokens"]
SPELLINGS = [token["text"] for token in CONTROL]
TEXT = st.text(max_size=60) | st.lists(
    st.sampled_from(
        [*SPELLINGS, " ", "\n", "\r\n", "é", "e\u0301", "１", "12", "don't", "\u0301", "日本", "\u1e69"]
    )
).map("".join)


def library(added: bool) -> Any:
    """The same file in the ``tokenizers`` library, with all control tokens or with none."""
    form = json.loads(tokenizer_files()["tokenizer.json"])
    form["added_tokens"] = []
    built = tokenizers.Tokenizer.from_str(json.dumps(form))
    if added:
        built.add_tokens([tokenizers.AddedToken(t["text"], normalized=False) for t in CONTROL])
    return built


PLAIN, COMPLETE = library(added=False), library(added=True)


@given(TEXT)
def test_ordinary_text_equals_the_library_without_control_tokens(text: str) -> None:
    ids = tokenizer().encode(text)
    assert ids == PLAIN.encode(text, add_special_tokens=False).ids
    assert all(token < tokenizer().base_size for token in ids)


@given(TEXT)
def test_trusted_text_equals_the_library_with_all_of_them(text: str) -> None:
    assert tokenizer().encode(text, control=True) == COMPLETE.encode(text, add_special_tokens=False).ids


@given(st.lists(TEXT, max_size=5))
def test_a_batch_equals_its_texts(texts: list[str]) -> None:
    assert [array.tolist() for array in tokenizer().encode_ordinary(texts)] == [
        tokenizer().encode(text) for text in texts
    ]


LINES = st.lists(
    st.sampled_from(
        [
            "\n",
            "\r\n",
            " \n",
            "\n\n",
            "\t",
            " ",
            "a b",
            "é",
            "\u0301",
            "!?",
            "12",
            " 3",
            "4\u0338",
            "x5",
            "\u2028",
            "\x1c",
            "\x85",
        ]
    ),
    max_size=60,
).map("".join)


@given(LINES, st.integers(1, 12))
def test_long_text_is_cut_where_no_token_crosses(text: str, size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer_module, "_PIECE_CHARACTERS", size)
        assert tokenizer().encode(text) == PLAIN.encode(text, add_special_tokens=False).ids
        pieces = tokenizer()._pieces(text)
    assert "".join(pieces) == text


@given(st.text())
def test_bytes_of_ids_are_the_normalised_text(text: str) -> None:
    import unicodedata

    ids = tokenizer().encode(text)
    assert b"".join(map(tokenizer().token_bytes, ids)).decode() == unicodedata.normalize("NFC", text)


def test_token_bytes_of_control_tokens() -> None:
    visible = document("prompt")["tokenizer"]["visible"]
    own = tokenizer()
    for token in CONTROL:
        index = own.control_tokens[token["text"]]
        shown = not token["special"] or token["text"] in visible
        assert own.token_bytes(index) == (token["text"].encode() if shown else b"")
        assert (index in own.special_ids) == token["special"]
    assert own.token_bytes(own.vocabulary_size) == own.token_bytes(-1) == b""


def test_control_tokens_follow_the_base_vocabulary_in_their_published_order() -> None:
    own = tokenizer()
    assert list(own.control_tokens) == SPELLINGS
    assert list(own.control_tokens.values()) == list(range(own.base_size, own.vocabulary_size))
    assert own.vocabulary_size == own.base_size + 33
    assert own.control_tokens["</think>"] - own.control_tokens["<|endoftext|>"] == 248069 - 248044


def test_the_byte_alphabet_is_the_library_s() -> None:
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    assert set(byte_alphabet.BYTE_OF) == set(alphabet)
    assert sorted(byte_alphabet.BYTE_OF.values()) == list(range(256))
    for index in range(256):
        character = next(c for c, byte in byte_alphabet.BYTE_OF.items() if byte == index)
        assert PLAIN.token_to_id(character) is not None
        if index < 128:
            assert tokenizer().encode(chr(index)) == [PLAIN.token_to_id(character)]


@pytest.mark.parametrize("text", ["a\ud800", "\udfff", "x" * 40000 + "\n\udc00b" * 3])
def test_lone_surrogates_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="surrogate"):
        tokenizer().encode(text)


@pytest.mark.parametrize(
    "text",
    [unit * 60_000 for unit in ("a", " ", "\n", "ab!", "e\u0301", "a\u0301\u0323")],
    ids=["letters", "spaces", "breaks", "mixed", "composed", "reordered"],
)  # fmt: skip
def test_a_run_without_a_cut_is_encoded_whole(text: str) -> None:
    import unicodedata

    ids = tokenizer().encode(text)
    assert b"".join(map(tokenizer().token_bytes, ids)).decode() == unicodedata.normalize("NFC", text)


Edit = Callable[[dict[str, Any], dict[str, Any]], None]


def set_in(*path: Any, value: Any) -> Edit:
    """Set a member of tokenizer.json, or with a leading "config" of tokenizer_config.json."""

    def edit(document_: dict[str, Any], config: dict[str, Any]) -> None:
        target: Any = config if path[0] == "config" else document_
        for key in path[path[0] == "config" : -1]:
            target = target[key]
        target[path[-1]] = value

    return edit


split_with = functools.partial(set_in, "pre_tokenizer", "pretokenizers", 0)
byte_level_with = functools.partial(set_in, "pre_tokenizer", "pretokenizers", 1)
decoder_with = functools.partial(set_in, "config", "added_tokens_decoder")


def drop_byte(document_: dict[str, Any], config: dict[str, Any]) -> None:
    vocab = document_["model"]["vocab"]
    vocab["zz"] = vocab.pop("!")


def repeat_added(document_: dict[str, Any], config: dict[str, Any]) -> None:
    document_["added_tokens"][1]["content"] = "<|endoftext|>"
    config["added_tokens_decoder"] = {}


def gap(document_: dict[str, Any], config: dict[str, Any]) -> None:
    decoder = config["added_tokens_decoder"]
    decoder.pop(min(decoder, key=int))
    document_["added_tokens"].pop(0)


REJECTIONS: list[tuple[str, Edit, str]] = [
    ("model", set_in("model", "type", value="WordPiece"), "tokenizer.json model.type"),
    ("no model", set_in("model", value=None), "tokenizer.json model.type"),
    ("dropout", set_in("model", "dropout", value=0.1), "tokenizer.json model.dropout"),
    ("prefix", set_in("model", "continuing_subword_prefix", value="##"), "continuing_subword_prefix"),
    ("suffix", set_in("model", "end_of_word_suffix", value="</w>"), "end_of_word_suffix"),
    ("unk", set_in("model", "unk_token", value="<unk>"), "model.unk_token"),
    ("byte fallback", set_in("model", "byte_fallback", value=True), "model.byte_fallback"),
    ("ignore merges", set_in("model", "ignore_merges", value=True), "model.ignore_merges"),
    ("vocab type", set_in("model", "vocab", value=[]), "model.vocab"),
    ("vocab id type", set_in("model", "vocab", "!", value="0"), "model.vocab"),
    ("vocab id twice", set_in("model", "vocab", "!", value=1), "model.vocab"),
    ("byte missing", drop_byte, "model.vocab"),
    ("vocab holds a control token", set_in("model", "vocab", "<think>", value=479), "added token"),
    ("normalizer", set_in("normalizer", value={"type": "NFKC"}), "tokenizer.json normalizer"),
    ("no normalizer", set_in("normalizer", value=None), "tokenizer.json normalizer"),
    ("decoder", set_in("decoder", value={"type": "WordPiece"}), "tokenizer.json decoder"),
    ("truncation", set_in("truncation", value={"max_length": 1}), "tokenizer.json truncation"),
    ("padding", set_in("padding", value={"x": 1}), "tokenizer.json padding"),
    ("post-processor", set_in("post_processor", value={"type": "BertProcessing"}), "post_processor"),
    ("no pre-tokenizer", set_in("pre_tokenizer", value=None), "tokenizer.json pre_tokenizer"),
    ("prefix space", byte_level_with("add_prefix_space", value=True), "pre_tokenizer"),
    ("own regex", byte_level_with("use_regex", value=True), "pre_tokenizer"),
    ("merged split", split_with("behavior", value="Removed"), "pre_tokenizer"),
    ("inverted split", split_with("invert", value=True), "pre_tokenizer"),
    ("string split", split_with("pattern", value={"String": " "}), "pre_tokenizer"),
    ("one pre-tokenizer", set_in("pre_tokenizer", "pretokenizers", value=[]), "pre_tokenizer"),
    ("added list", set_in("added_tokens", value={}), "tokenizer.json added_tokens"),
    ("added entry", set_in("added_tokens", 0, value=7), "tokenizer.json added_tokens[0]"),
    ("added text", set_in("added_tokens", 0, "content", value=""), "added_tokens[0].content"),
    ("added id", set_in("added_tokens", 0, "id", value=-1), "added_tokens[0]"),
    ("added strip", set_in("added_tokens", 2, "lstrip", value=True), "added_tokens[2].lstrip"),
    ("added normalised", set_in("added_tokens", 2, "normalized", value=True), "added_tokens[2].normalized"),
    ("added twice", repeat_added, "added token"),
    ("gap", gap, "added token"),
    ("files disagree", decoder_with("479", "content", value="<x>"), "added token 479"),
    ("flags disagree", decoder_with("479", "special", value=False), "added token 479"),
    ("config key", decoder_with("x", value={"content": "<x>"}), "added_tokens_decoder.x"),
    ("config map", set_in("config", "added_tokens_decoder", value=[]), "added_tokens_decoder"),
    ("bos", set_in("config", "add_bos_token", value=True), "tokenizer_config.json add_bos_token"),
    ("config prefix space", set_in("config", "add_prefix_space", value=True), "add_prefix_space"),
    ("pad", set_in("config", "pad_token", value={"content": "<pad>"}), "tokenizer_config.json pad_token"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("edit", "where"), [case[1:] for case in REJECTIONS], ids=[case[0] for case in REJECTIONS]
)
def test_a_form_that_is_not_understood_is_refused_by_member(edit: Edit, where: str) -> None:
    files = tokenizer_files()
    form, config = (json.loads(files[name]) for name in ("tokenizer.json", "tokenizer_config.json"))
    edit(form, config)
    with pytest.raises(ArtifactError) as caught:
        Tokenizer.from_resources(json.dumps(form).encode(), json.dumps(config).encode())
    assert where in caught.value.where


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_a_file_that_is_no_json_object_is_refused_by_name(content: bytes) -> None:
    files = tokenizer_files()
    with pytest.raises(ArtifactError, match=r"^tokenizer\.json: "):
        Tokenizer.from_resources(content, files["tokenizer_config.json"])
    with pytest.raises(ArtifactError, match=r"^tokenizer_config\.json: "):
        Tokenizer.from_resources(files["tokenizer.json"], content)


@given(st.data())
def test_mutated_files_raise_nothing_but_artifact_errors(data: st.DataObject) -> None:
    files = dict(tokenizer_files())
    name = data.draw(st.sampled_from(["tokenizer.json", "tokenizer_config.json"]))
    content = bytearray(files[name])
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    files[name] = bytes(content)
    try:
        built = Tokenizer.from_resources(files["tokenizer.json"], files["tokenizer_config.json"])
        built.encode("text")
        built.token_bytes(0)
    except ArtifactError:
        pass


def test_members_that_do_not_matter_are_ignored() -> None:
    files = tokenizer_files()
    form = copy.deepcopy(json.loads(files["tokenizer.json"]))
    form["post_processor"] = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }
    config = {
        "model_max_length": 7,
        "added_tokens_decoder": json.loads(files["tokenizer_config.json"])["added_tokens_decoder"],
    }
    built = Tokenizer.from_resources(json.dumps(form).encode(), json.dumps(config).encode())
    assert built.encode("hello") == tokenizer().encode("hello")
