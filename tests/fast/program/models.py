"""Whole nano models in the fast engine for tests: lanes on shuffled pages, logits of any mix of blocks.

Owns the control tables' filling; what is right comes from the reference or from the same model run otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import torch
from torch import Tensor

from ninfer.artifact import Artifact
from ninfer.fast.memory.pages import PagePool
from ninfer.fast.memory.states import StateImages
from ninfer.fast.ops.control import PAGE_TOKENS
from ninfer.fast.program.parameters import load_text_weights
from ninfer.fast.program.round import RoundRunner
from ninfer.fast.program.table import TableBuilder
from ninfer.fast.program.text import TextTable
from ninfer.fast.program.weights import WeightLoader
from ninfer.model.config import AttentionConfig, TextConfig, parse_text_config
from ninfer.reference.model import ReferenceModel
from ninfer.reference.state import KvCache, State
from ninfer.reference.weights import load_text
from tests.fast import kv
from tests.support.fast import Array, Floats, address
from tests.support.nano import VOCABULARY

MAX_CONTEXT = 1024
StoredRows = tuple[Array, Array]


def read_config(artifact: Artifact) -> TextConfig:
    """The text component's config."""
    return parse_text_config(artifact.directory.components["text"].config)


@dataclass(slots=True, eq=False)
class Lane:
    """One sequence: its state slot, block table and the number of committed tokens."""

    slot: int
    pages: Array
    length: int = 0


@dataclass(frozen=True, slots=True)
class Block:
    """The next tokens of a lane; ``axes`` [3, n] where they are not the positions themselves."""

    lane: Lane
    tokens: Sequence[int]
    commit: bool = True
    axes: Array | None = None


