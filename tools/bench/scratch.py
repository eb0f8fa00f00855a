"""Random models of the published 0.8B shape, written where a benchmark may leave gigabytes for a while."""

from __future__ import annotations

import tempfile
from pathlib import Path

from ninfer.convert import convert
from tools.bench.convert_memory import write_checkpoint


def checkpoint(scratch: Path) -> Path:
    """The Hugging Face directory (1.5 GB), written once, whole or not at all."""
    directory = scratch / "random-0.8b"
    if not directory.exists():
        with tempfile.TemporaryDirectory(dir=scratch) as unfinished:
            write_checkpoint(Path(unfinished) / directory.name).rename(directory)
    return directory


def artifact(scratch: Path, recipe: str, source: Path | None = None) -> Path:
    """``recipe`` of ``source`` (default: the random checkpoint), made once."""
    out = scratch / f"{recipe}.ninfer"
    if not out.exists():
        convert(checkpoint(scratch) if source is None else source, out, recipe)
    return out
