"""What the driver says of the device: NVIDIA's management library through ctypes, no context of our own."""

from __future__ import annotations

import ctypes
from functools import cache


class _Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


@cache
def _device() -> tuple[ctypes.CDLL, ctypes.c_void_p]:
    library = ctypes.CDLL("libnvidia-ml.so.1")
    handle = ctypes.c_void_p()
    assert library.nvmlInit_v2() == 0
    assert library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)) == 0
    return library, handle


def free_bytes() -> int:
    """Memory of device 0 that nobody holds."""
    library, handle = _device()
    memory = _Memory()
    assert library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0
    return int(memory.free)