class FastModel:
    """A model's round with ``lanes`` state slots and as many block tables, on pages in random order."""

    def __init__(
        self, path: Path, kv_format: str = "float32", threads: int = 1, lanes: int = 8, seed: int = 0
    ) -> None:
        self.kv_format = kv_format
        with Artifact.open(path) as artifact:
            self.config = read_config(artifact)
            weights = load_text_weights(WeightLoader(artifact), self.config)
        self.states = StateImages(self.config, lanes)
        layers = [i for i, kind in enumerate(self.config.layer_types) if kind == "full_attention"]
        assert self.config.attention is not None
        per_lane = MAX_CONTEXT // 2 // PAGE_TOKENS
        self.pages = PagePool(self.config.attention, layers, lanes * per_lane, kv_format)
        self._order = np.random.default_rng(seed).permutation(lanes * per_lane).reshape(lanes, per_lane)
        self._next = 0
        for pool in self.pages.layers.values():
            # Finite or not, what a page held before must never matter.
            pool.keys[:], pool.values[:] = (np.nan, np.nan) if kv_format == "float32" else (127, 127)
            for scales in (pool.key_scales, pool.value_scales):
                scales[:] = 65504 if scales.dtype == np.float16 else 127
        builder = TableBuilder()
        self.table = TextTable(
            self.config, weights, self.states, self.pages, MAX_CONTEXT, VOCABULARY, threads, builder
        )
        self.runner = RoundRunner(builder.build(), threads)

    def __enter__(self) -> FastModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.runner.close()

    def lane(self) -> Lane:
        """An empty lane."""
        pages = np.ascontiguousarray(self._order[self._next], np.int32)
        self._next += 1
        return Lane(self.states.allocate(), pages)

    def image(self, lane: Lane) -> Array:
        """The bytes of a lane's committed state."""
        return self.states.image(lane.slot)

    def stored(self, lane: Lane, layer: int) -> StoredRows:
        """The lane's keys and values in a layer's pools, float64 [length, Hkv, D], in their own basis."""
        positions, pool = np.arange(lane.length), self.pages.layers[layer]
        place = (lane.pages[positions // PAGE_TOKENS], slice(None), positions % PAGE_TOKENS)
        values = pool.values.view(np.float16) if self.kv_format == "bf16" else pool.values
        keys = kv.decode(self.kv_format, "key", pool.keys[place], pool.key_scales[place])
        decoded = kv.decode(self.kv_format, "value", values[place], pool.value_scales[place])
        if kv.is_rotated(self.kv_format, "key"):
            keys = keys @ kv.hadamard(keys.shape[-1])
        if kv.is_rotated(self.kv_format, "value"):
            decoded = decoded @ kv.hadamard(decoded.shape[-1])
        return keys, decoded

    def forward(self, blocks: Sequence[Block]) -> Floats:
        """The logits [rows, vocabulary rows] of all blocks in one round; committed lanes move on."""
        rows = self._control(blocks)
        commits = all(block.commit for block in blocks)
        self.runner.run(*(self.table.forward if commits else self.table.recorded), rows, len(blocks))
        for block in blocks:
            block.lane.length += len(block.tokens) if block.commit else 0
        return self.table.logits.array[:rows, : self.config.vocab].copy()

    def fold(self, blocks: Sequence[Block], accepted: Sequence[int]) -> None:
        """Commit the first ``accepted`` tokens of the blocks that the last ``forward`` only verified."""
        rows = self._control(blocks)
        self.runner.blocks[: len(blocks), 1] = accepted
        self.runner.run(*self.table.fold, rows, len(blocks))
        for block, count in zip(blocks, accepted, strict=True):
            block.lane.length += count

    def finish(self, samplers: Sequence[tuple[float | int, ...]]) -> list[int]:
        """The tokens drawn from the last logits, one sampler a row."""
        self.runner.samplers[: len(samplers)] = samplers
        self.runner.run(*self.table.finish, len(samplers), 0)
        return [int(token) for token in self.table.drawn[: len(samplers)]]

    def _control(self, blocks: Sequence[Block]) -> int:
        row = 0
        for index, block in enumerate(blocks):
            lane, count = block.lane, len(block.tokens)
            state = self.states.address(lane.slot)
            self.runner.blocks[index] = (row, count, state, int(block.commit))
            for column, token in enumerate(block.tokens):
                place = lane.length + column
                axes = (place,) * 3 if block.axes is None else block.axes[:, column]
                self.runner.rows[row] = (token, place, *axes, address(lane.pages), 0)
                row += 1
        return row


class StoredCache(KvCache):
    """The reference's cache filled with what a fast model's pools hold, instead of its own rows.

    Rounding to a KV format puts a number that lies between two codes on either side, which would drown the
    errors of everything else; so the reference reads the same codes, and checks that they are its own but
    for the few such numbers.
    """

    def __init__(self, config: AttentionConfig, dtype: torch.dtype, kv_format: str, rows: StoredRows) -> None:
        super().__init__(config, dtype)
        self._format, self._stored = kv_format, rows

    def append(self, keys: Tensor, values: Tensor) -> None:
        begin = self.length
        pieces = [rows[begin : begin + len(keys)] for rows in self._stored]
        roles: tuple[kv.Role, ...] = ("key", "value")
        for role, piece, mine in zip(roles, pieces, (keys, values), strict=True):
            self._check(role, piece, mine.float().numpy())
        stored_keys, stored_values = (torch.from_numpy(piece).to(keys.dtype) for piece in pieces)
        super().append(stored_keys, stored_values)

    def _check(self, role: kv.Role, stored: Array, mine: Array) -> None:
        wanted = kv.round_trip(self._format, role, mine)
        away = np.abs(stored - wanted).max(-1) > 1e-5 * np.abs(wanted).max(-1)
        assert away.mean() < 0.05, f"{away.mean():.1%} of the {role} rows are not the codes of the spec"
        # A neighbouring code: a step of 2^-8 in bf16, of amax / 127 in int8 (spread by the rotation), an
        # eighth in fp8 and a third in nvfp4, of the largest codes.
        step = {"fp8": 0.13, "nvfp4": 0.34, "k8v4": 0.34}.get(self._format, 0.01)
        np.testing.assert_allclose(stored, wanted, atol=step * np.abs(wanted).max())


class Reference:
    """The reference over the same artifact in one dtype."""

    def __init__(self, path: Path, dtype: torch.dtype) -> None:
        with Artifact.open(path) as artifact:
            config = read_config(artifact)
            self.model = ReferenceModel(config, load_text(artifact, config, dtype))

    def state(self) -> State:
        """The state before the first token."""
        return self.model.new_state()

    def state_over(self, fast: FastModel, lane: Lane) -> State:
        """A state whose attention layers read the lane's keys and values where the KV format rounded them."""
        state, config = self.model.new_state(), self.model.config.attention
        if fast.kv_format == "float32":
            return state
        assert config is not None
        for layer in fast.pages.layers:
            state.layers[layer] = StoredCache(
                config, self.model.dtype, fast.kv_format, fast.stored(lane, layer)
            )
        return state

    @torch.inference_mode()
    def logits(self, tokens: Sequence[int], axes: Array, state: State) -> Array:
        """Logits [T, rows] of one pass, float64; the state moves on."""
        hidden = self.model.forward(torch.tensor(list(tokens)), torch.from_numpy(axes), state)
        return self.model.logits(hidden).numpy().astype(np.float64)
