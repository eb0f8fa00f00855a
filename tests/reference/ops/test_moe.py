"""``moe_route`` and ``moe_experts`` against transformers' block and written out."""

from __future__ import annotations

import torch
from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeTextConfig
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeSparseMoeBlock

from ninfer.model.config import MoeConfig
from ninfer.reference.layers import mixture
from ninfer.reference.ops.moe_experts import moe_experts
from ninfer.reference.ops.moe_route import moe_route
from ninfer.reference.ops.swiglu import swiglu
from tests.reference.ops.samples import close, normal
from tests.support.nano_weights import checkpoint_tensors, logical_weights, text_config_members


def test_route_renormalises_the_chosen() -> None:
    scores = torch.tensor([[0.5, 0.2, 0.2, 0.1]]).log()
    experts, weights = moe_route(scores, 2)
    assert experts.tolist() == [[0, 1]]  # the tie goes to the lower expert
    close(weights, torch.tensor([[5 / 7, 2 / 7]]))


def test_route_breaks_every_tie_downwards() -> None:
    experts, weights = moe_route(torch.zeros(3, 256), 8)
    assert experts.tolist() == [list(range(8))] * 3
    close(weights, torch.full((3, 8), 1 / 8))


def test_experts_written_out() -> None:
    gate, up, down = (
        [normal(*s, seed=10 * i + e) for e in range(5)] for i, s in enumerate([(6, 4), (6, 4), (4, 6)])
    )
    x = normal(7, 4, seed=99)
    experts, weights = moe_route(normal(7, 5, seed=98), 3)
    found = moe_experts(x, experts, weights, gate, up, down)
    for row in range(7):
        wanted = sum(
            weights[row, slot] * (down[e] @ swiglu(gate[e] @ x[row], up[e] @ x[row]))
            for slot, e in enumerate(experts[row].tolist())
        )
        close(found[row], wanted, 1e-5)


def test_whole_mixture_equals_transformers() -> None:
    members = text_config_members("moe")
    tensors = checkpoint_tensors(members)
    block = Qwen3_5MoeSparseMoeBlock(Qwen3_5MoeTextConfig(**members))
    prefix = "model.layers.1.mlp."
    block.load_state_dict(
        {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
    )
    x = normal(40, 64, seed=1)
    layer = {
        name.removeprefix("text/layers/1/"): weight
        for name, weight in logical_weights(members, tensors).items()
        if name.startswith("text/layers/1/")
    }
    with torch.no_grad():
        wanted = block(x[None])
    wanted = wanted[0] if isinstance(wanted, tuple) else wanted
    close(mixture(x, layer, MoeConfig(8, 2, 64, 64)), wanted.reshape(40, 64), 5e-6)
