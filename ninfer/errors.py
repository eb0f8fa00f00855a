"""The errors that a user, a client or a file can cause, and the ones that are ours.

Owns the small hierarchy every package raises from; knows nothing about HTTP. A ``code`` names a row of
``spec/http/errors.yaml``, which alone says the HTTP status and wire type; ``server/errors.py`` renders it.
"""

from __future__ import annotations


class NinferError(Exception):
    """Base of every error raised on purpose by this package."""


class SpecError(NinferError):
    """A file under ``spec/`` is missing, malformed or inconsistent."""


class OptionError(NinferError):
    """A command-line option cannot be honoured; the message starts with the option's name."""

    def __init__(self, option: str, message: str) -> None:
        super().__init__(f"{option}: {message}")
        self.option = option


class ArtifactError(NinferError):
    """A ``.ninfer`` file was refused.

    ``where`` names the byte offset, JSON member or object that is wrong.
    """

    def __init__(self, where: str, message: str) -> None:
        super().__init__(f"{where}: {message}")
        self.where = where


class CheckpointError(NinferError):
    """A source checkpoint cannot be converted; the message names the file, tensor or config field."""


class RequestError(NinferError):
    """A request cannot be honoured (4xx).

    ``code`` is a key of ``spec/http/errors.yaml``; ``param`` is the field path or None.
    """

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param


class EngineError(NinferError):
    """The engine could not finish a request (5xx); ``code`` is a key of ``spec/http/errors.yaml``."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
