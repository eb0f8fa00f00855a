"""The prediction head's weights on a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ninfer.artifact import Proposal
from ninfer.errors import ArtifactError, OptionError
from ninfer.fast.ops.linear.packing import Packed
from ninfer.fast.program.gpu.parameters import Layer, Source, TextModel, load_layer
from ninfer.fast.program.gpu.weights import project
from ninfer.model.config import TextConfig
from ninfer.model.parameters import mtp_parameters


class ProposalSource(Source, Protocol):
    """A source that may have a proposal head."""

    @property
    def proposal(self) -> Proposal | None:
        """What is said of it."""
        ...

    def integers(self, name: str) -> Tensor:
        """A parameter of ids, int32."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class MtpModel:
    """The head's own weights; norms hold 1 + w. ``token_ids`` are the ids of a proposal head's rows."""

    input_projection: Packed
    embedding_norm: Tensor
    hidden_norm: Tensor
    layer: Layer
    final_norm: Tensor
    head: Packed
    token_ids: Tensor | None


def load_mtp_model(
    source: ProposalSource, config: TextConfig, text: TextModel, proposal_head: bool
) -> MtpModel:
    """Load the head. Errors: ``ArtifactError`` for a shape or format that the kernels cannot compute."""
    for parameter in mtp_parameters(config):
        source.check_shape(parameter.name, parameter.shape)
    head, ids = text.head, None
    if proposal_head:
        head, ids = load_proposal_head(source, config)
    return MtpModel(
        input_projection=project([("input", source.matrix("mtp/input_projection"))]).single,
        embedding_norm=source.vector("mtp/embedding_norm", 1.0),
        hidden_norm=source.vector("mtp/hidden_norm", 1.0),
        layer=load_layer(source, config, "mtp/layers/0", attention=True),
        final_norm=source.vector("mtp/final_norm", 1.0),
        head=head,
        token_ids=ids,
    )


def load_proposal_head(source: ProposalSource, config: TextConfig) -> tuple[Packed, Tensor | None]:
    """The artifact's proposal head and the ids of its rows (None: row n is id n).

    Errors: ``OptionError`` where the artifact has none, ``ArtifactError`` where its ids are no set.
    """
    proposal = source.proposal
    if proposal is None:
        raise OptionError("--lm-head-draft", "the artifact has no proposal head; leave the option out")
    rows = config.vocab if proposal.rows is None else proposal.rows
    source.check_shape("proposal/head", (rows, config.hidden))
    head = project([("head", source.matrix("proposal/head"))]).single
    if proposal.rows is None:
        return head, None
    source.check_shape("proposal/token_ids", (rows,))
    ids = source.integers("proposal/token_ids")
    if len(torch.unique(ids)) < len(ids) or int(ids.min()) < 0 or int(ids.max()) >= config.vocab:
        raise ArtifactError("bindings.proposal/token_ids", f"must be different ids in 0..{config.vocab - 1}")
    return head, ids
