"""``python -m tests.server.vanished_peer ARTIFACT``: how long requests of peers that vanished are kept.

Runs in a network of its own (``unshare --net``), whose only link is taken down: packets are lost and no end
of a connection is told. Prints a JSON object: seconds until the request of each phase was cancelled.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from conformance.http.client import read_until
from ninfer.engine.inprocess import InProcessHost
from ninfer.engine.interface import EventSink
from ninfer.engine.requests import GenerationRequest
from ninfer.engine.scripted import Play, Script, ScriptedEngine, Step
from tests.server.conftest import MODEL
from tests.server.inprocess import serving_host

LONGEST_S = 40.0
PREFILLING, DECODING, QUEUED = "101", "102", "103"


class WatchingHost(InProcessHost):
    """Notes when requests are asked to be cancelled, by their seed."""

    def __init__(self, play: Play) -> None:
        super().__init__(ScriptedEngine(Script(default=play)))
        self.seeds: dict[str, str] = {}
        self.cancelled: dict[str, float] = {}

    def submit(self, request: GenerationRequest, sink: EventSink) -> None:
        self.seeds[request.id] = str(request.sampling.seed)
        super().submit(request, sink)

    def cancel(self, request_id: str) -> None:
        self.cancelled[self.seeds[request_id]] = time.monotonic()
        super().cancel(request_id)


def link(state: str) -> None:
    subprocess.run(["ip", "link", "set", "lo", state], check=True)


def measure(artifact: Path, phases: dict[str, tuple[Play, tuple[str, ...]]]) -> Iterator[tuple[str, float]]:
    """Seconds from the loss of the link to the cancellation of each phase's requests."""
    hosts = {name: WatchingHost(play) for name, (play, _) in phases.items()}
    with ExitStack() as stack:
        socks = []
        for name, (_, seeds) in phases.items():
            client = stack.enter_context(serving_host(artifact, hosts[name], ("--port", "0", *MODEL)))
            socks += [  # whoever waits in the queue asked for a whole answer
                client.open_chat(seed=int(seed), stream=seed != QUEUED, max_tokens=10**6) for seed in seeds
            ]
            if name == "decode":
                read_until(socks[-1], b"reasoning_content")
        while any(set(seeds) != set(hosts[name].seeds.values()) for name, (_, seeds) in phases.items()):
            time.sleep(0.02)
        time.sleep(0.5)  # what has been sent is acknowledged
        link("down")
        lost = time.monotonic()
        while time.monotonic() - lost < LONGEST_S:
            if all(set(seeds) <= set(hosts[name].cancelled) for name, (_, seeds) in phases.items()):
                break
            time.sleep(0.1)
        for name, (_, seeds) in phases.items():
            for seed in seeds:
                at = hosts[name].cancelled.get(seed)
                yield f"{name}-{seed}", LONGEST_S if at is None else at - lost
        link("up")


def main() -> int:
    link("up")
    silent = Play((Step(wait_s=300.0), Step(text="x")))
    talking = Play((Step(text="x", wait_s=0.05),), repeat=10**6)
    phases = {"prefill": (silent, (PREFILLING, QUEUED)), "decode": (talking, (DECODING,))}
    print(json.dumps(dict(measure(Path(sys.argv[1]), phases))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
