"""Frames: what one end sends, the other receives; a broken stream is an error, its end is not."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.engine.events import Delta, EngineEvent, Failed, Finished, Usage
from ninfer.engine.frames import MAX_FRAME_BYTES, FrameError, FrameReader, FrameWriter
from ninfer.engine.requests import CancelRequest, Command, Shutdown
from tests.engine.requests import generation

EVENTS = msgspec.msgpack.Decoder(EngineEvent)
COMMANDS = msgspec.msgpack.Decoder(Command)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def sent(pair: tuple[socket.socket, socket.socket], data: bytes) -> FrameReader:
    """A reader of exactly ``data``."""
    pair[0].sendall(data)
    pair[0].shutdown(socket.SHUT_WR)
    return FrameReader(pair[1])


@given(texts=st.lists(st.text(max_size=40), max_size=5), numbers=st.lists(st.integers(0, 2**31), max_size=5))
def test_values_arrive_equal_and_in_order(texts: list[str], numbers: list[int]) -> None:
    values = [Delta("r", "content", text, tuple(numbers)) for text in texts]
    values_and_end = [*values, Finished("r", "stop", Usage(1, 2, 3, 4, 0.5, 0.25, 0.125), stop_string="x")]
    ours, theirs = socket.socketpair()
    with ours, theirs:
        writer, reader = FrameWriter(ours), FrameReader(theirs)
        for value in values_and_end:
            writer.send(value)
        ours.shutdown(socket.SHUT_WR)
        assert [reader.receive(EVENTS) for _ in values_and_end] == values_and_end
        assert reader.receive(EVENTS) is None
        reader.close()


def test_commands_keep_every_member(pair: tuple[socket.socket, socket.socket]) -> None:
    commands = [
        generation("a", seed=2**64 - 1, tokens=bytes(range(256)), stops=("é", "\0")),
        CancelRequest("a"),
        Shutdown(),
    ]
    writer, reader = FrameWriter(pair[0]), FrameReader(pair[1])
    for command in commands:
        writer.send(command)
    assert [reader.receive(COMMANDS) for _ in commands] == commands
    reader.close()


def test_frames_of_several_threads_never_mix(pair: tuple[socket.socket, socket.socket]) -> None:
    writer, reader = FrameWriter(pair[0]), FrameReader(pair[1])
    texts = [chr(97 + index) * 50_000 for index in range(4)]

    def send(text: str) -> None:
        for _ in range(5):
            writer.send(Failed("r", "internal_error", text))

    threads = [threading.Thread(target=send, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    received = [reader.receive(EVENTS) for _ in range(20)]
    for thread in threads:
        thread.join()
    assert sorted(event.message for event in received) == sorted(texts * 5)  # type: ignore[union-attr]
    reader.close()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x01", id="inside-the-length"),
        pytest.param(struct.pack("<I", 5), id="after-the-length"),
        pytest.param(struct.pack("<I", 5) + b"abc", id="inside-the-value"),
        pytest.param(struct.pack("<I", MAX_FRAME_BYTES + 1), id="absurd-length"),
        pytest.param(struct.pack("<I", 3) + b"\xc1\xc1\xc1", id="not-msgpack"),
        pytest.param(struct.pack("<I", 0), id="empty-value"),
        pytest.param(
            struct.pack("<I", len(msgspec.msgpack.encode({"type": "nope"})))
            + msgspec.msgpack.encode({"type": "nope"}),
            id="unknown-kind",
        ),
    ],
)
def test_a_broken_stream_is_an_error(pair: tuple[socket.socket, socket.socket], data: bytes) -> None:
    reader = sent(pair, data)
    with pytest.raises(FrameError):
        reader.receive(EVENTS)
    reader.close()
