"""Small artifacts for the tests: through our writer, and framed by hand so that they can be wrong."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninfer.artifact import (
    ArtifactPlan,
    ArtifactWriter,
    Binding,
    Component,
    PlannedResource,
    PlannedTensor,
    Use,
)

ARTIFACT_ID = bytes(range(16))
QUANTISED = ("q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16", "nvfp4", "fp8_e4m3fn_row_bf16")
FLOATS = ("bf16", "fp32", *QUANTISED)


def frame(directory: Any, payload: bytes, *, artifact_id: bytes = ARTIFACT_ID) -> bytes:
    """An entry file around any JSON value (or raw text), packed without our writer."""
    text = directory if isinstance(directory, bytes) else json.dumps(directory).encode()
    head = b"NINFER\0\3" + struct.pack("<Q", len(text)) + artifact_id + text
    return head.ljust(-(-len(head) // 4096) * 4096, b"\0") + payload


def frame_part(index: int, payload: bytes, *, artifact_id: bytes = ARTIFACT_ID) -> bytes:
    """A part file, packed without our writer."""
    return (b"NINPRT\0\3" + struct.pack("<Q", index) + artifact_id).ljust(4096, b"\0") + payload


def small_directory() -> dict[str, Any]:
    """A directory with one of everything over a payload of 1,024 bytes."""
    return {
        "components": {
            "text": {
                "config": {"architectures": ["Qwen3_5ForCausalLM"]},
                "resources": {"tokenizer.json": "r"},
                "proposal": {"domain": "indexed", "rows": 4},
            },
            "mtp": {"config": {}, "target": "text"},
        },
        "objects": [
            {"id": "r", "kind": "resource", "encoding": "raw_bytes_v1", "offset": 0, "bytes": 5},
            _tensor("a", [2, 4], "bf16", 256, 16),
            _tensor("b", [2, 4], "bf16", 512, 16),
            _tensor("d", [], "fp32", 768, 4),
        ],
        "bindings": {
            "whole": {"object": "a"},
            "parts": {"parts": [{"object": "b", "range": [4, 8]}, {"object": "a", "range": [0, 4]}]},
        },
        "uses": [
            {
                "parameter": "whole",
                "input": "x",
                "activation_policy": "AllowA4",
                "auxiliaries": {"activation_input_divisor": {"object": "d"}},
            },
            {"parameter": "whole", "input": "y"},
        ],
        "files": [{"path": None, "payload_bytes": 1024}],
        "metadata": {"name": "small"},
    }


def small_payload() -> bytes:
    """The payload ``small_directory`` describes: a = 0..7, b = 8..15 as bf16, d = 2.5."""
    words = (np.arange(16, dtype="<f4").view("<u4") >> 16).astype("<u2").tobytes()
    payload = bytearray(1024)
    payload[:5] = b"hello"
    payload[256:272], payload[512:528] = words[:16], words[16:]
    payload[768:772] = struct.pack("<f", 2.5)
    return bytes(payload)


def _tensor(name: str, shape: list[int], format_name: str, offset: int, size: int) -> dict[str, Any]:
    layout = "contiguous_le_v1"
    head = {"id": name, "kind": "tensor", "shape": shape, "format": format_name, "layout": layout}
    return {**head, "offset": offset, "bytes": size}


def values(shape: tuple[int, ...], seed: int) -> NDArray[np.float32]:
    """Standard normal values."""
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def every_format(rows: int = 256, columns: int = 192) -> tuple[ArtifactPlan, dict[str, NDArray[Any]]]:
    """A plan with one matrix per format and a few bindings into them, and the values to write."""
    shape = (rows, columns)
    data: dict[str, NDArray[Any]] = {name: values(shape, seed) for seed, name in enumerate(FLOATS)}
    data["int32"] = np.arange(5, dtype=np.int32) - 2
    tensors = [PlannedTensor(f"weight/{name}", array.shape, name) for name, array in data.items()]
    bindings = {f"p/{name}": Binding.whole(f"weight/{name}") for name in data}
    bindings["p/middle"] = Binding.ranges([("weight/q4_g64_fp16", 3 * columns, 10 * columns)])
    bindings["p/stacked"] = Binding.ranges(
        [
            ("weight/nvfp4", (rows // 2) * columns, (rows // 2 + 1) * columns),
            ("weight/q5_g64_fp16", 0, 2 * columns),
        ]
    )
    bindings["p/odd"] = Binding.ranges([("weight/q6_g64_fp16", 17, 1000), ("weight/bf16", 5, 6)])
    plan = ArtifactPlan(
        components={"text": Component({"architectures": ["X"]}, resources={"tokenizer.json": "resource/t"})},
        resources=[PlannedResource("resource/t", b'{"a": 1}')],
        tensors=tensors,
        bindings=bindings,
        uses=[Use("p/nvfp4", "in", "AllowA4")],
        metadata={"name": "every"},
    )
    return plan, data


def write(path: Path, plan: ArtifactPlan, data: dict[str, NDArray[Any]], **options: Any) -> Path:
    """Write ``data`` (tensor id without ``weight/`` → values) through our writer."""
    with ArtifactWriter(path, plan, **options) as writer:
        for name, array in data.items():
            writer.write_tensor(f"weight/{name}", array)
        writer.publish()
    return path
