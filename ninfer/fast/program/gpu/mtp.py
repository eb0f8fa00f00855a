"""The multi-token prediction head on a device: its weights, its launches, and the steps of a draft.

As ``ninfer.fast.program.mtp`` on CPUs: a pair joins the final hidden row of position p with the token at
p + 1; its key and value stand at p. All steps of a draft run on the device one after the other: what a step
draws is the next one's input there, and the host reads the drafts once.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor

from ninfer.fast.ops.control import MAX_COLUMNS
from ninfer.fast.ops.linear.gpu import embed, linear
from ninfer.fast.ops.linear.packing import padded
from ninfer.fast.ops.rms_norm.gpu import combine
from ninfer.fast.ops.rows.gpu import advance, gather
from ninfer.fast.ops.select import gpu as select
from ninfer.fast.program.gpu.buffers import STEP, RoundBuffers, Sizes
from ninfer.fast.program.gpu.control import Control
from ninfer.fast.program.gpu.device import Waiter
from ninfer.fast.program.gpu.forward import Forward, Pending
from ninfer.fast.program.gpu.memory import GpuStates, mtp_layer
from ninfer.fast.program.gpu.mtp_weights import MtpModel
from ninfer.fast.program.gpu.parameters import TextModel
from ninfer.fast.program.gpu.shapes import Shape
from ninfer.fast.program.gpu.staging import Ring, Told
from ninfer.fast.program.gpu.tiles import TileTable
from ninfer.model.config import TextConfig

# Room for the drafts of a round: as many as ``--draft-tokens`` may ask for, and one.
MOST_DRAFTS = 16


class _Head(Forward):
    """What every launch of the head begins with, over ``control``'s rows and ``buffers``."""

    def __init__(
        self,
        config: TextConfig,
        model: MtpModel,
        text: TextModel,
        states: GpuStates,
        buffers: RoundBuffers,
        control: Control,
        tiles: TileTable,
    ) -> None:
        head = TextModel(text.embedding, (model.layer,), model.final_norm, model.head)
        super().__init__(config, head, states, None, buffers, control, tiles, records=False)
        self._mtp, self._text = model, text
        self._images, self._hidden_at = states.images, states.hidden_at
        make, rows = buffers.workspace.tensor, buffers.sizes.rows
        self._given = make("mtp_given", (rows, config.hidden), torch.float32)
        self._previous = make("mtp_previous", (rows, config.hidden), torch.float32)
        width = padded(2 * config.hidden, STEP)
        self._joined = make("mtp_joined", (rows, width), buffers.normed.dtype)

    def _gather(self, hidden: Tensor, chunk: Tensor, rows: int) -> None:
        """The rows that the pairs of ``control.rows`` begin with, wherever they lie."""
        gather(hidden, chunk, self._images, self._hidden_at, self._control.rows, self._given, rows)

    def _stem(self, rows: int) -> Pending:
        eps = self._config.rms_eps
        combine(self._given, None, None, None, self._text.final_norm, self._previous, eps, rows)
        return self._join(rows)

    def _join(self, rows: int) -> Pending:
        """[norm(embedding) ; norm(previous)] through the input projection."""
        b, eps, width = self._buffers, self._config.rms_eps, self._config.hidden
        embed(self._control.rows[:, 0], self._model.embedding, b.hidden, rows)
        combine(b.hidden, None, None, None, self._mtp.embedding_norm, self._joined, eps, rows)
        combine(self._previous, None, None, None, self._mtp.hidden_norm, self._joined[:, width:], eps, rows)
        b.hidden[:rows].zero_()
        return Pending(self._multiply(self._joined, self._mtp.input_projection, b.sums, rows))


class PairBuffers(RoundBuffers):
    """Of a round's buffers those that keys and values alone need, for ``sizes.rows`` pairs."""

    def __init__(
        self,
        config: TextConfig,
        sizes: Sizes,
        activations: torch.dtype,
        query: torch.dtype,
        device: torch.device,
    ) -> None:
        self._begin(config, sizes, activations, device)
        heads = config.attention
        assert heads is not None
        self.query = self.workspace.tensor("query", (sizes.rows, heads.query_heads, heads.head_dim), query)


