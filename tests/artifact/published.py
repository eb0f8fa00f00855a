"""The directories of published models, rebuilt from their known geometry: names, shapes, formats, uses.

Independent of ``ninfer.model`` (whose tables cover text and MTP only): every component of the two groupwise-int
releases, fused parents as they were published. No payload: offsets and sizes only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ninfer.artifact import (
    ArtifactPlan,
    Binding,
    Component,
    PlannedResource,
    PlannedTensor,
    Proposal,
    Use,
)

VOCAB = 248320
PROPOSAL_ROWS = 131072
RESOURCE_BYTES = {
    "tokenizer.json": 12_809_320,
    "tokenizer_config.json": 17_928,
    "chat_template.jinja": 8_952,
    "generation_config.json": 202,
    "preprocessor_config.json": 390,
    "video_preprocessor_config.json": 385,
}


@dataclass
class Model:
    """Collects objects, bindings and uses in emission order."""

    hidden: int
    tensors: list[PlannedTensor] = field(default_factory=list)
    bindings: dict[str, Binding] = field(default_factory=dict)
    uses: list[Use] = field(default_factory=list)

    def parent(self, object_id: str, format_name: str, columns: int, rows: dict[str, int], use: str = "") -> None:
        """One matrix object that holds the named parameters' rows one after the other."""
        shape = (sum(rows.values()), columns)
        self.tensors.append(PlannedTensor(object_id, shape, format_name))
        first = 0
        for name, count in rows.items():
            whole = count == shape[0]
            span = [(object_id, first * columns, (first + count) * columns)]
            self.bindings[name] = Binding.whole(object_id) if whole else Binding.ranges(span)
            if use:
                self.uses.append(Use(name, use, "A16Only"))
            first += count

    def vector(self, name: str, *shape: int, format_name: str = "bf16") -> None:
        """One unfused parameter of any shape."""
        self.tensors.append(PlannedTensor(name, shape, format_name))
        self.bindings[name] = Binding.whole(name)

    def vectors(self, prefix: str, sizes: dict[str, int]) -> None:
        for name, size in sizes.items():
            self.vector(f"{prefix}/{name}", size)

    def experts(self, layer: str, part: str, format_name: str, rows: list[str], shape: tuple[int, int]) -> None:
        """One bank object: for every expert the rows of the named projections."""
        object_id = f"{layer}/moe/experts/{part}"
        self.tensors.append(PlannedTensor(object_id, (256 * len(rows) * shape[0], shape[1]), format_name))
        size = math.prod(shape)
        for index, (expert, name) in enumerate((e, n) for e in range(256) for n in rows):
            parameter = f"{layer}/moe/experts/{expert}/{name}"
            use = f"{layer}/moe/experts/{expert}/product" if name == "down" else f"{layer}/ffn_input"
            self.bindings[parameter] = Binding.ranges([(object_id, index * size, (index + 1) * size)])
            self.uses.append(Use(parameter, use, "A16Only"))


@dataclass(frozen=True)
class Heads:
    query: int
    kv: int
    dim: int


def attention(model: Model, layer: str, heads: Heads, formats: list[tuple[str, list[str]]], output: str) -> None:
    rows = {"query": heads.query, "gate": heads.query, "key": heads.kv, "value": heads.kv}
    for format_name, names in formats:
        fused = {f"{layer}/attention/{name}": rows[name] * heads.dim for name in names}
        parent = f"{layer}/attention/{'_'.join(names)}"
        model.parent(parent, format_name, model.hidden, fused, f"{layer}/mixer_input")
    columns = heads.query * heads.dim
    name = f"{layer}/attention/output"
    model.parent(name, output, columns, {name: model.hidden}, f"{layer}/attention/gated_output")
    model.vectors(f"{layer}/attention", {"query_norm": heads.dim, "key_norm": heads.dim})


