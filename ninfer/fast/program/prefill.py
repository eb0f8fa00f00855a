"""Prefill: a chunk of one prompt through the text model, matrices by the platform's GEMM on decoded tiles.

Everything but the matrix products runs the round's own operations over a workspace of chunk rows; attention
alone has one of its own. One request at a time; the chunk's keys go to the lane's pages and its state to the
lane's image, so that decoding goes on where the chunk ended.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ninfer.fast.memory.states import StateImages
from ninfer.fast.ops.control import (
    AXIS_T,
    AXIS_W,
    BLOCK_FIELDS,
    BLOCK_TABLE,
    KEPT,
    MAX_COLUMNS,
    POSITION,
    TOKEN,
)
from ninfer.fast.ops.linear.formats import STEP
from ninfer.fast.program import table as t
from ninfer.fast.program.chunk_experts import MATRICES, ExpertDecoder, Experts
from ninfer.fast.program.parameters import (
    AttentionWeights,
    ExpertWeights,
    GatedMatrices,
    GdnWeights,
    LayerWeights,
    TextWeights,
    matrices,
)
from ninfer.fast.program.products import Products
from ninfer.fast.program.round import RoundRunner
from ninfer.fast.program.script import Operations, Script
from ninfer.fast.program.text import TextTable
from ninfer.fast.program.weights import Matrix
from ninfer.fast.program.wiring import Activations, Wiring
from ninfer.model.config import MoeConfig

# Up to here reading stored weights once for every four columns is cheaper than decoding them into tiles
# (measured 2026-11-30, decoded and not: 48 tokens of ninfer-tiny 7.9 and 5.4 ms, 64 of the 0.8B shape in bf16
# 640 and 510 ms); a round takes no more.
SHORT_TOKENS = MAX_COLUMNS


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Part of one prompt. Shapes: ``tokens`` [T], ``axes`` [3, T]; ``start`` is the place of the first token.

    ``block_table`` lists the lane's pages, ``slot`` is its state image.
    """

    tokens: npt.NDArray[np.int32]
    axes: npt.NDArray[np.int32]
    start: int
    block_table: npt.NDArray[np.int32]
    slot: int


