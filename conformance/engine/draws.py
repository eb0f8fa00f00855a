"""What a campaign runs: models, engine sizes and requests, all drawn from one seeded generator.

Owns values only; building models and serving requests stand elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ninfer.engine.requests import GenerationRequest, SamplingParameters
from tests.support.nano import VOCABULARY
from tests.support.nano_weights import Kind

Random = np.random.Generator
Tokens = npt.NDArray[np.int32]

RECIPES = ("bf16", "q8", "q4", "groupwise-int")
KV_FORMATS = ("float32", "bf16", "int8", "fp8", "nvfp4", "k8v4")
CHUNKS = (64, 128, 192, 256)
PAGE = 64
MAX_CONTEXT = 1024

# Where attention stands among the layers: after a rounded cache, more layers can err than behind the last.
LAYERS = ("GGGA", "GAGA", "AGGG", "GGAA")
# ``odd``: widths that fill no K step, one key head for all, other head sizes. ``lean``: one attention head,
# as long contexts cost the oracle their square.
SHAPES: dict[str, dict[Kind, dict[str, Any]]] = {
    "nano": {"dense": {}, "moe": {}},
    "lean": {kind: {"num_attention_heads": 1, "num_key_value_heads": 1} for kind in ("dense", "moe")},
    "odd": {
        "dense": {
            "hidden_size": 128,
            "head_dim": 128,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "intermediate_size": 192,
            "linear_num_key_heads": 1,
            "linear_num_value_heads": 3,
            "linear_key_head_dim": 48,
            "linear_value_head_dim": 64,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e6,
                "partial_rotary_factor": 0.25,
                "mrope_interleaved": True,
                "mrope_section": [6, 5, 5],
            },
        },
        "moe": {"num_experts": 5, "num_experts_per_tok": 3, "shared_expert_intermediate_size": 128},
    },
}


@dataclass(frozen=True, slots=True)
class ModelDraw:
    """A nano model: everything that decides its artifact. ``layers`` is a row of G and A.

    ``twins``: ids 2n and 2n + 1 have one output row, so that every draw meets exact ties.
    """

    kind: Kind = "dense"
    recipe: str = "bf16"
    tied: bool = False
    layers: str = "GGGA"
    shape: str = "nano"
    seed: int = 0
    twins: bool = False

    @property
    def name(self) -> str:
        marks = "-tied" * self.tied + "-twins" * self.twins
        return f"{self.kind}-{self.recipe}-{self.layers}-{self.shape}{marks}-{self.seed}"

    @property
    def changes(self) -> dict[str, Any]:
        """Members of the text config that differ from the nano model's."""
        names = {"G": "linear_attention", "A": "full_attention"}
        types = [names[letter] for letter in self.layers]
        return SHAPES[self.shape][self.kind] | {"layer_types": types, "num_hidden_layers": len(types)}


@dataclass(frozen=True, slots=True)
class EngineDraw:
    """The sizes of one program; ``chunk`` decides the cut list, the rest must not matter."""

    kv_format: str
    chunk: int
    lanes: int
    pages: int
    threads: int
    activations: str = "float32"


@dataclass(frozen=True, slots=True, eq=False)
class RequestDraw:
    """One request, the cycle in which it arrives, and after how many tokens it is cancelled, if it is."""

    id: str
    prompt: Tokens
    sampling: SamplingParameters
    max_tokens: int
    arrives: int
    cancel_after: int | None

    @property
    def is_sampled_with_penalties(self) -> bool:
        sampling = self.sampling
        return sampling.temperature > 0 and bool(sampling.presence_penalty or sampling.frequency_penalty)

    def crosses(self, chunk: int) -> bool:
        """Whether the prompt crosses a page border and a chunk border."""
        return len(self.prompt) > max(chunk, PAGE)

    @property
    def generation(self) -> GenerationRequest:
        return GenerationRequest(
            id=self.id,
            tokens=self.prompt.astype("<i4").tobytes(),
            positions=b"",
            initial_channel="content",
            sampling=self.sampling,
            max_tokens=self.max_tokens,
            stop_token_ids=(),
        )


def draw_model(random: Random) -> ModelDraw:
    """Any kind, recipe, order of layers and shape; one in four is tied."""
    return ModelDraw(
        kind=_one(random, ("dense", "moe")),
        recipe=_one(random, RECIPES),
        tied=bool(random.random() < 0.25),
        layers=_one(random, LAYERS),
        shape=_one(random, tuple(SHAPES)),
        seed=int(random.integers(4)),
    )


def draw_engine(random: Random, kv_format: str, chunk: int) -> EngineDraw:
    """Any number of lanes, now and then two threads; pages for all of them.

    Pressure pauses requests, and a replay is another cut list: ``test_pressure.py`` judges that.
    """
    lanes = int(random.integers(1, 9))
    pages = lanes * MAX_CONTEXT // PAGE
    return EngineDraw(kv_format, chunk, lanes, pages, threads=1 + int(random.random() < 0.1))


def draw_requests(random: Random, count: int, chunk: int) -> list[RequestDraw]:
    """``count`` requests that arrive within some of their own running times."""
    arrivals = np.sort(random.integers(0, 8 * count, count))
    return [_draw_request(random, str(index), chunk, int(at)) for index, at in enumerate(arrivals)]


def _draw_request(random: Random, name: str, chunk: int, arrives: int) -> RequestDraw:
    if random.random() < 0.4:
        length = int(random.integers(chunk + 1, 2 * chunk + PAGE + 2))
    else:
        # Borders are where things break: one in four lies within two tokens of one.
        length = int(random.integers(1, 150))
        if random.random() < 0.25:
            length = max(1, PAGE * int(random.integers(1, 3)) + int(random.integers(-2, 3)))
    max_tokens = int(random.integers(40, 144))
    cancel = int(random.integers(1, max_tokens)) if random.random() < 0.1 else None
    prompt = random.integers(0, VOCABULARY, length).astype(np.int32)
    return RequestDraw(name, prompt, draw_sampling(random), max_tokens, arrives, cancel)


def draw_sampling(random: Random) -> SamplingParameters:
    """Two in five sampled with penalties, one in five without, the others greedy, half of them penalised."""
    kind = random.random()
    sampled, penalised = kind < 0.6, kind < 0.4 or kind > 0.8
    return SamplingParameters(
        temperature=round(float(random.uniform(0.2, 2)), 3) if sampled else 0.0,
        top_p=float(_one(random, (1.0, 0.95, 0.8, 0.5, 0.05))),
        top_k=int(_one(random, (0, 20, 5, 2, 1))),
        min_p=float(_one(random, (0.0, 0.0, 0.02, 0.3))),
        presence_penalty=round(float(random.uniform(-2, 2)), 2) if penalised else 0.0,
        frequency_penalty=round(float(random.uniform(-0.5, 2)), 2) if penalised else 0.0,
        seed=int(random.integers(0, 2**64, dtype=np.uint64)),
    )


def shuffled(random: Random, requests: Sequence[RequestDraw]) -> list[RequestDraw]:
    """The same requests arriving in another order."""
    order = random.permutation(len(requests))
    times = [request.arrives for request in requests]
    return [
        RequestDraw(r.id, r.prompt, r.sampling, r.max_tokens, at, r.cancel_after)
        for r, at in zip((requests[i] for i in order), times, strict=True)
    ]


def _one(random: Random, values: Sequence[Any]) -> Any:
    return values[int(random.integers(len(values)))]
