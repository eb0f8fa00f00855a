"""The cache markers of a Messages body: which blocks are marked, and whether they may be.

Owns validation only. A marker is advice: it never changes the prompt.
"""

from __future__ import annotations

from ninfer import spec
from ninfer.server.members import Members


class CacheMarkers:
    """Collects markers in the order of the prompt; ``blocks`` counts what could carry one."""

    def __init__(self) -> None:
        self._rules = spec.document("http/messages")
        self._lifetimes: dict[int, str] = {}
        self.blocks = 0

    def block(self, block: Members) -> bool:
        """Whether a block is marked. Errors: ``RequestError`` for a wrong or a fifth marker."""
        lifetime = self._lifetime(block)
        if lifetime is not None:
            self._lifetimes[self.blocks] = lifetime
            if len(self._lifetimes) > self._rules["limits"]["cache_breakpoints"]:
                raise block.invalid("cache_control", self._too_many("on blocks"))
        self.blocks += 1
        return lifetime is not None

    def request(self, body: Members) -> bool:
        """Whether the request is marked: that means its last block. Call it last. Errors: as ``block``."""
        lifetime = self._lifetime(body)
        if lifetime is None:
            return False
        last = self._lifetimes.get(self.blocks - 1)
        if last is None and len(self._lifetimes) == self._rules["limits"]["cache_breakpoints"]:
            raise body.invalid("cache_control", self._too_many("and this one has no place left"))
        if last is not None and last != lifetime:
            raise body.invalid("cache_control", f"has ttl {lifetime}, but the last block's has {last}")
        return True

    def _lifetime(self, block: Members) -> str | None:
        marker = block.child("cache_control")
        if marker is None:
            return None
        marker.required_string("type")
        marker.choice("type", ["ephemeral"])
        given = marker.choice("ttl", self._rules["cache_lifetimes"])
        default: str = self._rules["default_cache_lifetime"]
        return default if given is None else given

    def _too_many(self, where: str) -> str:
        return f"is one too many: at most {self._rules['limits']['cache_breakpoints']} are accepted {where}"
