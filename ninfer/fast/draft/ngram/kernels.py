"""Compiled loops of the n-gram index. One file, so that a changed callee is never served stale.

A text is an int32 array in which negative words end spans: nothing matches or is copied across them. A table
is a row of buckets of WAYS places each, place 0 meaning empty and p + 1 the suffix that ends at p.
"""

from __future__ import annotations

import numpy as np
from numba import njit

import ninfer.fast.ops  # noqa: F401  (chooses the directory of compiled kernels)
from ninfer import spec

_RULES = spec.document("speculation")["ngram"]
SUFFIXES = tuple(int(length) for length in _RULES["suffixes"])
EXTEND = int(_RULES["extend"])
WAYS = int(_RULES["index"]["ways"])
assert SUFFIXES == (16, 8, 4)

# Odd multipliers with well spread bits (Steele and Vigna, "Computationally easy, spectrally good
# multipliers", 2021).
_TOKEN, _HALF, _WHOLE = (
    np.uint64(0xD1342543DE82EF95), np.uint64(0xAF251AF3B0F025B5), np.uint64(0xB564EF22EC7AECE5),
)  # fmt: skip
_FOLD = np.uint64(32)


@njit(nogil=True, cache=True, error_model="numpy")
def _four(text, end):
    """Hash of the four tokens that end at ``end``."""
    value = np.uint64(0)
    for place in range(end - 3, end + 1):
        value = (value ^ np.uint64(text[place])) * _TOKEN
        value ^= value >> _FOLD
    return value


@njit(nogil=True, cache=True, error_model="numpy")
def _eight(text, end):
    value = _four(text, end - 4) * _HALF + _four(text, end)
    return (value ^ (value >> _FOLD)) * _TOKEN


@njit(nogil=True, cache=True, error_model="numpy")
def suffix_hash(text, end, length):
    """Hash of the ``length`` tokens (16, 8 or 4) that end at ``end``."""
    if length == 4:
        return _four(text, end)
    if length == 8:
        return _eight(text, end)
    value = _eight(text, end - 8) * _WHOLE + _eight(text, end)
    return (value ^ (value >> _FOLD)) * _TOKEN


@njit(nogil=True, cache=True, error_model="numpy")
def _bucket(table, code):
    """First place of a hash's bucket; buckets are a power of two."""
    buckets = np.uint64(table.shape[0] // WAYS)
    return np.int64((code >> _FOLD) & (buckets - np.uint64(1))) * WAYS


@njit(nogil=True, cache=True, error_model="numpy")
def _insert(table, code, end):
    """Put a position into its bucket; the oldest there gives way."""
    first = _bucket(table, code)
    oldest = first
    for place in range(first + 1, first + WAYS):
        if table[place] < table[oldest]:
            oldest = place
    table[oldest] = end + 1


@njit(nogil=True, cache=True, error_model="numpy")
def mark(source, special, target):
    """Copy tokens; special ones (and ids outside the table) become the negative words that end spans."""
    for place in range(source.shape[0]):
        token = source[place]
        ends = token >= special.shape[0] or special[token]
        target[place] = -1 - token if ends else token


@njit(nogil=True, cache=True, error_model="numpy")
def insert_span(text, tables, begin, end, run):
    """Index the suffixes ending at ``begin`` .. ``end`` − 1.

    ``run`` counts the tokens of the span before ``begin``; returns the count after ``end``.
    """
    for place in range(begin, end):
        if text[place] < 0:
            run = 0
            continue
        run += 1
        for row in range(3):
            length = 16 >> row
            if run >= length:
                _insert(tables[row], suffix_hash(text, place, length), place)
    return run


@njit(nogil=True, cache=True, error_model="numpy")
def take_in(tokens, special, text, tables, length, indexed, run):
    """Append committed tokens at ``length`` and index every suffix that a token follows; the new ``run``."""
    end = length + tokens.shape[0]
    mark(tokens, special, text[length:end])
    return insert_span(text, tables, indexed, end - 1, run) if end > indexed + 1 else run


@njit(nogil=True, cache=True, error_model="numpy")
def matched(text, place, last):
    """How many tokens up to ``place`` equal those up to ``last``, at most EXTEND."""
    count = 0
    while count < EXTEND and count <= place and text[last - count] >= 0:
        if text[place - count] != text[last - count]:
            break
        count += 1
    return count


@njit(nogil=True, cache=True, error_model="numpy")
def left_in_span(text, place, end, most):
    """Tokens after ``place`` up to the end of its span or the text, counted to ``most``."""
    count = 0
    while count < most and place + 1 + count < end and text[place + 1 + count] >= 0:
        count += 1
    return count


@njit(nogil=True, cache=True, error_model="numpy")
def find(text, tables, length, sources, end, least, most):
    """The best earlier place of the end of ``text[:length]``: its last token, matched tokens, tokens left.

    ``text[sources:end]`` lies beside the text; ``least`` tokens must match, ``most`` left ones are counted.
    Longest match first, then most left, then latest. (−1, 0, 0): none.
    """
    last, best, best_match, best_left = length - 1, -1, 0, 0
    run = 0
    while run < 16 and run < length and text[last - run] >= 0:
        run += 1
    for row in range(3):
        suffix = 16 >> row
        if run < suffix:
            continue
        first = _bucket(tables[row], suffix_hash(text, last, suffix))
        for entry in range(first, first + WAYS):
            place = tables[row, entry] - 1
            if place < 0 or place == last:
                continue
            count = matched(text, place, last)
            if count < least or count < best_match:
                continue
            left = left_in_span(text, place, end if place >= sources else length, most)
            if count > best_match or left > best_left or (left == best_left and place > best):
                best, best_match, best_left = place, count, left
        if best >= 0:
            break
    return best, best_match, best_left


@njit(nogil=True, cache=True, error_model="numpy")
def previous(text, length, suffix):
    """The latest earlier place where the last ``suffix`` tokens of ``text[:length]`` stand; −1: nowhere."""
    last = length - 1
    for place in range(last - 1, suffix - 2, -1):
        count = 0
        while count < suffix and text[last - count] >= 0 and text[place - count] == text[last - count]:
            count += 1
        if count == suffix:
            return place
    return -1
