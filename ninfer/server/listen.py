"""The listening socket: bound before the model loads, so that a taken port is known at once."""

from __future__ import annotations

import errno
import socket

from ninfer import spec
from ninfer.errors import OptionError

_PORT_ERRORS = (errno.EACCES, errno.EADDRINUSE)


def bind(host: str, port: int) -> socket.socket:
    """A bound TCP socket, not yet listening. Errors: ``OptionError`` naming ``--host`` or ``--port``."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise OptionError("--host", f"{host} is not an address of this machine: {error}") from error
    family, kind, protocol, _, address = addresses[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _watch_peers(sock)
        sock.bind(address)
    except OSError as error:
        sock.close()
        option = "--port" if error.errno in _PORT_ERRORS else "--host"
        raise OptionError(option, f"cannot listen on {url(host, port)}: {error.strerror}") from error
    return sock


def _watch_peers(sock: socket.socket) -> None:
    """Notice peers that vanished without a word; accepted sockets inherit it from the listening one.

    Where a system lacks one of the settings, its own value stays.
    """
    rules = spec.document("http/transport")["sockets"]
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    settings = {
        "TCP_KEEPIDLE": rules["keepalive_idle_s"],
        "TCP_KEEPINTVL": rules["keepalive_interval_s"],
        "TCP_KEEPCNT": rules["keepalive_probes"],
        "TCP_USER_TIMEOUT": 1000 * rules["user_timeout_s"],
    }
    for name, value in settings.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
