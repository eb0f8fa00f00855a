"""What a chat body may ask for in vain: the reading of the refused fields of ``spec/http/chat.yaml``."""

from __future__ import annotations

from ninfer import spec
from ninfer.server import neutral
from ninfer.server.members import Members


def refuse_unsupported(body: Members) -> None:
    """Errors: ``RequestError`` for the first field whose value asks for a missing capability."""
    neutral.refuse_unsupported(body, spec.document("http/chat")["refused"])
