"""Which failures of an engine end one request, and which end the engine.

Owns the classification of exceptions; imports no framework, since the process that asks may run any engine.
"""

from __future__ import annotations

from typing import Literal

from ninfer.engine.events import Failed
from ninfer.errors import EngineError, RequestError

FailureKind = Literal["request", "memory", "device", "internal"]

_MEMORY_CLASSES = {"OutOfMemoryError", "MemoryError"}
_MEMORY_PHRASES = ("out of memory", "can't allocate memory", "not enough memory")
_DEVICE_CLASSES = {"AcceleratorError"}
_DEVICE_PHRASES = (
    "CUDA error",
    "CUDA driver error",
    "cuBLAS error",
    "Triton Error [CUDA]",
    "device-side assert",
)


def classify(error: BaseException) -> FailureKind:
    """What ``error`` means for the engine.

    ``request``: raised on purpose, the request's own. ``memory``: the work did not fit, the next may.
    ``device``: the device is lost for this process. ``internal``: a failed check of ours.
    """
    if isinstance(error, RequestError | EngineError):
        return "request"
    names = {cls.__name__ for cls in type(error).__mro__}
    text = str(error)
    # Memory first: torch reports an exhausted GPU as "CUDA error: out of memory" from some calls.
    if names & _MEMORY_CLASSES or any(phrase in text.lower() for phrase in _MEMORY_PHRASES):
        return "memory"
    if names & _DEVICE_CLASSES or (isinstance(error, RuntimeError) and text.startswith(_DEVICE_PHRASES)):
        return "device"
    return "internal"


def failed_event(request_id: str, error: BaseException) -> Failed:
    """The event that ends the request which ``error`` interrupted; never carries foreign exception text."""
    if isinstance(error, RequestError):
        return Failed(request_id, error.code, error.message, error.param)
    if isinstance(error, EngineError):
        return Failed(request_id, error.code, error.message)
    if classify(error) == "memory":
        return Failed(request_id, "insufficient_memory", "The engine ran out of memory on this request.")
    return Failed(request_id, "internal_error", "The engine failed on this request.")
