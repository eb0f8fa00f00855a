"""Source code for copies and edits: the Python standard library of the running interpreter.

Files are split by their path, so that exam excerpts come from files that training never opens, whichever
Python version either runs under.
"""

from __future__ import annotations

import functools
import random
import sysconfig
from pathlib import Path

from tools.tiny.data.split import Split, split_of

_SKIPPED = {
    "test",
    "tests",
    "site-packages",
    "dist-packages",
    "idlelib",
    "lib2to3",
    "pydoc_data",
    "encodings",
}
_LONGEST_LINE = 100


@functools.cache
def sources(split: Split) -> tuple[tuple[str, ...], ...]:
    """Lines of every file of one side, files in path order."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = []
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if _SKIPPED.isdisjoint(relative.parts) and split_of(f"file\n{relative.as_posix()}") == split:
            lines = _lines(path)
            if len(lines) >= 20:
                files.append(lines)
    if not files:
        raise FileNotFoundError(f"no Python sources of the standard library for {split} under {root}")
    return tuple(files)


def _lines(path: Path) -> tuple[str, ...]:
    text = path.read_text(encoding="utf-8", errors="ignore").expandtabs(4)
    return tuple(line.rstrip()[:_LONGEST_LINE].rstrip() for line in text.split("\n"))


def excerpt(rng: random.Random, split: Split, characters: int) -> str:
    """Consecutive lines of one file, about ``characters`` long, without outer blank space."""
    files = sources(split)
    lines = rng.choices(files, cum_weights=_cumulated(split))[0]
    start = rng.randrange(len(lines))
    taken: list[str] = []
    size = 0
    for line in lines[start:]:
        if taken and size + len(line) > characters:
            break
        taken.append(line)
        size += len(line) + 1
    text = "\n".join(taken).strip()
    return text if len(text) > 12 else excerpt(rng, split, characters)


@functools.cache
def _cumulated(split: Split) -> tuple[int, ...]:
    total, sums = 0, []
    for lines in sources(split):
        total += len(lines)
        sums.append(total)
    return tuple(sums)
