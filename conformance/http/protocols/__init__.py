"""One module for each protocol of the suite: its small request, the checks of its answers, what they say.

A new protocol adds a module here and a folder of cases under ``cases/``.
"""

from __future__ import annotations

from collections.abc import Mapping

from conformance.http.protocols.chat import Chat
from conformance.http.protocols.messages import Messages
from conformance.http.protocols.outcome import Protocol
from conformance.http.protocols.responses import Responses

PROTOCOLS: Mapping[str, Protocol] = {"chat": Chat(), "responses": Responses(), "messages": Messages()}