def gdn(
    model: Model,
    layer: str,
    key_rows: int,
    value_heads: int,
    formats: list[tuple[str, list[str]]],
    output: str,
    *,
    fused_ab: bool,
) -> None:
    value_rows = value_heads * 128
    rows = {"query": key_rows, "key": key_rows, "value": value_rows, "z": value_rows}
    for format_name, names in formats:
        fused = {f"{layer}/gdn/{name}": rows[name] for name in names}
        model.parent(f"{layer}/gdn/{'_'.join(names)}", format_name, model.hidden, fused, f"{layer}/mixer_input")
    for names in [["a", "b"]] if fused_ab else [["a"], ["b"]]:
        controls = {f"{layer}/gdn/{name}_projection": value_heads for name in names}
        object_id = f"{layer}/gdn/{'_'.join(names)}_projection"
        model.parent(object_id, "bf16", model.hidden, controls, f"{layer}/mixer_input")
    name = f"{layer}/gdn/output"
    model.parent(name, output, value_rows, {name: model.hidden}, f"{layer}/gdn/gated_output")
    model.vector(f"{layer}/gdn/a_log", value_heads, format_name="fp32")
    model.vector(f"{layer}/gdn/dt_bias", value_heads, format_name="fp32")
    model.vector(f"{layer}/gdn/convolution", 4, 2 * key_rows + value_rows)
    model.vector(f"{layer}/gdn/norm", 128)


def dense(model: Model, layer: str, width: int, gate_up: str, down: str, inputs: tuple[str, str]) -> None:
    fused = {f"{layer}/mlp/gate": width, f"{layer}/mlp/up": width}
    model.parent(f"{layer}/mlp/gate_up", gate_up, model.hidden, fused, f"{layer}/{inputs[0]}")
    model.parent(f"{layer}/mlp/down", down, width, {f"{layer}/mlp/down": model.hidden}, f"{layer}/{inputs[1]}")


def experts(model: Model, layer: str, gate_up: str, down: str) -> None:
    control = {f"{layer}/moe/router": 256, f"{layer}/moe/shared_score": 1}
    model.parent(f"{layer}/moe/router_shared_score", "bf16", model.hidden, control, f"{layer}/ffn_input")
    model.experts(layer, "gate_up", gate_up, ["gate", "up"], (512, model.hidden))
    model.experts(layer, "down", down, ["down"], (model.hidden, 512))
    shared = {f"{layer}/moe/shared/gate": 512, f"{layer}/moe/shared/up": 512}
    model.parent(f"{layer}/moe/shared/gate_up", "q8_g32_fp16", model.hidden, shared, f"{layer}/ffn_input")
    down_name = f"{layer}/moe/shared/down"
    model.parent(down_name, "q8_g32_fp16", 512, {down_name: model.hidden}, f"{layer}/moe/shared/product")


def vision(model: Model) -> None:
    width, mlp, q4, q5 = 1152, 4304, "q4_g64_fp16", "q5_g64_fp16"
    model.parent(
        "vision/patch_embedding", "q6_g64_fp16", 1536, {"vision/patch_embedding": width}, "vision/patch_input"
    )
    model.vector("vision/patch_embedding_bias", width)
    model.vector("vision/position_embedding", 2304, width)
    for block in range(27):
        layer = f"vision/layers/{block}"
        model.vectors(layer, dict.fromkeys(["norm1_weight", "norm1_bias", "norm2_weight", "norm2_bias"], width))
        qkv = {f"{layer}/attention/{name}": width for name in ("query", "key", "value")}
        model.parent(f"{layer}/attention/qkv", q4, width, qkv, f"{layer}/attention_input")
        biases = f"{layer}/attention/qkv_bias"
        model.tensors.append(PlannedTensor(biases, (3 * width,), "bf16"))
        for index, name in enumerate(qkv):
            span = [(biases, index * width, (index + 1) * width)]
            model.bindings[f"{name}_bias"] = Binding.ranges(span)
        for name, format_name, columns, rows, use in [
            ("attention/output", q5, width, width, "attention_output"),
            ("mlp/fc1", q4, width, mlp, "mlp_input"),
            ("mlp/fc2", q5, mlp, width, "mlp_activation"),
        ]:
            model.parent(f"{layer}/{name}", format_name, columns, {f"{layer}/{name}": rows}, f"{layer}/{use}")
            model.vector(f"{layer}/{name}_bias", rows)
    model.vectors("vision/merger", {"norm_weight": width, "norm_bias": width})
    for name, rows, use in [("fc1", 4 * width, "input"), ("fc2", model.hidden, "activation")]:
        full = f"vision/merger/{name}"
        model.parent(full, "q8_g32_fp16", 4 * width, {full: rows}, f"vision/merger/{use}")
        model.vector(f"{full}_bias", rows)


