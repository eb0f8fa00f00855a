"""State images: everything of a lane that cannot be rolled back, one contiguous image per slot.

An image holds, per Gated DeltaNet layer, the convolution window [taps − 1, channels] and the recurrent
state [value heads, d_k, d_v], then the last hidden row; all float32. With its KV pages it is a whole
prefix (law 5).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from ninfer.model.config import TextConfig

# Images start on a cache line, and layers within them too.
_ALIGNMENT = 64


class StateImages:
    """``slots`` images; a slot is handed out zeroed and comes back by ``free``."""

    def __init__(self, config: TextConfig, slots: int) -> None:
        self.window_offsets: dict[int, int] = {}
        self.state_offsets: dict[int, int] = {}
        size = 0
        for layer, kind in enumerate(config.layer_types):
            if kind != "linear_attention":
                continue
            assert config.gdn is not None
            gdn = config.gdn
            self.window_offsets[layer] = size
            size = _aligned(size + 4 * (gdn.taps - 1) * gdn.channels)
            self.state_offsets[layer] = size
            size = _aligned(size + 4 * gdn.value_heads * gdn.key_dim * gdn.value_dim)
        self.hidden_offset = size
        self.image_bytes = _aligned(size + 4 * config.hidden)
        self._memory = np.zeros(slots * self.image_bytes + _ALIGNMENT, np.uint8)
        self._start = -self._memory.ctypes.data % _ALIGNMENT
        self._base = int(self._memory.ctypes.data) + self._start
        self._free = list(range(slots))[::-1]
        self.slots = slots

    @property
    def free_slots(self) -> int:
        return len(self._free)

    def allocate(self) -> int:
        """A zeroed slot. Errors: ``IndexError`` when none is free (the scheduler reserves before)."""
        slot = self._free.pop()
        self.image(slot)[:] = 0
        return slot

    def free(self, slot: int) -> None:
        """Give a slot back."""
        assert slot not in self._free, f"state slot {slot} freed twice"
        self._free.append(slot)

    def copy(self, source: int, target: int) -> None:
        """One whole image into another."""
        self.image(target)[:] = self.image(source)

    def take(self) -> int:
        """A slot with whatever it holds, for a whole image to be copied into. Errors: as ``allocate``."""
        return self._free.pop()

    def image(self, slot: int) -> npt.NDArray[np.uint8]:
        """The bytes of one image."""
        begin = self._start + slot * self.image_bytes
        return self._memory[begin : begin + self.image_bytes]

    def address(self, slot: int) -> int:
        """Where the image begins."""
        return self._base + slot * self.image_bytes

    def floats(self, slot: int, offset: int, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """A float32 view of ``shape`` at ``offset`` bytes into an image."""
        count = 4 * math.prod(shape)
        return self.image(slot)[offset : offset + count].view(np.float32).reshape(shape)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
