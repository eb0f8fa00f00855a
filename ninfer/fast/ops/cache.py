"""Where compiled kernels are kept: a directory keyed by everything that the machine code depends on.

Numba alone would keep stale code when a callee in another file or a frozen number changes, so the key hashes
every source file with compiled functions, the tables that they freeze, the versions of Numba and llvmlite and
the processor's features.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm
import numba

from ninfer import spec


def cache_key() -> str:
    """Hex digest of the sources, the compiler and the processor."""
    digest = hashlib.blake2b(digest_size=12)
    root = Path(__file__).parent
    # The round's compiled functions freeze the numbers of program/table.py, the index's those of its table.
    program = [f"program/{name}.py" for name in ("round", "tasks", "operations", "table")]
    others = [root.parent / name for name in (*program, "draft/ngram/kernels.py")]
    for path in sorted([*root.rglob("*.py"), *others]):
        digest.update(path.relative_to(root.parent).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    digest.update(json.dumps(spec.document("speculation")["ngram"], sort_keys=True).encode() + b"\0")
    features = llvm.get_host_cpu_features().flatten()
    for part in (numba.__version__, llvmlite.__version__, llvm.get_host_cpu_name(), features):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()


def cache_directory() -> Path:
    """``NINFER_KERNEL_CACHE`` or the user's cache directory, then the key."""
    chosen = os.environ.get("NINFER_KERNEL_CACHE")
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return (Path(chosen) if chosen else home / "ninfer" / "kernels") / cache_key()


def use_keyed_directory() -> None:
    """Make Numba store compiled kernels under ``cache_directory()``; before any kernel is declared."""
    numba.config.CACHE_DIR = str(cache_directory())
