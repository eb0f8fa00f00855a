"""Damage to artifacts: bytes, lengths, directory values, part files. Every mutation comes from one seed."""

from __future__ import annotations

import copy
import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

Files = dict[str, bytes]

NUMBERS: list[Any] = [
    0,
    1,
    -1,
    2,
    255,
    256,
    4096,
    2**31,
    2**32,
    2**63 - 1,
    2**63,
    2**64 - 1,
    2**64,
    10**30,
    0.5,
    -0.0,
    1e308,
]
VALUES: list[Any] = [None, True, False, "", "\0", "é", "x" * 3000, [], {}, [[]]]
VALUES += [{"object": "weight/bf16"}, {"parts": [{"object": "weight/nvfp4", "range": [0, 1]}]}]
NAMES = ["bf16", "fp32", "int32", "q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16", "nvfp4"]
NAMES += ["fp8_e4m3fn_row_bf16", "contiguous_le_v1", "row_split_k128_v1", "block_scale_k16_m128x4_v1"]
NAMES += [
    "row_scale_v1",
    "raw_bytes_v1",
    "tensor",
    "resource",
    "indexed",
    "full",
    "A16Only",
    "text",
    "vision",
]
RAW_TEXT = [
    b"NaN",
    b"1e999",
    b"[" * 300,
    b'"\\ud800"',
    b'"\xff"',
    b"01",
    b'{"a":1,"a":2}',
    b"",
    b"\xef\xbb\xbf",
]


def mutate(files: Files, seed: int) -> Files:
    """One damaged copy of the files; the entry is ``entry.ninfer``."""
    source = random.Random(seed)
    damaged = dict(files)
    for _ in range(source.choice([1, 1, 1, 2, 3])):
        _MUTATIONS[source.randrange(len(_MUTATIONS))](damaged, source)
    return damaged


def store(folder: Path, files: Files) -> Path:
    """Write the files, and remove others from earlier mutations."""
    for path in folder.iterdir():
        if path.name not in files:
            path.unlink()
    for name, raw in files.items():
        (folder / name).write_bytes(raw)
    return folder / "entry.ninfer"


def _flip(files: Files, source: random.Random) -> None:
    name = source.choice(list(files))
    raw = bytearray(files[name])
    limit = source.choice([8, 32, 200, 4096, len(raw)])
    for _ in range(source.choice([1, 1, 4, 40])):
        if raw:
            raw[source.randrange(min(limit, len(raw)))] = source.randrange(256)
    files[name] = bytes(raw)


def _resize(files: Files, source: random.Random) -> None:
    name = source.choice(list(files))
    raw = files[name]
    keep = source.choice([0, 1, 7, 31, 32, 33, 4095, 4096, len(raw) - 1, source.randrange(len(raw) + 1)])
    files[name] = source.choice([raw[: max(keep, 0)], raw + b"\0", raw + bytes(4096)])


def _header(files: Files, source: random.Random) -> None:
    name = source.choice(list(files))
    raw = bytearray(files[name].ljust(32, b"\0"))
    if source.random() < 0.7:
        struct.pack_into(
            "<Q", raw, 8, source.choice([n for n in NUMBERS if type(n) is int and 0 <= n < 2**64])
        )
    else:
        raw[7] = source.choice([0, 1, 2, 4, 255])
    files[name] = bytes(raw)


def _text(files: Files, source: random.Random) -> None:
    """Raw damage inside the directory text, its length kept honest."""
    text = _directory_text(files)
    if text is None:
        return
    at = source.randrange(len(text) + 1)
    cut = source.choice([0, 0, 1, 5, 50])
    _replace_text(files, text[:at] + source.choice(RAW_TEXT) + text[at + cut :])


def _directory(files: Files, source: random.Random) -> None:
    """A value somewhere in the directory replaced, removed, doubled or exchanged."""
    text = _directory_text(files)
    try:
        root = json.loads(text) if text is not None else None
    except (ValueError, RecursionError):
        return
    holders = [node for node in _containers(root) if len(node)]
    if not holders:
        return
    for _ in range(source.choice([1, 1, 2])):
        _change(source.choice(holders), source)
    _replace_text(files, json.dumps(root).encode("utf-8", "surrogatepass"))


def _parts(files: Files, source: random.Random) -> None:
    names = [name for name in files if name != "entry.ninfer"]
    if not names:
        return
    name = source.choice(names)
    if source.random() < 0.5:
        del files[name]
    else:
        files[name] = files[source.choice(list(files))]


def _change(holder: Any, source: random.Random) -> None:
    keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
    if not keys:
        return
    key = source.choice(keys)
    choice = source.randrange(8)
    if choice == 0:
        del holder[key]
    elif choice == 1 and isinstance(holder, dict):
        holder[source.choice(["extra", "", "object", "parts", "\ud800"])] = copy.deepcopy(holder[key])
    elif choice == 1:
        holder.insert(key, copy.deepcopy(holder[key]))
    elif choice == 2:
        other = source.choice(keys)
        holder[key], holder[other] = holder[other], holder[key]
    elif type(holder[key]) is int and choice < 6:
        holder[key] += source.choice([-256, -1, 1, 255, 256, 4096, holder[key], -holder[key], 2**63])
    else:
        holder[key] = copy.deepcopy(source.choice([*NUMBERS, *VALUES, *NAMES]))


def _containers(node: Any) -> list[Any]:
    if not isinstance(node, (dict, list)):
        return []
    children = node.values() if isinstance(node, dict) else node
    return [node, *(inner for child in children for inner in _containers(child))]


def _directory_text(files: Files) -> bytes | None:
    raw = files["entry.ninfer"]
    if len(raw) < 32:
        return None
    length = struct.unpack_from("<Q", raw, 8)[0]
    return raw[32 : 32 + length] if 0 < length <= len(raw) - 32 else None


def _replace_text(files: Files, text: bytes) -> None:
    raw = files["entry.ninfer"]
    length = struct.unpack_from("<Q", raw, 8)[0]
    payload = raw[-(-(32 + length) // 4096) * 4096 :]
    head = raw[:8] + struct.pack("<Q", len(text)) + raw[16:32] + text
    files["entry.ninfer"] = head.ljust(-(-len(head) // 4096) * 4096, b"\0") + payload


_MUTATIONS: list[Callable[[Files, random.Random], None]] = [
    _flip,
    _resize,
    _header,
    _text,
    _parts,
    *[_directory] * 6,
]