class PrefillTable:
    """The chunk's steps; its operations are appended to the model's one table."""

    def __init__(
        self,
        builder: t.TableBuilder,
        wiring: Wiring,
        weights: TextWeights,
        threads: int,
    ) -> None:
        self._wiring, self._config = wiring, wiring.config
        self._script = Script(builder)
        self.experts = self._expert_decoder(weights, threads)
        widest = max(matrix.width for matrix in matrices(weights.layers))
        self._products = Products(self._script, widest, threads, wiring.reads.rounded)
        self._normed = wiring.activations("normed", self._config.hidden)
        self._script.operation(t.EMBED, wiring.embed(weights.embedding))
        if self._config.attention is not None:
            self._script.operation(t.ROTARY, wiring.rotary(self._config.attention))
        for layer, layer_weights in enumerate(weights.layers):
            self._layer(layer, layer_weights)
        self.steps = self._script.build()

    def _layer(self, layer: int, weights: LayerWeights) -> None:
        self._script.operation(t.NORM, self._wiring.norm(weights.input_norm, self._normed))
        if weights.attention is not None:
            self._attention(layer, weights.attention)
        else:
            assert weights.gdn is not None
            self._delta_net(layer, weights.gdn)
        self._script.operation(t.NORM, self._wiring.norm(weights.post_attention_norm, self._normed))
        if weights.experts is not None:
            self._mixture(layer, weights.experts)
            return
        assert weights.mlp is not None
        product = self._gated("mlp", weights.mlp)
        self._products.multiply([(weights.mlp.down, 0)], product, self._wiring.hidden, adds=True)

    def _together(self, name: str, matrices: dict[str, tuple[Matrix, ...]]) -> None:
        """One product of the normed rows; each name is a buffer of its matrices' columns side by side."""
        sizes = {buffer: sum(matrix.rows for matrix in parts) for buffer, parts in matrices.items()}
        target = self._wiring.workspace.side_by_side(name, sizes)
        members, column = [], 0
        for parts in matrices.values():
            for matrix in parts:
                members.append((matrix, column))
                column += matrix.rows
        self._products.multiply(members, self._normed, target)

    def _attention(self, layer: int, weights: AttentionWeights) -> None:
        config, wiring = self._config.attention, self._wiring
        assert config is not None
        names = ("query", "gate", "key", "value")
        self._together("attention_inputs", {name: (getattr(weights, name),) for name in names})
        descriptor = wiring.chunk_attention(layer, weights, config)
        self._script.operation(t.APPEND, descriptor)
        self._script.operation(t.ATTEND_CHUNK, descriptor)
        attended = wiring.activations("attended", weights.output.columns)
        self._products.multiply([(weights.output, 0)], attended, wiring.hidden, adds=True)

    def _delta_net(self, layer: int, weights: GdnWeights) -> None:
        config, wiring = self._config.gdn, self._wiring
        assert config is not None
        inputs = (weights.query, weights.key, weights.value)
        small = {"z": (weights.z,), "a": (weights.a_projection,), "b": (weights.b_projection,)}
        self._together("delta_inputs", {"inputs": inputs, **small})
        descriptor = wiring.delta_net(layer, weights, config)
        self._script.operation(t.CONVOLVE, descriptor)
        self._script.operation(t.RECUR, descriptor)
        mixed = wiring.activations("mixed", weights.output.columns)
        self._products.multiply([(weights.output, 0)], mixed, wiring.hidden, adds=True)

    def _gated(self, name: str, matrices: GatedMatrices) -> Activations:
        """SiLU(gate x) ⊙ up x of the normed rows."""
        parts = {f"{name}_gate": matrices.gate, f"{name}_up": matrices.up}
        if matrices.gate.rows % STEP == 0:
            self._together(f"{name}_inputs", {buffer: (matrix,) for buffer, matrix in parts.items()})
        else:  # whole steps are read of each: they must not run into each other
            for buffer, matrix in parts.items():
                target = self._wiring.workspace.buffer(buffer, matrix.rows)
                self._products.multiply([(matrix, 0)], self._normed, target)
        self._script.operation(t.SWIGLU, self._wiring.swiglu(name, matrices.gate.rows))
        return self._wiring.activations(f"{name}_product", matrices.gate.rows)

    # --- experts -----------------------------------------------------------------------------------

    def _expert_decoder(self, weights: TextWeights, threads: int) -> ExpertDecoder | None:
        if self._config.moe is None:
            return None
        first = weights.layers[0].experts
        assert first is not None
        begin = self._script.reserve(t.DECODE, MATRICES)
        return ExpertDecoder(begin, first.routed[0].gate.width, first.routed[0].down.width, threads)

    def _mixture(self, layer: int, weights: ExpertWeights) -> None:
        config, wiring, script = self._config.moe, self._wiring, self._script
        assert isinstance(config, MoeConfig)
        assert self.experts is not None
        self._together("routing", {"router": (weights.router,), "shared_score": (weights.shared_score,)})
        script.operation(t.ROUTE, wiring.experts(layer, weights, config, self._normed))
        product = self._gated("shared_mlp", weights.shared)
        shared = wiring.workspace.buffer("shared", self._config.hidden)
        self._products.multiply([(weights.shared.down, 0)], product, shared)
        size = (wiring.rows, config.experts_per_token)
        choice, strengths = (wiring.array(name, 0, None).reshape(size) for name in ("choice", "strengths"))
        score = wiring.workspace.buffer("shared_score", 1)
        rows = (
            torch.from_numpy(self._normed.natural.array),
            torch.from_numpy(score.array)[:, :1],
            torch.from_numpy(shared.array),
            torch.from_numpy(wiring.hidden.array),
        )
        script.step(Experts(weights.routed, self.experts, choice, strengths, rows))


class Prefill:
    """Runs chunks of at most ``wiring.rows`` tokens; the shortest as columns of the model's round.

    ``rows`` [T, hidden] is the residual stream after the last chunk, until something else runs.
    """

    def __init__(
        self,
        states: StateImages,
        wiring: Wiring,
        table: PrefillTable,
        round_table: TextTable,
        runner: RoundRunner,
    ) -> None:
        self._states, self._hidden = states, wiring.hidden.array
        self._table, self._round, self._runner = table, round_table, runner
        self.rows: npt.NDArray[np.float32] = self._hidden[:0]
        if table.experts is not None:
            table.experts.runner = runner

    @torch.inference_mode()
    def run(self, chunk: Chunk) -> npt.NDArray[np.float32]:
        """Advance the lane by the chunk; the residual row [hidden] of its last token."""
        count = len(chunk.tokens)
        self._control(chunk)
        if count <= SHORT_TOKENS:
            self._runner.run(*self._round.chunk, count, 1)
            self.rows = self._round.wiring.hidden.array[:count]
        else:
            self._run_steps(count)
            self.rows = self._hidden[:count]
        last: npt.NDArray[np.float32] = self.rows[-1]
        return last

    def _run_steps(self, count: int) -> None:
        for step in self._table.steps:
            if isinstance(step, Operations):
                self._runner.run(step.begin, step.end, count, 1)
            else:
                step.run(count)

    def _control(self, chunk: Chunk) -> None:
        count = len(chunk.tokens)
        rows, blocks = self._runner.rows, self._runner.blocks
        rows[:count, TOKEN] = chunk.tokens
        rows[:count, POSITION] = np.arange(chunk.start, chunk.start + count)
        rows[:count, AXIS_T : AXIS_W + 1] = chunk.axes.T
        rows[:count, BLOCK_TABLE] = chunk.block_table.ctypes.data
        rows[:count, KEPT] = 0
        blocks[0] = (0, count, self._states.address(chunk.slot), 1)
        assert blocks.shape[1] == BLOCK_FIELDS
