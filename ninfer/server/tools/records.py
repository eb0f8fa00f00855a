"""The console's warning about tool markup that went back to text.

Owns its wording; calls that were recovered are told with the request's end (``observe``). This is the only
place where generated text reaches a log: the beginning of markup that went back to text, in one line.
"""

from __future__ import annotations

import logging

from ninfer.output.tools import ParsedTurn, shown_markup

_log = logging.getLogger("ninfer.server")


def record_turn(request_id: str, turn: ParsedTurn) -> None:
    """One warning for returned markup, else nothing."""
    found = turn.diagnostics
    if not turn.calls and found.fallback_reason != "none":
        shown = shown_markup(turn.returned_markup)
        _log.warning("%s: tool markup returned as text: %s: %s", request_id, found.fallback_reason, shown)
