"""When the server stops: Ctrl+C twice within five seconds, SIGTERM and a hang-up at once.

Owns the meaning of signals while the server is ready; before that one Ctrl+C ends the start (Python's own).
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable

from ninfer.server.observe.console import Console

_log = logging.getLogger("ninfer.server")
ARMED_S = 5.0
# What Unix has for Ctrl+Break and a closed console is SIGQUIT and SIGHUP.
_AT_ONCE = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class StopSwitch:
    """``requested`` is set once the server shall stop; used on the event loop's thread.

    ``saves`` tells that stopping saves the prefix cache. ``leave`` ends the process at once.
    """

    def __init__(self, console: Console, *, saves: bool, leave: Callable[[], None]) -> None:
        self._console = console
        self._saves = saves
        self._leave = leave
        self._disarming: asyncio.TimerHandle | None = None
        self.requested = asyncio.Event()

    def install(self) -> None:
        """Take the signals over; on the main thread's loop."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self.pressed)
        for number in _AT_ONCE:
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(signal.SIGWINCH, self._console.resized)

    def pressed(self) -> None:
        """One Ctrl+C: the first asks for another, the second stops, one more does not wait."""
        if self.requested.is_set():
            self._leave()
        elif self._disarming is not None:
            self.stop()
        else:
            self._arm()

    def stop(self) -> None:
        self._disarm()
        self.requested.set()
        if self._saves:
            self._console.say("Closing: saving the prefix cache | Press Ctrl+C again to exit without saving")

    def _arm(self) -> None:
        purpose = "save the prefix cache and close" if self._saves else "close"
        prompt = f"Press Ctrl+C again within {ARMED_S:.0f} s to {purpose}"
        if self._console.interactive:
            self._console.say(prompt)
        else:
            _log.warning(prompt)
        self._disarming = asyncio.get_running_loop().call_later(ARMED_S, self._disarm)

    def _disarm(self) -> None:
        if self._disarming is not None:
            self._disarming.cancel()
            self._disarming = None
            self._console.say(None)