class Pairs(_Head):
    """``take`` fills the cache with pairs whose records were written to ``ring``.

    A record's BLOCK says where the row lies that its pair begins with: a row of ``hidden``, the last
    Forward's, behind these one of ``chunk``, a prompt's, or −1 − slot for that in a state image.
    """

    def __init__(
        self,
        config: TextConfig,
        model: MtpModel,
        text: TextModel,
        states: GpuStates,
        buffers: RoundBuffers,
        control: Control,
        tiles: TileTable,
        hidden: Tensor,
        chunk: Tensor,
        waiter: Waiter,
    ) -> None:
        super().__init__(config, model, text, states, buffers, control, tiles)
        self.hidden, self.chunk = hidden, chunk
        # Room for a whole prompt's chunk in launches of MAX_COLUMNS.
        self.ring = Ring(control.rows, len(chunk) + 2 * MAX_COLUMNS, waiter)

    @property
    def bytes(self) -> int:
        """Memory of its buffers."""
        return self._buffers.workspace.bytes

    def take(self, rows: int) -> None:
        """Keys and values of the ring's next ``rows`` pairs; no output."""
        self.ring.pull(rows)
        self._gather(self.hidden, self.chunk, rows)
        pending = self._stem(rows)
        (layer,) = self._model.layers
        assert layer.attention is not None
        self._norm(pending, layer.input_norm, rows)
        self._append(mtp_layer(self._config), layer.attention, rows)


class Drafts(_Head):
    """Draws drafts on a round's buffers, but for the residual rows.

    ``first`` and ``again`` draw those of the first rows, one step each, into ``drafts`` [lanes, MOST_DRAFTS]
    (ids, below 0: no token), and into ``told`` for the host.
    """

    def __init__(
        self,
        config: TextConfig,
        model: MtpModel,
        text: TextModel,
        states: GpuStates,
        buffers: RoundBuffers,
        control: Control,
        tiles: TileTable,
    ) -> None:
        own = copy.copy(buffers)
        make, lanes = buffers.workspace.tensor, control.prompts
        own.hidden = make("mtp_hidden", (buffers.sizes.rows, config.hidden), torch.float32)
        super().__init__(config, model, text, states, own, control, tiles)
        self.drafts = torch.zeros((lanes, MOST_DRAFTS), dtype=torch.int32, device=buffers.workspace.device)
        self.told = Told(self.drafts.shape, buffers.workspace.device)
        names = model.token_ids
        self._logits = own.logits
        if names is not None:
            self._logits = make("mtp_logits", (1, lanes, model.head.rows), torch.float32)
        self._vocabulary = buffers.sizes.vocabulary if names is None else len(names)

    def first(self, rows: int) -> None:
        """Draw after the pairs that were sent, whose hidden rows lie in their lanes' images."""
        self._control.arrive()
        self._gather(self._given, self._given, rows)
        self._draw(self._stem(rows), rows)

    def again(self, rows: int) -> None:
        """Draw once more: each row's last draft and the head's own row are the next pair."""
        self._draw(self._join(rows), rows)

    def _draw(self, pending: Pending, rows: int) -> None:
        b, c, eps = self._buffers, self._control, self._config.rms_eps
        (layer,) = self._model.layers
        assert layer.attention is not None
        self._norm(pending, layer.input_norm, rows)
        mixed = self._attention(mtp_layer(self._config), layer.attention, Shape(rows, rows))
        pending = Pending(self._multiply(mixed, layer.attention.output, b.sums, rows))
        self._norm(pending, layer.post_norm, rows)
        pending = self._feed_forward(layer, rows)
        # The head's own row in float32 is the next step's, in activations it is what the logits come from.
        norm, own = self._mtp.final_norm, self._previous
        combine(b.hidden, pending.sums, pending.shared, pending.score, norm, own, eps, rows)
        self._norm(Pending(), norm, rows)
        tile = self._tiles.tile(self._mtp.head, "head")
        linear(b.normed, self._mtp.head, self._logits, replace(tile, parts=1), rows)
        select.select(
            self._logits[0], c.numbers, c.words, c.counts, c.masks, self._vocabulary, b.best, b.flags,
            b.drawn, rows, select.Earlier(self.drafts, self.drafts.stride(0), 1), self._mtp.token_ids,
        )  # fmt: skip
        drafts = (self.drafts, self.told.memory)
        advance(b.drawn, self._mtp.token_ids, c.rows, c.blocks, c.words, *drafts, rows)
