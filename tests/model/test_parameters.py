"""The list of logical parameters against published totals."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ninfer.model.config import parse_text_config
from ninfer.model.parameters import Parameter, mtp_parameters, text_parameters
from tests.model.published import QWEN_2B, QWEN_27B, QWEN_35B


def total(parameters: Iterable[Parameter]) -> int:
    return sum(math.prod(parameter.shape) for parameter in parameters)


def test_35b_totals() -> None:
    # Published per part: embedding, 40 blocks, final norm and head, MTP.
    config = parse_text_config(QWEN_35B)
    text = text_parameters(config)
    embedding = [p for p in text if p.name == "text/token_embedding"]
    tail = [p for p in text if p.name in ("text/final_norm", "text/output_head")]
    blocks = [p for p in text if p.name.startswith("text/layers/")]
    assert len(embedding) + len(tail) + len(blocks) == len(text)
    assert total(embedding) == 508_559_360
    assert total(blocks) == 33_643_489_920
    assert total(tail) == 508_561_408
    assert total(mtp_parameters(config)) == 844_640_768


def test_2b_totals() -> None:
    # 1,942,653,248 parameters are reported for the file with its MTP head; the head is tied.
    config = parse_text_config(QWEN_2B)
    text = [p for p in text_parameters(config) if p.name != "text/output_head"]
    assert total(text) == 1_881_825_088
    assert total(mtp_parameters(config)) == 60_828_160


def test_names_are_unique_and_in_order_of_the_forward_pass() -> None:
    text = text_parameters(parse_text_config(QWEN_27B))
    names = [p.name for p in text]
    assert len(set(names)) == len(names)
    assert names[0] == "text/token_embedding"
    assert names[-2:] == ["text/final_norm", "text/output_head"]
    layers = [int(name.split("/")[2]) for name in names if name.startswith("text/layers/")]
    assert layers == sorted(layers)


def test_kinds_of_layers_have_their_own_parameters() -> None:
    by_name = {p.name: p for p in text_parameters(parse_text_config(QWEN_27B))}
    assert by_name["text/layers/0/gdn/convolution"].shape == (4, 10240)
    assert by_name["text/layers/0/gdn/a_log"].dtype == "fp32"
    assert by_name["text/layers/3/attention/query"].shape == (24 * 256, 5120)
    assert by_name["text/layers/3/attention/query"].uses == ("text/layers/3/mixer_input",)
    assert "text/layers/3/gdn/query" not in by_name
    assert "text/layers/0/attention/query" not in by_name


def test_experts_read_the_layer_s_input_and_their_own_product() -> None:
    by_name = {p.name: p for p in text_parameters(parse_text_config(QWEN_35B))}
    prefix = "text/layers/39/moe/experts/255"
    assert by_name[f"{prefix}/gate"].uses == ("text/layers/39/ffn_input",)
    assert by_name[f"{prefix}/down"].uses == (f"{prefix}/product",)
    assert by_name[f"{prefix}/down"].shape == (2048, 512)


def test_mtp_layer_has_attention_whatever_the_text_layers_are() -> None:
    names = {p.name for p in mtp_parameters(parse_text_config(QWEN_2B))}
    assert "mtp/layers/0/attention/query" in names
    assert "mtp/layers/0/mlp/down" in names
    assert "mtp/input_projection" in names
    assert not any("gdn" in name for name in names)
