"""Sampling defaults of a loaded model, by architecture and thinking mode.

Owns the choice only; the numbers stand in ``spec/models/presets.yaml``.
"""

from __future__ import annotations

from dataclasses import dataclass

from ninfer import spec
from ninfer.errors import SpecError
from ninfer.model.config import TextConfig


@dataclass(frozen=True, slots=True)
class Preset:
    """One registered row: the sampler in force when neither process nor request says otherwise."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float


def preset(config: TextConfig, thinking: bool) -> Preset:
    """The preset of ``config``'s architecture for turns prepared with or without thinking.

    Errors: ``SpecError`` when the architecture has no row (every known one has).
    """
    for row in spec.document("models/presets")["presets"]:
        if row["architecture"] == config.architecture:
            return Preset(**row["thinking" if thinking else "non_thinking"])
    raise SpecError(f"spec/models/presets.yaml has no row for {config.architecture}")
