"""Starts a server from a given folder and asks it one question: does a fresh install answer, and how soon?

Example: ``python -m tools.first_answer --program .venv/bin/ninfer-serve --directory /tmp``

Prints the seconds from process start to the first answer; exits 1 when no right answer came.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

QUESTION = {"messages": [{"role": "user", "content": "What is 2 + 3?"}], "max_tokens": 32, "temperature": 0}


def free_port() -> int:
    """A TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_ready(base: str, server: subprocess.Popen[bytes], limit_s: float) -> None:
    """Poll ``/health`` until it answers 200; exits when the server died or ``limit_s`` passed."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if server.poll() is not None:
            sys.exit(f"first_answer: the server exited with {server.returncode} before it was ready")
        try:
            with urllib.request.urlopen(f"{base}/health", timeout=5) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.05)
    sys.exit(f"first_answer: not ready after {limit_s:.0f} s")


def ask(base: str) -> dict[str, object]:
    """One chat completion from the model the server names."""
    with urllib.request.urlopen(f"{base}/v1/models", timeout=10) as answer:
        model = json.load(answer)["data"][0]["id"]
    body = json.dumps({"model": model, **QUESTION}).encode()
    request = urllib.request.Request(
        f"{base}/v1/chat/completions", data=body, headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        completion: dict[str, object] = json.load(answer)
    return completion


def main() -> None:
    """Run the server, ask, print, stop it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--program", required=True, help="path of ninfer-serve")
    parser.add_argument("--directory", default=".", help="folder to start it in")
    parser.add_argument("--limit", type=float, default=60, help="seconds to wait for readiness")
    arguments = parser.parse_args()
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    started = time.monotonic()
    program = os.path.abspath(arguments.program)
    with subprocess.Popen([program, "--port", str(port)], cwd=arguments.directory) as server:
        try:
            wait_until_ready(base, server, arguments.limit)
            ready_s = time.monotonic() - started
            completion = ask(base)
            answer_s = time.monotonic() - started
        finally:
            server.send_signal(signal.SIGTERM)
    print(json.dumps(completion, indent=1))
    if not completion.get("choices"):
        sys.exit("first_answer: the answer has no choices")
    if server.returncode != 0:
        sys.exit(f"first_answer: SIGTERM ended the server with {server.returncode}, not 0")
    print(f"first_answer: ready after {ready_s:.1f} s, answered after {answer_s:.1f} s")


if __name__ == "__main__":
    main()
