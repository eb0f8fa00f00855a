"""The listening socket: what accepted connections inherit from it."""

from __future__ import annotations

import socket

import pytest

from ninfer.server.listen import bind


@pytest.mark.clause("LIVE-005")
def test_accepted_sockets_notice_a_vanished_peer() -> None:
    with bind("127.0.0.1", 0) as listening:
        listening.listen()
        with socket.create_connection(listening.getsockname()):
            accepted, _ = listening.accept()
            with accepted:
                assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 15_000
                idle = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
                # An idle peer is probed early enough to be given up after about 20 seconds.
                assert idle <= 5
