"""Headers byte by byte, and what each wrong byte is called."""

from __future__ import annotations

import pytest

from ninfer.artifact.framing import EntryHeader, check_part, pack_entry, pack_part, parse_entry
from ninfer.errors import ArtifactError

IDENTITY = bytes(range(16))
ENTRY = bytes.fromhex("4e494e4645520003e0ff000000000000") + IDENTITY
PART = bytes.fromhex("4e494e50525400030200000000000000") + IDENTITY


def test_headers_are_the_published_bytes() -> None:
    assert pack_entry(EntryHeader(65504, IDENTITY)) == ENTRY
    assert pack_part(2, IDENTITY) == PART
    assert parse_entry(ENTRY, 1 << 20) == EntryHeader(65504, IDENTITY)


@pytest.mark.parametrize(("json_bytes", "start"), [(1, 4096), (4064, 4096), (4065, 8192), (65504, 65536)])
def test_the_payload_starts_on_the_next_page(json_bytes: int, start: int) -> None:
    assert EntryHeader(json_bytes, IDENTITY).payload_start == start


@pytest.mark.parametrize(
    ("raw", "where", "message"),
    [
        (b"", "byte 0", "ends inside its header"),
        (ENTRY[:5], "byte 5", "ends inside its header"),
        (ENTRY[:31], "byte 31", "32-byte header"),
        (b"GGUF" + ENTRY[4:], "byte 0", "magic 47475546"),
        (ENTRY[:7] + b"\1" + ENTRY[8:], "byte 7", "older artifact, version 1"),
        (ENTRY[:7] + b"\2" + ENTRY[8:16], "byte 7", "older artifact, version 2"),
        (ENTRY[:7] + b"\4" + ENTRY[8:], "byte 7", "newer artifact, version 4"),
        (PART, "byte 0", "part file; open the entry file"),
        (ENTRY[:8] + bytes(8) + IDENTITY, "byte 8", "json_bytes is 0"),
        (ENTRY[:8] + b"\xff" * 8 + IDENTITY, "byte 8", "beyond the file's"),
        (ENTRY[:8] + (1 << 28).to_bytes(8, "little") + IDENTITY, "byte 8", "is over 134217728"),
    ],
)
def test_wrong_entry_headers(raw: bytes, where: str, message: str) -> None:
    with pytest.raises(ArtifactError) as error:
        parse_entry(raw, 1 << 40)
    assert error.value.where == where
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("raw", "where", "message"),
    [
        (PART[:20], "p byte 20", "ends inside its header"),
        (ENTRY, "p byte 0", "a part has 4e494e5052540003"),
        (PART[:8] + b"\1" + PART[9:], "p byte 8", "part index 1, the directory lists this file as 2"),
        (PART[:16] + bytes(16), "p byte 16", "artifact id 0000"),
    ],
)
def test_wrong_part_headers(raw: bytes, where: str, message: str) -> None:
    check_part("p", PART, 2, IDENTITY)
    with pytest.raises(ArtifactError) as error:
        check_part("p", raw, 2, IDENTITY)
    assert error.value.where == where
    assert message in str(error.value)
