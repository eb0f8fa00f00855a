"""Loads an artifact's parameters into tensors by logical name.

Owns the conversion from decoded arrays and the sharing of a tied head; bindings and formats are the
artifact's business, the forward pass is the model's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ninfer.artifact import Artifact
from ninfer.errors import ArtifactError
from ninfer.model.config import TextConfig
from ninfer.model.parameters import Parameter, mtp_parameters, text_parameters

LoadListener = Callable[[int, int], None]


def load_text(
    artifact: Artifact, config: TextConfig, dtype: torch.dtype, listener: LoadListener | None = None
) -> dict[str, Tensor]:
    """The text model's parameters in ``dtype``; a tied head is the embedding's own tensor.

    ``listener`` hears elements loaded and in all. Errors: ``ArtifactError`` naming the parameter.
    """
    parameters = [p for p in text_parameters(config) if not (config.tied and p.name == "text/output_head")]
    weights = _load(artifact, parameters, dtype, listener)
    if config.tied:
        weights["text/output_head"] = weights["text/token_embedding"]
    return weights


def load_mtp(
    artifact: Artifact, config: TextConfig, dtype: torch.dtype, listener: LoadListener | None = None
) -> dict[str, Tensor]:
    """The MTP head's parameters in ``dtype``; otherwise as ``load_text``."""
    return _load(artifact, mtp_parameters(config), dtype, listener)


def _load(
    artifact: Artifact, parameters: Sequence[Parameter], dtype: torch.dtype, listener: LoadListener | None
) -> dict[str, Tensor]:
    total, loaded, weights = sum(map(_elements, parameters)), 0, dict[str, Tensor]()
    for parameter in parameters:
        shape = artifact.parameter_shape(parameter.name)
        if shape != parameter.shape:
            raise ArtifactError(
                f"bindings.{parameter.name}", f"has shape {shape}, the config asks for {parameter.shape}"
            )
        # A copy: the decoded array may be a read-only view of the file.
        weights[parameter.name] = torch.from_numpy(artifact.parameter(parameter.name).copy()).to(dtype)
        loaded += _elements(parameter)
        if listener is not None:
            listener(loaded, total)
    return weights


def _elements(parameter: Parameter) -> int:
    return math.prod(parameter.shape)
