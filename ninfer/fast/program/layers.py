"""Decoder layers as operations of a table, over one workspace: what the text model and its MTP head share.

Owns the order of operations within a layer; buffers and descriptors stand in ``wiring.py``.
"""

from __future__ import annotations

from ninfer.fast.ops.attention import contract as attention
from ninfer.fast.ops.linear.contract import ADD
from ninfer.fast.program import table as t
from ninfer.fast.program.parameters import LayerWeights
from ninfer.fast.program.wiring import Activations, Descriptor, Wiring
from ninfer.model.config import TextConfig


class LayerTable:
    """Appends layers over ``wiring`` to ``builder``; ``delta_nets`` are the recorded ones' descriptors."""

    def __init__(self, config: TextConfig, wiring: Wiring, builder: t.TableBuilder) -> None:
        self.wiring = wiring
        self.delta_nets: list[Descriptor] = []
        self._config, self._builder = config, builder

    def layer(self, layer: int, weights: LayerWeights, x: Activations, recorded: int = 0) -> None:
        """One decoder layer on the residual stream; ``x`` holds its normed input.

        It leaves records of ``recorded`` columns for the fold; with 0 it leaves none.
        """
        self._builder.add(t.NORM, self.wiring.norm(weights.input_norm, x))
        self._mixer(layer, weights, x, recorded)
        self.feed_forward(layer, weights, x)

    def feed_forward(self, layer: int, weights: LayerWeights, x: Activations) -> None:
        """The second half of a layer, its norm included."""
        self._builder.add(t.NORM, self.wiring.norm(weights.post_attention_norm, x))
        if weights.mlp is not None:
            product = self._gated("mlp", weights.mlp.gate.rows, weights, x)
            self._builder.linear(
                self.wiring.segments(weights.mlp.down, product, self.wiring.hidden, mode=ADD)
            )
        else:
            self._mixture(layer, weights, x)

    def keys_alone(self, layer: int, weights: LayerWeights, x: Activations) -> None:
        """Keys and values of normed rows into the cache of an attention layer; no output."""
        part, config, wiring = weights.attention, self._config.attention, self.wiring
        assert part is not None
        assert config is not None
        descriptor = list(wiring.attention(layer, part, config))
        descriptor[attention.QUERY_HEADS] = 0  # there are no queries to turn
        self._builder.linear(
            [
                segment
                for name, matrix in {"key": part.key, "value": part.value}.items()
                for segment in wiring.segments(matrix, x, wiring.workspace.buffer(name, matrix.rows))
            ]
        )
        self._builder.add(t.APPEND, descriptor)

    def _mixer(self, layer: int, weights: LayerWeights, x: Activations, recorded: int) -> None:
        if weights.attention is not None:
            self._attention(layer, weights, x)
        else:
            self._delta_net(layer, weights, x, recorded)

    def _attention(self, layer: int, weights: LayerWeights, x: Activations) -> None:
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
        attended = wiring.activations("attended", part.output.columns)
        self._builder.linear(wiring.segments(part.output, attended, wiring.hidden, mode=ADD))

    def _delta_net(self, layer: int, weights: LayerWeights, x: Activations, recorded: int) -> None:
        part, config, wiring = weights.gdn, self._config.gdn, self.wiring
        assert part is not None
        assert config is not None
        # Records per layer: fold replays them after the whole round.
        records, rows = (f"_{layer}", recorded) if recorded else ("", None)
        descriptor = wiring.delta_net(layer, part, config, records, rows)
        inputs = wiring.workspace.buffer(f"inputs{records}", config.channels)
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
        if recorded:
            self.delta_nets.append(descriptor)
        self._builder.add(t.CONVOLVE, descriptor)
        self._builder.add(t.RECUR, descriptor)
        mixed = wiring.activations("mixed", part.output.columns)
        self._builder.linear(wiring.segments(part.output, mixed, wiring.hidden, mode=ADD))

    def _gated(self, name: str, width: int, weights: LayerWeights, x: Activations) -> Activations:
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
        return self.wiring.activations(f"{name}_product", width)

    def _mixture(self, layer: int, weights: LayerWeights, x: Activations) -> None:
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
