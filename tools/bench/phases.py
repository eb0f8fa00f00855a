"""One artifact in the fast engine without its worker: timed prefill and decode, and what each must move.

Owns the definition of both floors. Decode: every matrix's stored bytes once (weights and scales; the head
counts, an embedding that is not tied does not), and the keys and values of the context. Prefill: two
operations a parameter and token for the layers' matrices, for the head once a prompt.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ninfer.artifact import Artifact
from ninfer.engine.requests import SamplingParameters
from ninfer.engine.settings import EngineSettings
from ninfer.fast.memory.lanes import Lane
from ninfer.fast.memory.ledger import page_bytes
from ninfer.fast.ops.control import PAGE_TOKENS
from ninfer.fast.program.program import Program, Row, Sampler
from ninfer.fast.start import resolve_options
from ninfer.model.config import TextConfig, parse_text_config

_GREEDY = SamplingParameters(0.0, 1.0, 0, 0.0, 0.0, 0.0, 0)
_HEAD, _EMBEDDING = "text/output_head", "text/token_embedding"


@dataclass(frozen=True, slots=True)
class Floors:
    """What one token costs at least. ``kv_bytes``: read per token of context."""

    matrix_bytes: int
    kv_bytes: float
    layer_parameters: int
    head_parameters: int

    def decode_bytes(self, context: int, tokens: int) -> float:
        """Bytes that decoding ``tokens`` tokens reads, the first one at ``context`` tokens."""
        contexts = tokens * context + tokens * (tokens + 1) / 2  # a token reads its own keys too
        return tokens * self.matrix_bytes + contexts * self.kv_bytes

    def prefill_flops(self, tokens: int) -> float:
        """Operations of the matrix products of one prompt."""
        return 2.0 * (tokens * self.layer_parameters + self.head_parameters)


def floors(artifact: Artifact, config: TextConfig, kv_format: str) -> Floors:
    """From the directory alone. A mixture of experts reads what its router says: not measured here."""
    assert config.moe is None, "the floors of a mixture of experts depend on its routes"
    sizes = {
        name: _matrix(artifact, name) for name in artifact.directory.bindings if name.startswith("text/")
    }
    del sizes[_EMBEDDING]
    head_parameters, _ = sizes[_HEAD]
    return Floors(
        matrix_bytes=sum(stored for _, stored in sizes.values()),
        kv_bytes=page_bytes(config, kv_format) / PAGE_TOKENS,
        layer_parameters=sum(count for count, _ in sizes.values()) - head_parameters,
        head_parameters=head_parameters,
    )


def _matrix(artifact: Artifact, name: str) -> tuple[int, int]:
    """Elements and stored bytes of a matrix; vectors and the small convolution count nothing."""
    shape = artifact.parameter_shape(name)
    if len(shape) != 2 or name.endswith("/convolution"):
        return 0, 0
    stored = 0
    for piece in artifact.encoded(name):
        assert piece.rows is not None, f"{name} is not stored in whole rows"
        begin, end = piece.rows
        stored += sum(plane[begin:end].nbytes for plane in piece.planes.values())
    return shape[0] * shape[1], stored


class Phases:
    """A loaded artifact; ``contexts`` are the places where it will decode."""

    def __init__(self, path: Path, contexts: tuple[int, ...], settings: EngineSettings) -> None:
        with Artifact.open(path) as artifact:
            config = parse_text_config(artifact.directory.components["text"].config)
            options = resolve_options(settings, config, config.vocab)
            torch.set_num_threads(options.threads)
            self.floors = floors(artifact, config, settings.kv_format)
            self._program = Program(artifact, config, options)
        self._program.warm_up()
        self._random = np.random.default_rng(0)
        self._sampler = Sampler(_GREEDY, np.zeros(config.vocab, np.int32))
        self._lanes = {context: self._open(context) for context in contexts}

    def _open(self, context: int) -> Lane:
        lane = self._program.open_lane(self._program.options.max_context)
        self._take_in(lane, context)
        return lane

    def decode(self, context: int, tokens: int) -> float:
        """Seconds of ``tokens`` rounds of one row, the first at ``context``."""
        lane, token = self._lanes[context], 1
        # The state has gone on, but time does not depend on it; the keys are written again.
        lane.frontier, lane.shift = context, 0
        began = time.perf_counter()
        for _ in range(tokens):
            token = self._program.round([Row(lane, token, self._sampler)])[0]
        return time.perf_counter() - began

    def prefill(self, tokens: int) -> float:
        """Seconds from a fresh lane to the first output token."""
        lane = self._program.open_lane(tokens + 1)
        began = time.perf_counter()
        self._take_in(lane, tokens)
        seconds = time.perf_counter() - began
        self._program.close_lane(lane)
        return seconds

    def _take_in(self, lane: Lane, count: int) -> None:
        row = None
        for begin, end in self._chunks(count):
            tokens = self._random.integers(0, self._program.config.vocab, end - begin, np.int32)
            axes = np.tile(np.arange(begin, end, dtype=np.int32), (3, 1))
            row = self._program.prefill(lane, tokens, axes)
        if row is not None:
            self._program.first(lane, row, self._sampler)

    def _chunks(self, count: int) -> Iterator[tuple[int, int]]:
        chunk = self._program.options.prefill_chunk
        return ((begin, min(begin + chunk, count)) for begin in range(0, count, chunk))

    def close(self) -> None:
        """Give the lanes back and end the threads."""
        for lane in self._lanes.values():
            self._program.close_lane(lane)
        self._program.check_integrity()
        self._program.close()


def settings_for(
    path: Path, contexts: tuple[int, ...], prompts: tuple[int, ...], **members: object
) -> EngineSettings:
    """Room for a lane at each context with some tokens more, and one for prompts."""
    longest = max((*contexts, *prompts, 0)) + 1024
    lanes = len(contexts) + 1
    pages = -(-longest // PAGE_TOKENS)
    sizes = {"max_context": longest, "lanes": lanes, "kv_capacity": lanes * pages * PAGE_TOKENS}
    return EngineSettings(engine="fast", artifact=str(path), **sizes, **members)  # type: ignore[arg-type]


def passive_threads(module: str) -> None:
    """Start this program again with idle OpenMP threads asleep, as an engine process has them.

    Threads that spin between parallel regions would take the cores of whoever computes next.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        environ = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
        os.execve(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]], environ)
