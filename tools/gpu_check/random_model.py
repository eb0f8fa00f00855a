"""Models of published shapes with random weights, made on the device and never through a file.

Owns the numbers only: shapes come from ``ninfer.model.parameters``, packing from the program's own loader.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ninfer.artifact import Proposal
from ninfer.fast.ops.linear import packing
from ninfer.fast.program.gpu.mtp_weights import MtpModel, load_mtp_model
from ninfer.fast.program.gpu.parameters import TextModel, load_text_model
from ninfer.fast.program.gpu.weights import Named
from ninfer.model.config import TextConfig, parse_text_config
from ninfer.model.parameters import mtp_parameters, text_parameters

_COMMON: dict[str, Any] = {
    "vocab_size": 248320,
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-6,
    "head_dim": 256,
    "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10]},
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}
_MOE: dict[str, Any] = {
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}
# hidden, mlp, layers, query heads, kv heads, GDN value heads, tied
_SIZES: dict[str, tuple[int, int, int, int, int, int, bool]] = {
    "0.8B": (1024, 3584, 24, 8, 2, 16, True),
    "4B": (2560, 9216, 32, 16, 4, 32, True),
    "9B": (4096, 12288, 32, 16, 4, 32, False),
    "27B": (5120, 17408, 64, 24, 4, 48, False),
    "35B-A3B": (2048, 0, 40, 16, 2, 32, False),
    # The matrices of 27B, once through all kinds of layers.
    "27B-slice": (5120, 17408, 4, 24, 4, 48, False),
    # For compiling: the heads of the large ones on little memory.
    "heads": (512, 1024, 4, 6, 1, 6, True),
    "heads-moe": (512, 0, 4, 8, 1, 2, True),
}
FORMATS = {
    "bf16": packing.BF16,
    "fp8": packing.FP8,
    "q8": packing.Q8,
    "q6": packing.Q6,
    "q5": packing.Q5,
    "q4": packing.Q4,
    "nvfp4": packing.NVFP4,
}
# What stays bf16 in a quantised model.
_PLAIN = ("a_projection", "b_projection", "router", "shared_score")


def config_of(size: str) -> TextConfig:
    """The text config of a published size."""
    hidden, mlp, layers, query, kv, values, tied = _SIZES[size]
    moe = mlp == 0
    members = {
        "architectures": ["Qwen3_5MoeForCausalLM" if moe else "Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_moe_text" if moe else "qwen3_5_text",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "tie_word_embeddings": tied,
        "layer_types": ["linear_attention" if (i + 1) % 4 else "full_attention" for i in range(layers)],
        "num_attention_heads": query,
        "num_key_value_heads": kv,
        "linear_num_value_heads": values,
        **_COMMON,
        **(_MOE if moe else {"intermediate_size": mlp}),
    }
    if size.startswith("heads"):
        members |= {"vocab_size": 4096, "linear_num_key_heads": 2}
        if moe:
            members |= {"num_experts": 8, "num_experts_per_tok": 2}
    return parse_text_config(members)


class RandomSource:
    """Random matrices of one format on ``device``, reproducible by ``seed``."""

    def __init__(self, config: TextConfig, weights: str, device: torch.device, seed: int = 0) -> None:
        parameters = (*text_parameters(config), *mtp_parameters(config))
        self._shapes = {parameter.name: parameter.shape for parameter in parameters}
        self._vocabulary = config.vocab
        self._number, self._device = FORMATS[weights], device
        self._generator = torch.Generator(device).manual_seed(seed)

    def matrix(self, name: str) -> Named:
        """Values of about unit gain, so that activations stay ordinary."""
        rows, columns = self._shapes[name]
        number = packing.BF16 if name.endswith(_PLAIN) else self._number
        # Every vocabulary matrix of a quantised model is 8 bits wide at least.
        if name in ("text/token_embedding", "text/output_head") and number in (
            packing.Q4,
            packing.Q5,
            packing.Q6,
        ):
            number = packing.Q8
        return number, random_planes(number, rows, columns, self._device, self._generator)

    def vector(self, name: str, offset: float = 0.0) -> Tensor:
        """Small float32 numbers around ``offset``."""
        shape = self._shapes[name]
        values = torch.randn(shape, device=self._device, generator=self._generator)
        return 0.1 * values + (offset or (1.0 if name.endswith("gdn/norm") else 0.0))

    @property
    def proposal(self) -> Proposal | None:
        """There is none in the source: ``random_head`` makes one."""
        return None

    def integers(self, name: str) -> Tensor:
        """Ids of a quarter of the vocabulary."""
        return torch.arange(0, self._vocabulary, 4, dtype=torch.int32, device=self._device)

    def check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Shapes are the config's own."""


def random_planes(
    number: int, rows: int, columns: int, device: torch.device, generator: torch.Generator
) -> list[Tensor]:
    """Natural planes of a matrix whose rows have a norm of about one."""

    def integers(low: int, high: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.randint(low, high, shape, dtype=dtype, device=device, generator=generator)

    gain = columns**-0.5
    if number == packing.BF16:
        values = torch.empty((rows, columns), dtype=torch.bfloat16, device=device)
        return [values.normal_(0, gain, generator=generator)]
    if number == packing.FP8:
        # Exponents near 1: bytes from 0.25 to 3.75, either sign.
        codes = integers(0x28, 0x47, (rows, columns), torch.uint8)
        codes |= integers(0, 2, (rows, columns), torch.uint8) << 7
        return [codes, torch.full((rows,), gain / 1.5, device=device)]
    if number == packing.NVFP4:
        codes = integers(0, 16, (rows, columns), torch.uint8)
        scales = integers(0x30, 0x40, (rows, columns // 16), torch.uint8)
        return [codes, scales, torch.full((rows,), gain / 3, device=device)]
    bits, group = (8, 32) if number == packing.Q8 else (packing.BITS[number], 64)
    half = 1 << (bits - 1)
    codes = integers(-half + (number == packing.Q8), half, (rows, columns), torch.int8)
    scales = torch.rand((rows, -(-columns // group)), device=device, generator=generator) + 0.5
    return [codes, (scales * (1.7 * gain / half)).half()]


def random_head(
    config: TextConfig, model: TextModel, weights: str, device: torch.device, proposal: bool = False
) -> MtpModel:
    """A prediction head for ``model``; with ``proposal`` it proposes a quarter of the ids."""
    source = RandomSource(config, weights, device, seed=1)
    head = load_mtp_model(source, config, model, proposal_head=False)
    if not proposal:
        return head
    ids = source.integers("proposal/token_ids")
    planes = random_planes(
        packing.BF16, len(ids), config.hidden, device, torch.Generator(device).manual_seed(2)
    )
    return replace(head, head=packing.repack(packing.BF16, planes), token_ids=ids)


def random_model(size: str, weights: str, device: torch.device) -> tuple[TextConfig, TextModel]:
    """A published size in one weight format."""
    config = config_of(size)
    return config, load_text_model(RandomSource(config, weights, device), config)
