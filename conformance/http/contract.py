"""Reads the contract files under ``spec/``, independent of the implementation's own reader."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import yaml

_SPEC = Path(__file__).parents[2] / "spec"


@functools.cache
def document(name: str) -> Any:
    """The parsed content of ``spec/<name>.yaml``; treat it as read-only."""
    return yaml.safe_load((_SPEC / f"{name}.yaml").read_text(encoding="utf-8"))


@functools.cache
def vectors(name: str) -> Any:
    """The golden cases of ``spec/vectors/<name>.json``; treat them as read-only."""
    return json.loads((_SPEC / "vectors" / f"{name}.json").read_text(encoding="utf-8"))
