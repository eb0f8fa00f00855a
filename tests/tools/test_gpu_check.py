"""Kernels compile ahead of time for every architecture, in a process without the interpreter."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tools.gpu_check.ahead import ARCHITECTURES


@pytest.mark.clause_early("EXEC-017", "START-043")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_whole_program_compiles(architecture: int) -> None:
    command = [sys.executable, "-m", "tools.gpu_check.ahead_program", "--architectures", str(architecture)]
    # The other formats' kernels are compiled by `make test-all`.
    command += [
        "--weights",
        "bf16" if architecture == 90 else "nvfp4",
        "--kv",
        "bf16",
        "--sizes",
        "heads",
        "--once",
    ]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "kernels=" in done.stdout


@pytest.mark.campaign
@pytest.mark.timeout(3600)
def test_every_format_compiles_for_every_architecture() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tools.gpu_check.ahead_program"],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    print(done.stdout)
    assert done.returncode == 0, done.stderr[-2000:]
