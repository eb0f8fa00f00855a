"""The directory of compiled kernels is keyed by everything their machine code depends on."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import llvmlite
import llvmlite.binding
import numba
import pytest

import ninfer.fast
from ninfer.fast.ops import cache

FAST = Path(ninfer.fast.__file__).parent
# Every module that declares a compiled function or a constant that one freezes.
SOURCES = sorted(
    path.relative_to(FAST).as_posix()
    for path in FAST.rglob("*.py")
    if path.is_relative_to(FAST / "ops")
    or path.name in ("round.py", "operations.py", "table.py", "kernels.py")
)


def copied(directory: Path) -> ModuleType:
    """``cache.py`` of a copy of the fast engine's sources."""
    root = directory / "fast"
    if not root.exists():
        shutil.copytree(FAST, root, ignore=shutil.ignore_patterns("__pycache__"))
    found = importlib.util.spec_from_file_location("copied_cache", root / "ops/cache.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_a_copy_of_the_sources_has_the_same_key(tmp_path: Path) -> None:
    assert copied(tmp_path).cache_key() == cache.cache_key() == cache.cache_key()


@pytest.mark.parametrize("source", SOURCES)
def test_key_changes_with_every_source(source: str, tmp_path: Path) -> None:
    module = copied(tmp_path)
    before = module.cache_key()
    path = tmp_path / "fast" / source
    original = path.read_bytes()
    path.write_bytes(original + b"\n")
    assert module.cache_key() != before, f"a change of {source} would run stale machine code"
    path.write_bytes(original)
    assert module.cache_key() == before


def test_key_changes_with_new_and_renamed_files(tmp_path: Path) -> None:
    module = copied(tmp_path)
    keys = {module.cache_key()}
    (tmp_path / "fast/ops/linear/gpu_notes.py").write_text("x = 1\n")
    keys.add(module.cache_key())
    (tmp_path / "fast/ops/linear/gpu_notes.py").rename(tmp_path / "fast/ops/moe/gpu_notes.py")
    keys.add(module.cache_key())
    assert len(keys) == 3


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (numba, "__version__", "0.0"),
        (llvmlite, "__version__", "0.0"),
        (llvmlite.binding, "get_host_cpu_name", lambda: "abacus"),
        (llvmlite.binding, "get_host_cpu_features", llvmlite.binding.FeatureMap),
    ],
    ids=["numba", "llvmlite", "processor", "features"],
)
def test_key_changes_with_compiler_and_processor(
    owner: object, name: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = cache.cache_key()
    monkeypatch.setattr(owner, name, value)
    assert cache.cache_key() != before


def test_directory_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NINFER_KERNEL_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.cache_directory() == tmp_path / "ninfer" / "kernels" / cache.cache_key()
    monkeypatch.setenv("NINFER_KERNEL_CACHE", str(tmp_path / "mine"))
    assert cache.cache_directory() == tmp_path / "mine" / cache.cache_key()


def test_kernels_are_kept_there(tmp_path: Path) -> None:
    """One small kernel, compiled by a process of its own and found again by the next."""
    script = (
        "import numpy as np\n"
        "from ninfer.fast.ops.compiled import entry\n"
        "from ninfer.fast.ops.select import philox\n"
        "uniform = entry(philox.uniform.py_func)\n"
        "uniform(np.uint64(1), 2)\n"
        "print(sum(uniform.stats.cache_hits.values()))\n"
    )
    environment = os.environ | {"NINFER_KERNEL_CACHE": str(tmp_path)}
    hits = [
        subprocess.run(
            [sys.executable, "-c", script], env=environment, check=True, capture_output=True, text=True
        ).stdout.strip()
        for _ in range(2)
    ]
    assert hits == ["0", "1"]
    assert list((tmp_path / cache.cache_key()).rglob("*.nbi"))
