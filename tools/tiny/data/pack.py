"""Documents as rows of token ids: tokenising in batches, packing whole documents side by side.

A row holds documents that never see each other; no document is cut. Shapes: ``tokens`` [R, T] uint16,
``marks`` [R, T] uint8 (bits below).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from tools.tiny.data.documents import Document, draw_document
from tools.tiny.data.render import segments

# The token is read, is written, begins a document, belongs to a document's last answer. Padding has no bit
# but
# START at its first token: it is a document without weight.
PROMPT, ANSWER, START, FINAL = 1, 2, 4, 8

_BATCH = 128
_SMALLEST = 40  # a row with less room than the shortest documents is full


@dataclass(frozen=True, slots=True)
class Rows:
    """Packed rows; ``documents`` [R, T] int32 numbers the documents, -1 on padding."""

    tokens: npt.NDArray[np.uint16]
    marks: npt.NDArray[np.uint8]
    documents: npt.NDArray[np.int32]


def tokenise(tokenizer: Tokenizer, documents: list[Document]) -> list[tuple[list[int], list[int]]]:
    """Ids and marks of each document."""
    pieces = [segments(document) for document in documents]
    texts = [text for document in pieces for text, _ in document]
    encodings = iter(tokenizer.encode_batch_fast(texts, add_special_tokens=False))
    result = []
    for document in pieces:
        ids: list[int] = []
        marks: list[int] = []
        for _, is_answer in document:
            piece = next(encodings).ids
            ids += piece
            marks += [ANSWER if is_answer else PROMPT] * len(piece)
        marks[0] |= START
        marks[-len(piece) :] = [ANSWER | FINAL] * len(piece)
        result.append((ids, marks))
    return result


def training_rows(tokenizer: Tokenizer, seed: int, rows: int, length: int) -> Rows:
    """``rows`` rows of fresh training documents; the same for the same seed."""
    return pack(_stream(tokenizer, random.Random(seed)), rows, length)


def _stream(tokenizer: Tokenizer, rng: random.Random) -> Iterator[tuple[list[int], list[int]]]:
    while True:
        yield from tokenise(tokenizer, [draw_document(rng) for _ in range(_BATCH)])


def pack(documents: Iterator[tuple[list[int], list[int]]], rows: int, length: int) -> Rows:
    """Fill rows best-fit until all are full or the documents end; documents longer than a row are left
    out.
    """
    tokens = np.zeros((rows, length), np.uint16)
    marks = np.zeros((rows, length), np.uint8)
    numbers = np.full((rows, length), -1, np.int32)
    room = np.full(rows, length, np.int64)
    misses = 0
    for number, (ids, bits) in enumerate(documents):
        fits = np.where(room >= len(ids), room, length + 1)
        row = int(fits.argmin())
        if fits[row] > length:
            misses += 1
            if misses > 8 * rows or (room < _SMALLEST).all():
                break
            continue
        begin = length - int(room[row])
        tokens[row, begin : begin + len(ids)] = ids
        marks[row, begin : begin + len(ids)] = bits
        numbers[row, begin : begin + len(ids)] = number
        room[row] -= len(ids)
        if room.max() < _SMALLEST:
            break
    for row in np.flatnonzero(room):
        marks[row, length - int(room[row])] = START
    return Rows(tokens, marks, numbers)
