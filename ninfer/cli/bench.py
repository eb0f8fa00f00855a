"""``ninfer-bench``: measures prefill and decode speed. Its work has not landed; help and version have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ninfer.cli.parser import run


def main(argv: Sequence[str] | None = None) -> int:
    """The console script; the exit status."""
    return run("ninfer-bench", argv, measure)


def measure(options: Mapping[str, Any]) -> int:
    """Never reached: ``spec/options.yaml`` refuses the program until there is a fast engine to measure."""
    raise AssertionError(f"spec/options.yaml let ninfer-bench through with {options!r}")
