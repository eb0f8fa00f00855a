"""Nano models on a shelf: artifacts built once in a directory, weights read once per precision.

Owns files and loading; which models there are is drawn in ``draws.py``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from conformance.engine.draws import MAX_CONTEXT, EngineDraw, ModelDraw
from ninfer.artifact import Artifact
from ninfer.convert import convert
from ninfer.fast.program.program import Program, ProgramOptions
from ninfer.model.config import TextConfig, parse_text_config
from ninfer.reference.weights import load_text
from tests.support.nano import VOCABULARY, nano_checkpoint

# Weights of so many models stay loaded.
_KEPT = 4


class Model:
    """One artifact with the reference's weights in float32 and float64."""

    def __init__(self, draw: ModelDraw, path: Path) -> None:
        self.draw, self.path = draw, path
        with Artifact.open(path) as artifact:
            self.config: TextConfig = parse_text_config(artifact.directory.components["text"].config)
            self.weights: Mapping[torch.dtype, Mapping[str, Tensor]] = {
                dtype: load_text(artifact, self.config, dtype) for dtype in (torch.float32, torch.float64)
            }

    def program(self, engine: EngineDraw, max_context: int = MAX_CONTEXT, snapshot_slots: int = 0) -> Program:
        """A fast program of these sizes; the caller closes it."""
        options = ProgramOptions(
            lanes=engine.lanes,
            max_context=max_context,
            pages=engine.pages,
            kv_format=engine.kv_format,
            prefill_chunk=engine.chunk,
            threads=engine.threads,
            vocabulary=VOCABULARY,
            activations=engine.activations,
            snapshot_slots=snapshot_slots,
        )
        with Artifact.open(self.path) as artifact:
            return Program(artifact, self.config, options)


class Shelf:
    """Models by their draw; artifacts lie in ``directory``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._loaded: OrderedDict[str, Model] = OrderedDict()

    def model(self, draw: ModelDraw) -> Model:
        """The model of this draw, built if it is new."""
        if draw.name in self._loaded:
            self._loaded.move_to_end(draw.name)
            return self._loaded[draw.name]
        path = self._directory / draw.name / "nano.ninfer"
        if not path.exists():
            _build(draw, path)
        model = self._loaded[draw.name] = Model(draw, path)
        if len(self._loaded) > _KEPT:
            self._loaded.popitem(last=False)
        return model


def _build(draw: ModelDraw, path: Path) -> None:
    checkpoint = path.parent / "checkpoint"
    nano_checkpoint(checkpoint, draw.kind, draw.tied, mtp=False, seed=draw.seed, **draw.changes)
    if draw.twins:
        file = checkpoint / "model.safetensors"
        tensors = load_file(file)
        tensors["lm_head.weight"][1::2] = tensors["lm_head.weight"][::2]
        save_file(tensors, file, metadata={"format": "pt"})
    convert(checkpoint, path, draw.recipe, name=draw.name)
