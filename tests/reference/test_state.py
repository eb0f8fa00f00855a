"""Caches and states as values: appended, cropped, cloned."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ninfer.model.config import AttentionConfig, RopeConfig
from ninfer.reference.state import GdnState, KvCache, State, empty_state
from tests.support.nano_weights import artifact_config, text_config_members

CONFIG = AttentionConfig(4, 2, 8, RopeConfig(1e4, 1.0, (2, 1, 1)))
ACTIONS = st.lists(
    st.tuples(st.just("append"), st.integers(1, 5))
    | st.tuples(st.just("crop"), st.integers(0, 12))
    | st.tuples(st.just("clone"), st.just(0)),
    max_size=12,
)


def contents(cache: KvCache) -> list[float]:
    """One number a row; keys and values must agree."""
    assert torch.equal(cache.values, -cache.keys)
    assert len(cache.keys) == cache.length
    return cache.keys[:, 0, 0].tolist()


@given(ACTIONS)
def test_a_cache_behaves_like_a_list_of_rows(actions: list[tuple[str, int]]) -> None:
    cache, wanted, written = KvCache(CONFIG, torch.float32), list[float](), 0
    kept: list[tuple[KvCache, list[float]]] = []
    for action, size in actions:
        if action == "append":
            numbers = [float(written + i) for i in range(size)]
            rows = torch.tensor(numbers)[:, None, None].expand(size, 2, 8)
            cache.append(rows, -rows)
            wanted, written = wanted + numbers, written + size
        elif action == "crop":
            cache.crop(size)
            wanted = wanted[:size]
        else:
            kept.append((cache, list(wanted)))
            cache = cache.clone()
        assert contents(cache) == wanted
    for left_alone, then in kept:
        assert contents(left_alone) == then


def test_the_empty_state_has_one_entry_a_layer() -> None:
    config = artifact_config(text_config_members("dense"))
    state = empty_state(config, torch.float64)
    assert state.length == 0
    kinds = [KvCache if kind == "full_attention" else GdnState for kind in config.layer_types]
    assert [type(layer) for layer in state.layers] == kinds
    gdn = state.layers[0]
    assert isinstance(gdn, GdnState)
    assert (gdn.window.shape, gdn.recurrent.shape) == ((3, 256), (4, 32, 32))
    assert gdn.window.dtype == gdn.recurrent.dtype == torch.float64
    assert not gdn.window.any()
    assert not gdn.recurrent.any()


def test_a_clone_shares_nothing() -> None:
    state = empty_state(artifact_config(text_config_members("dense")), torch.float32)
    copy = state.clone()

    def tensors(state: State) -> list[Tensor]:
        return [
            t
            for layer in state.layers
            if isinstance(layer, GdnState)
            for t in (layer.window, layer.recurrent)
        ]

    for tensor in tensors(state):
        tensor += 1
    assert all(not tensor.any() for tensor in tensors(copy))
