"""Triton's interpreter for kernels on plain CPUs: it must be chosen before a kernel module is imported."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"
