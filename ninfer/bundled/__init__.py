"""The model that travels with the package: ninfer-tiny, a small trained demonstration model.

``path()`` is its artifact. ``tools/tiny`` makes it, ``docs/ninfer-tiny.md`` is its card.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

NAME = "ninfer-tiny"


def path() -> Path:
    """The bundled artifact; wheels are installed unpacked, so it is a file to map."""
    return Path(str(files(__package__).joinpath(f"{NAME}.ninfer")))
