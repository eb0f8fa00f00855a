"""The device a GPU program runs on: which one, how the host waits for it, what memory is free.

Source of ``NINFER_CUDA_SYNC``: contract START-003.
"""

from __future__ import annotations

import ctypes
import os
import time
from dataclasses import dataclass

import torch

from ninfer.errors import OptionError

SYNC_MODES = ("spin", "blocking", "yield", "auto")


def available() -> bool:
    """Whether there is a device that the kernels can use: CUDA, and Triton to compile with."""
    if not torch.cuda.is_available():
        return False
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True


def sync_mode() -> str:
    """How the host waits. Errors: ``OptionError`` for a value of NINFER_CUDA_SYNC that is none."""
    mode = os.environ.get("NINFER_CUDA_SYNC", "spin")
    if mode not in SYNC_MODES:
        raise OptionError("NINFER_CUDA_SYNC", f"{mode!r} is not one of {', '.join(SYNC_MODES)}")
    return mode


def device_of(index: int) -> torch.device:
    """CUDA device ``index``. Errors: ``OptionError`` naming ``--device`` where there is none."""
    count = torch.cuda.device_count()
    if not 0 <= index < count:
        raise OptionError(
            "--device", f"{index} where this machine has {count} CUDA devices, 0 to {count - 1}"
        )
    return torch.device("cuda", index)


def architecture(device: torch.device) -> int:
    """Compute capability as an integer (9.0: 90); 0 without a CUDA device."""
    if device.type != "cuda":
        return 0
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def free_bytes(device: torch.device) -> int:
    """Memory of a CUDA device that nobody holds."""
    return torch.cuda.mem_get_info(device)[0]


@dataclass(frozen=True, slots=True)
class Environment:
    """What a server says of its device; empty and 0 without one."""

    index: int | None = None
    name: str = ""
    capability: str = ""
    runtime: str = ""
    driver: str = ""
    total_bytes: int = 0


def environment(device: torch.device) -> Environment:
    """The device's name, compute capability and memory, CUDA's runtime and the driver's version of it."""
    if device.type != "cuda":
        return Environment()
    return Environment(
        index=device.index,
        name=torch.cuda.get_device_name(device),
        capability=".".join(map(str, torch.cuda.get_device_capability(device))),
        runtime=torch.version.cuda or "",
        driver=driver_version(),
        total_bytes=torch.cuda.mem_get_info(device)[1],
    )


def driver_version() -> str:
    """The newest CUDA that the installed driver knows, as ``13.0``; empty without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ""
    version = ctypes.c_int()
    if driver.cuDriverGetVersion(ctypes.byref(version)) != 0:
        return ""
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


class Waiter:
    """Waits for what was enqueued so far on the current stream of ``device``; ``waits`` counts how often."""

    def __init__(self, device: torch.device, mode: str = "spin") -> None:
        self.waits, self._mode = 0, mode
        self._event: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._event = torch.cuda.Event(blocking=mode == "blocking")  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """Return when it has run. Errors: as CUDA's, raised here."""
        event = self._event
        if event is not None:
            event.record()
            if self._mode in ("spin", "yield"):
                while not event.query():  # type: ignore[no-untyped-call]
                    if self._mode == "yield":
                        time.sleep(0)
            else:
                event.synchronize()
        self.waits += 1
