"""The held-out rule: what an exam may ask, training never sees.

One in sixteen identities (the hash of a prompt, a pair of summands, a source file) belongs to the exam. The
rule is a pure function of the identity, so that any seed, run or machine agrees.
"""

from __future__ import annotations

import hashlib
from typing import Literal

Split = Literal["train", "exam"]

_EXAM_SHARE = 16


def split_of(identity: str) -> Split:
    """The side on which ``identity`` falls."""
    digest = hashlib.blake2b(identity.encode(), digest_size=4).digest()
    return "train" if int.from_bytes(digest, "little") % _EXAM_SHARE else "exam"
