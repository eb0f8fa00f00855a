"""The ``.ninfer`` container, version 3: reader, writer, storage layouts and codecs. NumPy only.

``reader`` opens a file and decodes parameters through its bindings; ``writer`` carries out a ``plan``;
``framing``, ``json_text``, ``schema`` and ``render`` are the file's outer form, ``payload`` its bytes across
part files, ``layouts`` the geometry of an object, ``codecs`` the numbers. Constants: ``spec/artifact.yaml``.
Never imports an engine, torch or HTTP; does not know what a parameter means.
"""

from ninfer.artifact.directory import (
    Binding,
    Component,
    Directory,
    FileEntry,
    Part,
    Proposal,
    ResourceObject,
    TensorObject,
    Use,
)
from ninfer.artifact.plan import ArtifactPlan, PlannedResource, PlannedTensor
from ninfer.artifact.reader import Artifact, EncodedPiece
from ninfer.artifact.summary import WeightSummary
from ninfer.artifact.writer import ArtifactWriter

__all__ = [
    "Artifact",
    "ArtifactPlan",
    "ArtifactWriter",
    "Binding",
    "Component",
    "Directory",
    "EncodedPiece",
    "FileEntry",
    "Part",
    "PlannedResource",
    "PlannedTensor",
    "Proposal",
    "ResourceObject",
    "TensorObject",
    "Use",
    "WeightSummary",
]