def drafter(model: Model, name: str, layers: int, taps: int, mlp: int, *, second: bool) -> None:
    heads, q8 = Heads(32, 8, 128), "q8_g32_fp16"
    feature = f"{name}/feature_projection"
    model.parent(feature, q8, taps * model.hidden, {feature: model.hidden}, f"{name}/target_features")
    model.vectors(name, {"context_norm": model.hidden, "final_norm": model.hidden})
    for index in range(layers):
        layer = f"{name}/layers/{index}"
        model.vectors(layer, {"input_norm": model.hidden, "post_attention_norm": model.hidden})
        rows = {"query": heads.query * 128, "key": heads.kv * 128, "value": heads.kv * 128}
        fused = {f"{layer}/attention/{part}": count for part, count in rows.items()}
        parent = f"{layer}/attention/query_key_value"
        model.parent(parent, q8, model.hidden, fused, f"{layer}/query_projection_input")
        for part in ("key", "value"):
            context = f"{layer}/attention/context_{part}"
            model.bindings[context] = model.bindings[f"{layer}/attention/{part}"]
            model.uses.append(Use(context, f"{name}/context_input", "A16Only"))
        output = f"{layer}/attention/output"
        model.parent(output, q8, rows["query"], {output: model.hidden}, f"{layer}/attention_output")
        model.vectors(f"{layer}/attention", {"query_norm": 128, "key_norm": 128})
        dense(model, layer, mlp, q8, q8, ("mlp_input", "mlp_product"))
        for conv in ("attention_conv", "mlp_conv") if second else ():
            model.vector(f"{layer}/{conv}/base_kernel", 2, 2, model.hidden)
            kernel = f"{layer}/{conv}/kernel_projection"
            rows_ = 2 * 2 * model.hidden // 16
            model.parent(kernel, "bf16", model.hidden, {kernel: rows_}, f"{layer}/{conv}_input")
    if second:
        selector = f"{name}/candidate_selector"
        hidden = f"{selector}/hidden_projection"
        model.parent(hidden, "bf16", model.hidden, {hidden: 256}, f"{name}/final_hidden")
        model.vector(f"{selector}/predecessor_codebook", VOCAB, 256)
        model.vector(f"{selector}/successor_codebook", VOCAB, 256)


def vocabulary(model: Model, embedding: str, head: str, drafters: list[str]) -> None:
    model.parent("text/token_embedding", embedding, model.hidden, {"text/token_embedding": VOCAB})
    model.vector("text/final_norm", model.hidden)
    model.parent("text/output_head", head, model.hidden, {"text/output_head": VOCAB})
    model.parent("proposal/head", "q4_g64_fp16", model.hidden, {"proposal/head": PROPOSAL_ROWS})
    model.vector("proposal/token_ids", PROPOSAL_ROWS, format_name="int32")
    for component in ["text", *drafters]:
        model.uses.append(Use("text/output_head", f"{component}/final_hidden", "A16Only"))
    model.uses.extend(Use("proposal/head", f"{name}/final_hidden", "A16Only") for name in drafters)


def mtp_stem(model: Model) -> None:
    name = "mtp/input_projection"
    model.parent(name, "q8_g32_fp16", 2 * model.hidden, {name: model.hidden}, "mtp/stem_input")
    model.vectors("mtp", dict.fromkeys(["embedding_norm", "hidden_norm", "final_norm"], model.hidden))


