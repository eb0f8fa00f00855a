"""Packed weights: what goes in comes out, and stored planes of artifacts become the codes they hold."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ninfer.artifact.codecs import grouped
from ninfer.artifact.contract import formats
from ninfer.fast.ops.linear import packing
from ninfer.fast.program.gpu.weights import grouped_codes
from tests.fast.gpu.weights import FORMATS, matrix


@pytest.mark.parametrize("name", FORMATS)
def test_unpacking_gives_back_the_planes(name: str) -> None:
    packed, _ = matrix(FORMATS[name], 200, 320)
    planes = packing.unpack(packed)
    again = packing.unpack(packing.repack(packed.format, planes))
    assert [plane.shape[0] for plane in planes] == [200] * len(planes)
    for plane, same in zip(planes, again, strict=True):
        assert torch.equal(plane, same)


@pytest.mark.parametrize("name", FORMATS)
def test_rows_in_turn_interleave_two_matrices(name: str) -> None:
    number = FORMATS[name]
    first, second = matrix(number, 70, 320, 1)[0], matrix(number, 70, 320, 2)[0]
    both = packing.unpack(packing.concatenate([first, second], interleaved=True))
    for plane, a, b in zip(both, packing.unpack(first), packing.unpack(second), strict=True):
        assert torch.equal(plane[0::2], a)
        assert torch.equal(plane[1::2], b)


@pytest.mark.parametrize("name", ["q8_g32_fp16", "q6_g64_fp16", "q5_g64_fp16", "q4_g64_fp16"])
def test_stored_planes_become_signed_codes(name: str) -> None:
    numeric = formats()[name]
    rows = np.random.default_rng(3).standard_normal((5, 256)).astype(np.float32)
    codes, scales = grouped.quantize(numeric, rows)
    planes = grouped.pack(numeric, codes, scales)
    base = torch.from_numpy(planes["base"].reshape(5, -1).copy())
    high = planes.get("high")
    found = grouped_codes(
        numeric.bits,
        numeric.group,
        base,
        None if high is None else torch.from_numpy(high.reshape(5, -1).copy()),
    )
    np.testing.assert_array_equal(found.numpy(), codes.reshape(5, -1))
