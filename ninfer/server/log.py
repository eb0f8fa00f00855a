"""Operational records: one line each on stderr, ``YYYY-MM-DD HH:MM:SS.mmm LEVEL message``.

Owns the format and what ``--log-level`` means. Records never carry prompts, answers, keys or client text.
"""

from __future__ import annotations

import logging
import os
import sys

from ninfer.server.observe.console import Console, ConsoleHandler, is_interactive

_LEVELS = {
    "trace": 5,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
    "off": logging.CRITICAL + 1,
}


def configure(level: str, *, colours: bool = False) -> Console:
    """Send the records of this process to stderr from ``level`` on; the console that writes them."""
    logging.addLevelName(_LEVELS["trace"], "TRACE")
    console = Console(sys.stderr, interactive=is_interactive(sys.stderr, os.environ))
    handler = ConsoleHandler(console, colours)
    handler.setFormatter(
        logging.Formatter("{asctime}.{msecs:03.0f} {levelname} {message}", "%Y-%m-%d %H:%M:%S", style="{")
    )
    logging.basicConfig(handlers=[handler], level=_LEVELS[level], force=True)
    # The web framework's and event loop's own progress is not an operational record of ours.
    for name in ("sanic", "asyncio"):
        logging.getLogger(name).setLevel(max(_LEVELS[level], logging.WARNING))
    return console


def shows_statistics(level: str) -> bool:
    """Whether records of level info are shown, with which the panel goes."""
    return _LEVELS[level] <= logging.INFO