def norms(model: Model, layer: str) -> None:
    model.vectors(layer, {"input_norm": model.hidden, "post_attention_norm": model.hidden})


def dense_27b() -> ArtifactPlan:
    """qwen3_8_27b, groupwise-int, with vision, MTP, DFlash2 and an indexed proposal head."""
    model, heads = Model(hidden=5120), Heads(24, 4, 256)
    q4, q5, q8 = "q4_g64_fp16", "q5_g64_fp16", "q8_g32_fp16"
    vocabulary(model, q8, q8, ["mtp", "dflash2"])
    for index in range(64):
        layer = f"text/layers/{index}"
        norms(model, layer)
        if index % 4 == 3:
            attention(model, layer, heads, [(q4, ["query", "key"]), (q5, ["gate", "value"])], q5)
        else:
            formats = [(q4, ["query", "key"]), (q5, ["value", "z"])]
            gdn(model, layer, 2048, 48, formats, q5, fused_ab=False)
        dense(model, layer, 17408, q4, q5, ("ffn_input", "mlp/product"))
    mtp_stem(model)
    norms(model, "mtp/layers/0")
    attention(model, "mtp/layers/0", heads, [(q8, ["query", "key", "gate", "value"])], q8)
    dense(model, "mtp/layers/0", 17408, q8, q8, ("ffn_input", "mlp/product"))
    vision(model)
    drafter(model, "dflash2", layers=5, taps=5, mlp=17408, second=True)
    return _plan(model, "qwen3.8-27b", "Qwen3_5ForCausalLM", "dflash2")


def moe_35b_a3b() -> ArtifactPlan:
    """qwen3_6_35b_a3b with vision, MTP, DFlash and an indexed proposal head."""
    model, heads = Model(hidden=2048), Heads(16, 2, 256)
    q4, q5, q6, q8 = "q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16"
    vocabulary(model, q8, q6, ["mtp", "dflash"])
    for index in range(40):
        layer = f"text/layers/{index}"
        norms(model, layer)
        if index % 4 == 3:
            attention(model, layer, heads, [(q8, ["query", "key", "gate", "value"])], q8)
        else:
            gdn(model, layer, 2048, 32, [(q8, ["query", "key", "value", "z"])], q8, fused_ab=True)
        experts(model, layer, q4, q6 if index in (34, 38, 39) else q5)
    mtp_stem(model)
    norms(model, "mtp/layers/0")
    attention(model, "mtp/layers/0", heads, [(q8, ["query", "key", "gate", "value"])], q8)
    experts(model, "mtp/layers/0", q8, q8)
    vision(model)
    drafter(model, "dflash", layers=6, taps=8, mlp=6144, second=False)
    return _plan(model, "qwen3.6-35b-a3b", "Qwen3_5MoeForCausalLM", "dflash")


def _plan(model: Model, name: str, architecture: str, draft: str) -> ArtifactPlan:
    def resources(roles: Iterable[str]) -> dict[str, str]:
        return {role: f"frontend/{role}" for role in roles}

    roles = list(RESOURCE_BYTES)
    text: dict[str, Any] = {"architectures": [architecture], "hidden_size": model.hidden, "vocab_size": VOCAB}
    components = {
        "text": Component(text, None, resources(roles[:4]), Proposal("indexed", PROPOSAL_ROWS)),
        "vision": Component({"depth": 27}, "text", resources(roles[4:])),
        "mtp": Component({"architectures": ["Qwen3_5MTP"]}, "text"),
        draft: Component({"architectures": ["DFlashDraftModel"]}, "text"),
    }
    return ArtifactPlan(
        components=components,
        resources=[PlannedResource(f"frontend/{role}", bytes(size)) for role, size in RESOURCE_BYTES.items()],
        tensors=model.tensors,
        bindings=model.bindings,
        uses=model.uses,
        metadata={"name": name},
    )
