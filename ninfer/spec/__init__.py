"""Typed access to ``spec/``, the contracts as data. The only reader of those files.

``document(name)`` returns one file (``"models/qwen3_5"``, ``"http/errors"``); the typed views
(``options.py``, ``errors.py``, …) build on it. In a wheel the files are one compiled JSON.
"""

from ninfer.spec.documents import document, document_names

__all__ = ["document", "document_names"]
