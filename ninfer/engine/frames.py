"""Length-prefixed msgpack frames over a connected socket.

Owns framing only: four bytes of little-endian length, then one msgspec value. What the values mean stands
in ``requests.py`` and ``events.py``.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterable
from typing import TypeVar

import msgspec

_LENGTH = struct.Struct("<I")
# A prompt of a million tokens with positions takes 16 MB; anything near this bound is a broken stream.
MAX_FRAME_BYTES = 1 << 30

T = TypeVar("T")


class FrameError(Exception):
    """The byte stream is not a sequence of whole frames."""


class FrameWriter:
    """Sends values; safe to call from several threads."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._encoder = msgspec.msgpack.Encoder()
        self._lock = threading.Lock()

    def send(self, value: msgspec.Struct) -> None:
        """Write one frame. Errors: ``OSError`` when the other end is gone; ``FrameError`` when too large."""
        self.send_all((value,))

    def send_all(self, values: Iterable[msgspec.Struct]) -> None:
        """Write one frame each, all at once. Errors: as ``send``, before anything is written if too large."""
        frames = b"".join([part for value in values for part in self._frame(value)])
        with self._lock:
            self._sock.sendall(frames)

    def _frame(self, value: msgspec.Struct) -> tuple[bytes, bytes]:
        payload = self._encoder.encode(value)
        if len(payload) > MAX_FRAME_BYTES:
            raise FrameError(f"frame of {len(payload)} bytes exceeds {MAX_FRAME_BYTES}")
        return _LENGTH.pack(len(payload)), payload


class FrameReader:
    """Receives values; one thread at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self._stream = sock.makefile("rb")

    def receive(self, decoder: msgspec.msgpack.Decoder[T]) -> T | None:
        """The next value, or None at the end of the stream.

        Errors: ``FrameError`` when the stream ends inside a frame, a length is absurd or a value is not
        what ``decoder`` expects.
        """
        header = self._read(_LENGTH.size)
        if header is None:
            return None
        (length,) = _LENGTH.unpack(header)
        if length > MAX_FRAME_BYTES:
            raise FrameError(f"frame of {length} bytes exceeds {MAX_FRAME_BYTES}")
        payload = self._read(length)
        if payload is None:
            raise FrameError("the stream ended after a frame's length")
        try:
            return decoder.decode(payload)
        except msgspec.MsgspecError as error:
            raise FrameError(f"a frame is not a known value: {error}") from error

    def close(self) -> None:
        self._stream.close()

    def _read(self, size: int) -> bytes | None:
        """Exactly ``size`` bytes; None when the stream ends before the first of them."""
        if size == 0:
            return b""
        try:
            data = self._stream.read(size)
        except ConnectionResetError:  # the other end was killed with our bytes unread: an end like any other
            return None
        if not data:
            return None
        if len(data) < size:
            raise FrameError(f"the stream ended inside a frame ({len(data)} of {size} bytes)")
        return data
