"""The byte-level alphabet of BPE vocabularies: each byte as one printable character, and back.

Owns the table only. Source: GPT-2's byte-to-unicode mapping, which ``tokenizers`` calls ``ByteLevel``.
"""

from __future__ import annotations

from collections.abc import Mapping

_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))


def _alphabet() -> dict[str, int]:
    others = (byte for byte in range(256) if byte not in _PRINTABLE)
    table = {chr(byte): byte for byte in _PRINTABLE}
    table.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return table


BYTE_OF: Mapping[str, int] = _alphabet()


def to_bytes(token: str) -> bytes:
    """The bytes that a base vocabulary entry stands for. Errors: ``KeyError`` outside the alphabet."""
    return bytes(map(BYTE_OF.__getitem__, token))
