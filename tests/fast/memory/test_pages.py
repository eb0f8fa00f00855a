"""Pages are handed out once, come back, and hold exactly the bytes that the KV format's spec says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.fast.memory.pages import FORMATS, PagePool
from ninfer.model.config import AttentionConfig, RopeConfig
from ninfer.spec import document

ROPE = RopeConfig(1e7, 0.25, (3, 3, 2))
KV = document("kv_formats")


def pool(pages: int, kv_format: str = "bf16", head_dim: int = 64, layers: int = 2) -> PagePool:
    return PagePool(AttentionConfig(4, 2, head_dim, ROPE), list(range(layers)), pages, kv_format)


@given(st.lists(st.integers(0, 9), max_size=40), st.integers(0, 2**32 - 1))
def test_a_page_has_at_most_one_holder(asked: list[int], seed: int) -> None:
    pages, held = pool(20, layers=1), list[list[int]]()
    for count in asked:
        if count > pages.free_pages:
            free = pages.free_pages
            with pytest.raises(IndexError):
                pages.allocate(count)
            assert pages.free_pages == free
            pages.free(held.pop(seed % len(held)))
        else:
            held.append(pages.allocate(count))
        pages.check_integrity()
        taken = [page for part in held for page in part]
        assert len(set(taken)) == len(taken) == 20 - pages.free_pages
        assert all(0 <= page < 20 for page in taken)
    for part in held:
        pages.free(part)
    assert pages.free_pages == 20
    assert sorted(pages.allocate(20)) == list(range(20))


def test_a_page_given_back_twice_is_noticed() -> None:
    pages = pool(4)
    held = pages.allocate(2)
    pages.free(held)
    with pytest.raises(AssertionError, match="freed twice"):
        pages.free(held)


def test_a_shared_page_is_free_when_its_last_owner_leaves() -> None:
    pages = pool(4)
    (page,) = pages.allocate(1)
    pages.hold(page)
    assert pages.owners(page) == 2
    pages.free([page])
    assert pages.free_pages == 3
    pages.free([page])
    assert pages.free_pages == 4
    with pytest.raises(AssertionError, match="is free"):
        pages.hold(page)
    pages.check_integrity()


@pytest.mark.parametrize("kv_format", list(FORMATS))
def test_a_copied_page_has_the_same_bytes_in_every_layer(kv_format: str) -> None:
    pages = pool(4, kv_format, layers=3)
    random = np.random.default_rng(5)
    for layer in pages.layers.values():
        for plane in (layer.keys, layer.values, layer.key_scales, layer.value_scales):
            plane.view(np.uint8)[:] = random.integers(0, 256, plane.view(np.uint8).shape)
    pages.copy(1, 3)
    for layer in pages.layers.values():
        for plane in (layer.keys, layer.values, layer.key_scales, layer.value_scales):
            assert plane[1].tobytes() == plane[3].tobytes()


@pytest.mark.parametrize("head_dim", KV["head_dims"])
@pytest.mark.parametrize("kv_format", list(FORMATS))
def test_a_page_holds_the_bytes_of_the_spec(kv_format: str, head_dim: int) -> None:
    row = next(
        row
        for row in KV["bytes_per_token_and_head"]
        if (row["format"], row["head_dim"]) == (kv_format, head_dim)
    )
    expected = (row["key"] + row["value"]) * KV["page_tokens"] * 2 * 3
    assert pool(5, kv_format, head_dim, layers=3).page_bytes == expected
