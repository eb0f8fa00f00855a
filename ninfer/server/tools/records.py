"""The console's records of tool markup that was repaired or given up.

Owns their wording. This is the only place where generated text reaches a log: the beginning of markup that
went back to text, in one line.
"""

from __future__ import annotations

import logging

from ninfer.output.tools import ParsedTurn, shown_markup

_log = logging.getLogger("ninfer.server")


def record_turn(request_id: str, turn: ParsedTurn) -> None:
    """One warning for returned markup, one line of information for recovered calls, else nothing."""
    found = turn.diagnostics
    if not turn.calls and found.fallback_reason != "none":
        shown = shown_markup(turn.returned_markup)
        _log.warning("%s: tool markup returned as text: %s: %s", request_id, found.fallback_reason, shown)
    elif found.recovered_from_reasoning:
        _log.info("%s: %d tool calls recovered from thinking", request_id, len(turn.calls))
    elif found.tolerant_recovered:
        _log.info("%s: %d tool calls recovered: %s", request_id, len(turn.calls), found.fallback_reason)
