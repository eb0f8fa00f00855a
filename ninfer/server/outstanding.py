"""How many requests the server holds at once: running, waiting, still preparing, or not yet answered.

Owns the count that bounds memory and answers 429; the engine's queue needs no bound of its own.
"""

from __future__ import annotations

import threading

from ninfer.errors import RequestError


class Outstanding:
    """The server's slots; safe to use from any thread."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._lock = threading.Lock()
        self._taken = 0

    @property
    def taken(self) -> int:
        return self._taken

    def take(self) -> Slot:
        """A slot for one request. Errors: ``RequestError`` ``server_overloaded`` when none is free."""
        with self._lock:
            if self._taken >= self.capacity:
                raise RequestError(
                    "server_overloaded", f"The server already holds {self.capacity} requests; retry later."
                )
            self._taken += 1
        return Slot(self)

    def _free(self) -> None:
        with self._lock:
            self._taken -= 1


class Slot:
    """One request's place; freed when its handler and every thread that works for it have let go."""

    def __init__(self, outstanding: Outstanding) -> None:
        self._outstanding = outstanding
        self._lock = threading.Lock()
        self._holders = 1

    def hold(self) -> None:
        with self._lock:
            assert self._holders > 0, "the slot is already free"
            self._holders += 1

    def release(self) -> None:
        with self._lock:
            self._holders -= 1
            last = self._holders == 0
        if last:
            self._outstanding._free()
