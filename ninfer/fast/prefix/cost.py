"""What prefilling and restoring would take, in seconds: a ranking, never a judgement of what is possible.

Coefficients stand in ``spec/cache.yaml``; every prefilled chunk corrects their common scale.
"""

from __future__ import annotations

from ninfer import spec


class CostModel:
    """``chunk`` is the prefill chunk in tokens, ``image_bytes`` the size of a state image."""

    def __init__(self, chunk: int, image_bytes: int) -> None:
        table = spec.document("cache")["cost"]
        self._chunk, self._image_bytes = chunk, image_bytes
        self._per_chunk: float = table["chunk_s"]
        self._per_token: float = table["token_s"]
        self._per_pair: float = table["pair_s"]
        self._per_byte: float = table["restore_byte_s"]
        self._weight: float = table["correction"]
        self._scale = 1.0

    def prefill_s(self, base: int, tokens: int) -> float:
        """Seconds to take in ``tokens`` tokens after ``base`` others."""
        return self._scale * self._nominal(base, tokens)

    def restore_s(self, tail: bool = False) -> float:
        """Seconds to resume from an image on the device; an unaligned one copies a page besides."""
        return self._per_byte * self._image_bytes * (2 if tail else 1)

    @property
    def chunk_s(self) -> float:
        """The fixed cost of one more chunk."""
        return self._scale * self._per_chunk

    def observe(self, base: int, tokens: int, seconds: float) -> None:
        """A chunk took so long."""
        measured = seconds / self._nominal(base, tokens)
        self._scale += self._weight * (measured - self._scale)

    def _nominal(self, base: int, tokens: int) -> float:
        pairs = base * tokens + tokens * (tokens + 1) / 2
        chunks = -(-tokens // self._chunk)
        return chunks * self._per_chunk + tokens * self._per_token + pairs * self._per_pair
