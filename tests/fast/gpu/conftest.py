"""Triton's interpreter for kernels on plain CPUs: it must be chosen before a kernel module is imported."""

from __future__ import annotations

import os
import sys

os.environ["TRITON_INTERPRET"] = "1"
EARLY = [name for name in sys.modules if name.startswith("ninfer.fast.ops.") and name.endswith(".gpu")]
assert not EARLY, f"imported before Triton's interpreter was chosen: {EARLY}"
