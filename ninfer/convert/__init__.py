"""Checkpoints that users hold → ``.ninfer`` artifacts. NumPy only; torch and transformers only under
``--verify``.

``checkpoint`` and ``weights_file`` read a Hugging Face directory, ``architecture`` its config,
``sources`` says where each logical parameter lies, ``recipe`` and ``layout`` which tensors are stored and
how, ``resources`` gathers the frontend files, ``pipeline`` writes. Tables: ``spec/convert.yaml``. Never
imports an engine or the server.
"""

from ninfer.convert.pipeline import Conversion, convert
from ninfer.convert.recipe import recipe_names

__all__ = ["Conversion", "convert", "recipe_names"]
