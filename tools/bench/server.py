"""A server of this checkout for as long as a benchmark needs it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tools.first_answer import free_port, wait_until_ready

_READY_S = 180.0  # a cold kernel cache takes most of it


@contextmanager
def running_server(options: Sequence[str], log: Path) -> Iterator[str]:
    """Its base URL once it is ready; what it says goes to ``log``. It is stopped at the end."""
    port = free_port()
    command = [sys.executable, "-m", "ninfer.server.main", "--port", str(port), *options]
    with log.open("w") as file, subprocess.Popen(command, stderr=file) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until_ready(url, process, _READY_S)
            yield url
        finally:
            process.send_signal(signal.SIGTERM)
