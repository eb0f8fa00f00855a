"""The text model's round as a table: Forward to float32 logits, Finish to tokens, fold after verifying.

Owns the order of operations; buffers and descriptors stand in ``wiring.py``, the mathematics in ``ops``.
"""

from __future__ import annotations

import numpy as np

from ninfer.fast.memory.pages import PagePool
from ninfer.fast.memory.states import StateImages
from ninfer.fast.ops.attention.cpu import split_count
from ninfer.fast.ops.control import MAX_COLUMNS
from ninfer.fast.ops.linear.contract import ADD
from ninfer.fast.ops.select import contract as select
from ninfer.fast.program import table as t
from ninfer.fast.program.parameters import LayerWeights, TextWeights
from ninfer.fast.program.wiring import Descriptor, Pair, Wiring
from ninfer.model.config import TextConfig

Range = tuple[int, int]


class TextTable:
    """A model's round. ``forward``, ``head``, ``finish`` and ``fold`` are ranges of its operations.

    ``head`` is the tail of ``forward`` from the residual rows to logits (after prefill). Results lie in
    ``logits`` [rows, vocabulary] and ``drawn`` [rows].
    """

    def __init__(
        self,
        config: TextConfig,
        weights: TextWeights,
        states: StateImages,
        pages: PagePool | None,
        max_context: int,
        vocabulary: int,
        threads: int,
        builder: t.TableBuilder,
    ) -> None:
        self.wiring = Wiring(config, states, pages, MAX_COLUMNS, threads, split_count(max_context - 1))
        self._config, self._weights = config, weights
        self._builder = builder
        self._delta_nets: list[Descriptor] = []
        self.final = self.wiring.pair("final", config.hidden)
        self.logits = self.wiring.workspace.buffer("logits", config.vocab)
        self.drawn = self.wiring.array("drawn", MAX_COLUMNS, np.int64)
        begin = builder.length
        self._forward()
        self.forward: Range = (begin, self._builder.length)
        self.head: Range = (self._builder.length - 2, self._builder.length)
        self._finish(vocabulary)
        self.finish: Range = (self.forward[1], self._builder.length)
        for descriptor in self._delta_nets:
            self._builder.add(t.FOLD, descriptor)
            self._builder.add(t.SHIFT, descriptor)
        self.fold: Range = (self.finish[1], self._builder.length)

    def _forward(self) -> None:
        wiring, add = self.wiring, self._builder.add
        add(t.EMBED, wiring.embed(self._weights.embedding))
        if self._config.attention is not None:
            add(t.ROTARY, wiring.rotary(self._config.attention))
        x = wiring.pair("normed", self._config.hidden)
        for layer, weights in enumerate(self._weights.layers):
            add(t.NORM, wiring.norm(weights.input_norm, x))
            self._mixer(layer, weights, x)
            add(t.NORM, wiring.norm(weights.post_attention_norm, x))
            self._feed_forward(layer, weights, x)
        add(t.NORM, wiring.norm(self._weights.final_norm, self.final))
        self._builder.linear(wiring.segments(self._weights.head, self.final, self.logits))

    def _mixer(self, layer: int, weights: LayerWeights, x: Pair) -> None:
        if weights.attention is not None:
            self._attention(layer, weights, x)
        else:
            self._delta_net(layer, weights, x)

    def _attention(self, layer: int, weights: LayerWeights, x: Pair) -> None:
        part, config, wiring = weights.attention, self._config.attention, self.wiring
        assert part is not None
        assert config is not None
        descriptor = wiring.attention(layer, part, config)
        matrices = {"query": part.query, "gate": part.gate, "key": part.key, "value": part.value}
        self._builder.linear(
            [
                segment
                for name, matrix in matrices.items()
                for segment in wiring.segments(matrix, x, wiring.workspace.buffer(name, matrix.rows))
            ]
        )
        for opcode in (t.APPEND, t.ATTEND, t.MERGE):
            self._builder.add(opcode, descriptor)
        attended = wiring.pair("attended", part.output.columns)
        self._builder.linear(wiring.segments(part.output, attended, wiring.hidden, mode=ADD))

    def _delta_net(self, layer: int, weights: LayerWeights, x: Pair) -> None:
        part, config, wiring = weights.gdn, self._config.gdn, self.wiring
        assert part is not None
        assert config is not None
        # Records per layer: fold replays them after the whole round.
        descriptor = wiring.delta_net(layer, part, config, f"_{layer}")
        inputs = wiring.workspace.buffer(f"inputs_{layer}", config.channels)
        matrices = {"z": part.z, "a": part.a_projection, "b": part.b_projection}
        keys = part.query.rows
        self._builder.linear(
            [
                *wiring.segments(part.query, x, inputs),
                *wiring.segments(part.key, x, inputs, keys),
                *wiring.segments(part.value, x, inputs, 2 * keys),
                *(
                    segment
                    for name, matrix in matrices.items()
                    for segment in wiring.segments(matrix, x, wiring.workspace.buffer(name, matrix.rows))
                ),
            ]
        )
        self._delta_nets.append(descriptor)
        self._builder.add(t.CONVOLVE, descriptor)
        self._builder.add(t.RECUR, descriptor)
        mixed = wiring.pair("mixed", part.output.columns)
        self._builder.linear(wiring.segments(part.output, mixed, wiring.hidden, mode=ADD))

    def _feed_forward(self, layer: int, weights: LayerWeights, x: Pair) -> None:
        if weights.mlp is not None:
            product = self._gated("mlp", weights.mlp.gate.rows, weights, x)
            self._builder.linear(
                self.wiring.segments(weights.mlp.down, product, self.wiring.hidden, mode=ADD)
            )
        else:
            self._mixture(layer, weights, x)

    def _gated(self, name: str, width: int, weights: LayerWeights, x: Pair) -> Pair:
        matrices = weights.mlp if weights.experts is None else weights.experts.shared
        assert matrices is not None
        buffers = (self.wiring.workspace.buffer(f"{name}_{part}", width) for part in ("gate", "up"))
        self._builder.linear(
            [
                segment
                for matrix, buffer in zip((matrices.gate, matrices.up), buffers, strict=True)
                for segment in self.wiring.segments(matrix, x, buffer)
            ]
        )
        self._builder.add(t.SWIGLU, self.wiring.swiglu(name, width))
        return self.wiring.pair(f"{name}_product", width)

    def _mixture(self, layer: int, weights: LayerWeights, x: Pair) -> None:
        part, config, wiring = weights.experts, self._config.moe, self.wiring
        assert part is not None
        assert config is not None
        descriptor = wiring.experts(layer, part, config, x)
        router = wiring.workspace.buffer("router", config.experts)
        score = wiring.workspace.buffer("shared_score", 1)
        self._builder.linear(
            [*wiring.segments(part.router, x, router), *wiring.segments(part.shared_score, x, score)]
        )
        product = self._gated("shared_mlp", part.shared.gate.rows, weights, x)
        shared = wiring.workspace.buffer("shared", self._config.hidden)
        self._builder.linear(wiring.segments(part.shared.down, product, shared))
        for opcode in (t.ROUTE, t.EXPAND, t.CONTRACT):
            self._builder.add(opcode, descriptor)

    def _finish(self, vocabulary: int) -> None:
        slices = -(-vocabulary // select.SLICE)
        best = self.wiring.array("best", MAX_COLUMNS * slices * (1 + 2 * select.CANDIDATES), np.int64)
        logits = (self.logits.address, self.logits.stride, vocabulary)
        for opcode in (t.SCAN, t.DRAW):
            self._builder.add(opcode, (*logits, best.ctypes.data, self.drawn.ctypes.data))
