"""The trainable model: its delta rule against the definition, the whole against transformers."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from tools.tiny.attend import Layout
from tools.tiny.deltanet import RESET_GATE, chunked, recurrent, unit_lower_inverse
from tools.tiny.model import Parameters, TinyModel, init_parameters
from tools.tiny.shape import TINY, Shape

NANO = Shape(vocab=96, hidden=64, mlp=96, layers=4, gdn_heads=2, gdn_dim=16, head_dim=32)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    """Tiny matrices gain nothing from threads, and spinning ones starve the other test workers."""
    torch.set_num_threads(1)


def _inputs(length: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(length)
    shape = (2, length, 3, 16)

    def draw(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    q = torch.nn.functional.normalize(draw(*shape), dim=-1)
    k = torch.nn.functional.normalize(draw(*shape) + 2 * draw(2, 1, 3, 16), dim=-1)
    gate = -0.2 * torch.rand(shape[:3], generator=generator, dtype=torch.float64)
    gate[:, length // 3] = RESET_GATE
    beta = torch.rand(shape[:3], generator=generator, dtype=torch.float64)
    return [x.requires_grad_() for x in (q, k, draw(*shape), gate, beta)]


@pytest.mark.parametrize(("length", "chunk"), [(64, 64), (192, 64), (96, 32), (48, 16), (24, 8)])
def test_chunked_rule_and_its_gradients_equal_the_recurrence(length: int, chunk: int) -> None:
    inputs = _inputs(length)
    want, got = recurrent(*inputs), chunked(*inputs, chunk=chunk)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)
    weight = torch.randn(want.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    wanted = torch.autograd.grad((want * weight).sum(), inputs)
    gotten = torch.autograd.grad((got * weight).sum(), inputs)
    for a, b in zip(gotten, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


def test_triangular_inverse_survives_equal_keys() -> None:
    """Repeated tokens give a triangle of ones: its powers reach 1e17, its inverse is exact."""
    ones = torch.ones(1, 64, 64).tril(-1)
    product = unit_lower_inverse(ones) @ (torch.eye(64) + ones)
    torch.testing.assert_close(product, torch.eye(64)[None], rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def parameters() -> Parameters:
    generator = torch.Generator().manual_seed(2)
    drawn = init_parameters(NANO, 0)
    with torch.no_grad():
        for name, tensor in drawn.items():
            if "A_log" not in name and "dt_bias" not in name:
                tensor.add_(0.1 * torch.randn(tensor.shape, generator=generator))
    return drawn


def _starts(length: int, *columns: int) -> Tensor:
    starts = torch.zeros(1, length, dtype=torch.bool)
    starts[0, [0, *columns]] = True
    return starts


def _tokens(length: int) -> Tensor:
    return torch.randint(NANO.vocab, (1, length), generator=torch.Generator().manual_seed(9))


def test_logits_equal_transformers_document_by_document(parameters: Parameters) -> None:
    transformers = pytest.importorskip("transformers")
    config = {k: v for k, v in NANO.hf_config(0).items() if k not in ("architectures", "model_type", "dtype")}
    oracle = transformers.Qwen3_5ForCausalLM(transformers.Qwen3_5TextConfig(**config)).eval()
    text = {name: p.detach() for name, p in parameters.items() if not name.startswith("mtp.")}
    missing = oracle.load_state_dict(text, strict=False)
    assert missing.missing_keys == ["lm_head.weight"]
    assert not missing.unexpected_keys
    tokens, borders = _tokens(128), [0, 37, 39, 128]
    with torch.no_grad():
        want = torch.cat([oracle(tokens[:, a:b]).logits for a, b in pairwise(borders)], 1)
        model = TinyModel(NANO, parameters)
        got = model.logits(model.forward(tokens, _starts(128, 37, 39)).hidden)
    assert (got - want).abs().max() < 1e-4
    assert want.std() > 0.5, "weights too weak to show a fault"


def test_documents_do_not_see_each_other(parameters: Parameters) -> None:
    wide = {name: p.detach().double() for name, p in parameters.items()}
    model, tokens = TinyModel(NANO, wide, act=torch.float64), _tokens(128)
    other = tokens.clone()
    other[:, :50] = (other[:, :50] + 1) % NANO.vocab
    one, two = (model.forward(ids, _starts(128, 50)) for ids in (tokens, other))
    assert one.draft is not None
    assert two.draft is not None
    for a, b in ((one.hidden, two.hidden), (one.draft, two.draft)):
        torch.testing.assert_close(a[:, 50:], b[:, 50:], rtol=0, atol=1e-9)
        assert (a[:, :48] - b[:, :48]).abs().mean() > 0.1


def test_bundled_shape_stays_in_its_bounds() -> None:
    count = sum(math.prod(size) for size in TINY.parameters().values())
    assert count <= 7_500_000
    assert [layer for layer in range(TINY.layers) if TINY.is_attention(layer)] == [3, 7]
    assert TINY.mrope_section == [3, 3, 2]


def test_document_offsets_name_every_start() -> None:
    starts = torch.zeros(3, 64, dtype=torch.bool)
    starts[:, 0] = True
    starts[0, [17, 40]] = starts[2, 33] = True
    layout = Layout.of(starts, "varlen")
    assert layout.offsets is not None
    assert layout.offsets.tolist() == [0, 17, 40, 64, 128, 161] + [192] * (192 // 16 + 1 - 6)
    mask = Layout.of(starts, "dense").mask
    assert mask is not None
    assert mask.shape == (3, 1, 64, 64)
    assert mask[0, 0, 39].nonzero().flatten().tolist() == list(range(17, 40))
