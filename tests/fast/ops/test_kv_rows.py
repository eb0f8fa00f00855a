"""What ``append`` writes: normed and rotated keys, raw values, encoded as ``spec/kv_formats.yaml`` says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ninfer.fast.memory.pages import FORMATS
from ninfer.fast.memory.pages import planes as planes_of
from ninfer.fast.ops.attention import contract
from ninfer.fast.ops.attention import cpu as attention
from ninfer.fast.ops.compiled import entry
from tests.fast import kv
from tests.fast.ops.attending import KV_FORMATS, Attending, Lane, attention_config
from tests.support.fast import Array, address, assert_accurate, fields, run

VECTORS = json.loads((Path(__file__).parents[3] / "spec/vectors/kv_formats.json").read_text())
store = entry(attention.store.py_func)
SHAPES = ((4, 2, 64), (4, 1, 128), (2, 2, 256))


def golden(encoding: str, rotated: bool) -> list[dict[str, Any]]:
    wanted = {"encoding": encoding, "rotated": rotated}
    return [case for case in VECTORS["cases"] if wanted.items() <= case["input"].items()]


def golden_row(case: dict[str, Any]) -> Array:
    return kv.bf16_values(np.frombuffer(bytes.fromhex(case["input"]["bf16"]), "<u2"))


def stored(kv_format: str, key: Array, value: Array) -> tuple[str, ...]:
    """Hex of key codes, key scales, value codes and value scales of one row in slot 1 of three."""
    size = len(key)
    sizes = [
        size_of
        for plane in planes_of(kv_format, size)
        for size_of in (plane.row_bytes - plane.scale_bytes, plane.scale_bytes)
    ]
    planes = [np.full((3, n), 0xEE, np.uint8) for n in sizes]
    names = ("K_POOL", "K_SCALES", "V_POOL", "V_SCALES")
    pools = {name: address(plane) for name, plane in zip(names, planes, strict=True)}
    key, value = key.copy(), value.copy()
    d = np.array(fields(contract, **pools), np.int64)
    store(FORMATS[kv_format], address(key), address(value), 1, d, size)
    for plane in planes:
        assert (plane[[0, 2]] == 0xEE).all(), "a neighbour's slot was written"
    return tuple(plane[1].tobytes().hex() for plane in planes)


FP16_VALUES = golden("fp16", False)
assert FP16_VALUES
NARROW = [
    pytest.param(name, role, case, id=f"{name}-{role}-{case['name']}")
    for name in ("int8", "fp8", "nvfp4", "k8v4")
    for role in ("key", "value")
    for case in golden(kv.KV["formats"][name][role]["encoding"], kv.is_rotated(name, role))  # type: ignore[arg-type]
]


def test_there_are_golden_rows_for_every_plane() -> None:
    assert len({param.values[:2] for param in NARROW}) == 8


@pytest.mark.parametrize(("name", "role", "case"), NARROW)
def test_rows_equal_the_golden_rows(name: str, role: str, case: dict[str, Any]) -> None:
    row = golden_row(case)
    planes = stored(name, row, row)
    found = planes[:2] if role == "key" else planes[2:]
    assert found == (case["expected"]["codes"], case["expected"]["scales"])


@pytest.mark.parametrize("case", FP16_VALUES, ids=lambda case: case["name"])
def test_bf16_format_stores_bf16_keys_and_fp16_values(case: dict[str, Any]) -> None:
    row = golden_row(case)
    keys, _, values, _ = stored("bf16", row, row)
    assert (keys, values) == (case["input"]["bf16"], case["expected"]["codes"])


@pytest.mark.parametrize("dim", kv.KV["head_dims"])
@pytest.mark.parametrize("kv_format", KV_FORMATS)
def test_rows_of_any_size_are_rounded_and_encoded(kv_format: str, dim: int) -> None:
    random = np.random.default_rng(dim)
    for _ in range(60):
        sizes = np.float32(2) ** random.integers(-30, 12, dim).astype(np.float32)
        key, value = random.standard_normal((2, dim)).astype(np.float32) * sizes
        key[random.integers(0, dim)] = -0.0
        if random.integers(0, 4) == 0:
            value[:64] = 0
        # Halfway between two bf16 numbers: ties go to the even one, also across an exponent.
        key[:2] = np.array([0x3F808000, 0x3FFF8000], np.uint32).view(np.float32)
        wanted = [
            array.tobytes().hex()
            for role, row in (("key", key), ("value", value))
            for array in kv.encode(kv_format, role, row)
        ]
        assert stored(kv_format, key, value) == tuple(wanted)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_keys_are_normed_and_rotated(shape: tuple[int, int, int]) -> None:
    config = attention_config(*shape)
    attending, lane = Attending(config, "float32"), Lane(config, 300, 1)
    attending.place(lane)
    attending.append(lane, 300, chunk=33)
    keys, values = attending.stored(lane, 300)
    plain, exact = (
        attending.normed(lane, "key", range(300), dtype).flatten(1).numpy().astype(np.float64)
        for dtype in (torch.float32, torch.float64)
    )
    assert_accurate(f"append-{shape}", keys.reshape(300, -1), plain, exact)
    assert (values.reshape(300, -1) == lane.value).all()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kv_format", [name for name in KV_FORMATS if name != "float32"])
def test_pools_hold_the_codes_of_those_keys(kv_format: str, shape: tuple[int, int, int]) -> None:
    """Bit for bit what the rules make of the float32 keys, whatever the chunks."""
    config = attention_config(*shape)
    lanes = [Lane(config, 200, 1) for _ in range(2)]
    plain, coded = Attending(config, "float32", seed=1), Attending(config, kv_format, seed=2)
    plain.place(lanes[0])
    coded.place(lanes[1])
    plain.append(lanes[0], 200, chunk=64)
    coded.append(lanes[1], 200, chunk=7)
    positions = np.arange(200)
    pages, slots = lanes[1].pages[positions // 64], positions % 64
    for role, rows in zip(("key", "value"), plain.stored(lanes[0], 200), strict=True):
        codes, scales = kv.encode(kv_format, role, rows.astype(np.float32))
        pool, scale_pool = (
            (coded.layer.keys, coded.layer.key_scales)
            if role == "key"
            else (coded.layer.values, coded.layer.value_scales)
        )
        found = pool[pages, :, slots].view(codes.dtype)
        np.testing.assert_array_equal(found, codes)
        np.testing.assert_array_equal(scale_pool[pages, :, slots], scales)


@pytest.mark.parametrize("far", [0, 30_000, 262_000])
def test_rotary_table_is_the_cosine_and_sine_of_the_float32_angle(far: int) -> None:
    config = attention_config(2, 2, 256)
    attending, lane = Attending(config, "float32"), Lane(config, 64, 1, far=far)
    pairs = config.rotary_dim // 2
    angles = np.full((66, config.rotary_dim), np.nan, np.float32)
    run([attending.rotary(angles[1:])], rows=[lane.row(position) for position in range(64)])
    assert np.isnan(angles[[0, 65]]).all()
    positions = lane.axes[attending.pair_axes].T.astype(np.float32)
    angle = (positions * attending.frequencies).astype(np.float64)
    wanted = np.concatenate([np.cos(angle), np.sin(angle)], axis=1)
    assert wanted.shape == (64, 2 * pairs)
    error = np.abs(angles[1:65] - wanted).max()
    print(f"op=rotary far={far} worst_error={error:.2e}")
    assert error <= 1.2e-7


def test_axes_are_interleaved_by_pair() -> None:
    """Only the pairs of one axis turn when only that axis moves."""
    config = attention_config(2, 2, 64)
    attending = Attending(config, "float32")
    assert attending.pair_axes.tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    for axis in range(3):
        lane = Lane(config, 1, 1)
        lane.axes[:] = 0
        lane.axes[axis] = 5
        angles = np.full((1, 16), np.nan, np.float32)
        run([attending.rotary(angles)], rows=[lane.row(0)])
        assert ((angles[0, 8:] != 0) == (attending.pair_axes == axis)).all()
