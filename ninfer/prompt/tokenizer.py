"""Text to token ids and ids to bytes, for one artifact's byte-level BPE.

Owns encoding and the byte table. Ordinary text never becomes a control token: the encoder knows none of
them; whoever holds template text asks for them by id (``control_tokens``).
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers

from ninfer import spec
from ninfer.errors import ArtifactError
from ninfer.prompt import byte_alphabet
from ninfer.prompt.tokenizer_form import TokenizerForm, read_form

TokenArray = npt.NDArray[np.int32]

# Long text is cut into pieces of about this many characters so that the library uses every core.
_PIECE_CHARACTERS = 16384
# Where a token of the known split ends whatever stands around: after a line break before no white space, and
# after a digit. Neither combines with what follows under NFC.
_CUT = re.compile(r"\n(?=\S)|[0-9](?=[ -~])")


class Tokenizer:
    """The token domain ``0..vocabulary_size-1``: base entries, then control tokens."""

    def __init__(self, form: TokenizerForm) -> None:
        """See ``from_resources``. Errors: ``ArtifactError``."""
        self._form = form
        self._cuttable = form.split_pattern == spec.document("prompt")["tokenizer"]["split"]
        self.control_tokens: Mapping[str, int] = {token.text: token.id for token in form.added}
        self.special_ids = frozenset(token.id for token in form.added if token.special)
        self.base_size = len(form.base)
        self.vocabulary_size = self.base_size + len(form.added)
        # Longest first: where several control tokens start at one place, the longest is meant.
        spellings = sorted(self.control_tokens, key=len, reverse=True)
        self.control_pattern = re.compile("|".join(map(re.escape, spellings)) if spellings else r"(?!)")

    @classmethod
    def from_resources(cls, tokenizer_json: bytes, tokenizer_config: bytes) -> Tokenizer:
        """The tokenizer of an artifact's two text resources.

        Errors: ``ArtifactError`` naming the file and member that is wrong.
        Source: ``spec/prompt.yaml`` ``tokenizer``.
        """
        return cls(read_form(tokenizer_json, tokenizer_config))

    def encode(self, text: str, *, control: bool = False) -> list[int]:
        """The ids of ``text``; with ``control`` its control spellings are control tokens (trusted text only).

        Errors: ``ValueError`` where the text holds a lone surrogate.
        """
        if not control:
            ids: list[int] = self.encode_ordinary([text])[0].tolist()
            return ids
        ids = []
        at = 0
        for match in self.control_pattern.finditer(text):
            ids += self.encode(text[at : match.start()])
            ids.append(self.control_tokens[match.group()])
            at = match.end()
        return ids + self.encode(text[at:])

    def encode_ordinary(self, texts: Sequence[str]) -> list[TokenArray]:
        """Each text's ids (int32 [n]); control spellings are plain text.

        Errors: ``ValueError`` where a text holds a lone surrogate.
        """
        pieces: list[str] = []
        counts: list[int] = []
        for text in texts:
            cut = self._pieces(text)
            pieces += cut
            counts.append(len(cut))
        try:
            encodings = self._encoder.encode_batch_fast(pieces, add_special_tokens=False)
        except (TypeError, UnicodeEncodeError) as error:
            raise ValueError("the text holds a lone surrogate") from error
        arrays = [np.array(encoding.ids, dtype=np.int32) for encoding in encodings]
        return _regroup(arrays, counts)

    def _pieces(self, text: str) -> list[str]:
        if len(text) < 2 * _PIECE_CHARACTERS or not self._cuttable:
            return [text]
        pieces = []
        at = 0
        while len(text) - at > _PIECE_CHARACTERS:
            cut = _CUT.search(text, at + _PIECE_CHARACTERS)
            if cut is None:
                break
            pieces.append(text[at : cut.end()])
            at = cut.end()
        return [*pieces, text[at:]]

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to an answer: none for special tokens and unknown ids."""
        table = self._byte_table
        return table[token_id] if 0 <= token_id < len(table) else b""

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of whole prompts, control tokens spelled out; invalid bytes become U+FFFD."""
        spelled = {token.id: token.text.encode() for token in self._form.added}
        return b"".join(spelled.get(i) or self.token_bytes(i) for i in token_ids).decode("utf-8", "replace")

    @functools.cached_property
    def _encoder(self) -> Any:
        document = {**self._form.document, "added_tokens": []}
        try:
            return tokenizers.Tokenizer.from_str(json.dumps(document, ensure_ascii=False))
        except Exception as error:  # the library raises bare Exception
            raise ArtifactError("tokenizer.json", f"cannot be built: {error}") from error

    @functools.cached_property
    def _byte_table(self) -> list[bytes]:
        table = [b""] * self.vocabulary_size
        for text, index in self._form.base.items():
            try:
                table[index] = byte_alphabet.to_bytes(text)
            except KeyError as error:
                raise ArtifactError(
                    f"tokenizer.json model.vocab entry {index}", f"{text!r} is not byte-level text"
                ) from error
        visible = spec.document("prompt")["tokenizer"]["visible"]
        for token in self._form.added:
            if not token.special or token.text in visible:
                table[token.id] = token.text.encode()
        return table


def _regroup(arrays: list[TokenArray], counts: list[int]) -> list[TokenArray]:
    grouped = []
    at = 0
    for count in counts:
        part = arrays[at : at + count]
        grouped.append(part[0] if count == 1 else np.concatenate(part))
        at += count
    return grouped
