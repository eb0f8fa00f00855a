"""The prediction head's weights on a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from ninfer.fast.ops.linear.packing import Packed
from ninfer.fast.program.gpu.parameters import Layer, Source, TextModel, load_layer
from ninfer.fast.program.gpu.weights import project
from ninfer.fast.program.proposal import ProposalSource, proposal_ids
from ninfer.model.config import TextConfig
from ninfer.model.parameters import mtp_parameters


class MtpSource(Source, ProposalSource[Tensor], Protocol):
    """A source of a head's parameters, a proposal head's included."""


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


def load_mtp_model(source: MtpSource, config: TextConfig, text: TextModel, proposal_head: bool) -> MtpModel:
    """Load the head. Errors: ``ArtifactError`` for a shape or format that the kernels cannot compute."""
    for parameter in mtp_parameters(config):
        source.check_shape(parameter.name, parameter.shape)
    head, ids = text.head, None
    if proposal_head:
        ids = proposal_ids(source, config)
        head = project([("head", source.matrix("proposal/head"))]).single
    return MtpModel(
        input_projection=project([("input", source.matrix("mtp/input_projection"))]).single,
        embedding_norm=source.vector("mtp/embedding_norm", 1.0),
        hidden_norm=source.vector("mtp/hidden_norm", 1.0),
        layer=load_layer(source, config, "mtp/layers/0", attention=True),
        final_norm=source.vector("mtp/final_norm", 1.0),
        head=head,
        token_ids=ids,
    )
