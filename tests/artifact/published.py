"""The directories of published models, rebuilt from their known geometry: names, shapes, formats, uses.

Independent of ``ninfer.model`` (whose tables cover text and MTP only): every component of the two
groupwise-int releases, fused parents as they were published. No payload: offsets and sizes only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ninfer.artifact import ArtifactPlan, Binding, Component, PlannedResource, PlannedTensor, Proposal, Use

Q4, Q5, Q6, Q8 = "q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16"
VOCAB = 248_320
PROPOSAL_ROWS = 131_072
RESOURCE_BYTES = {
    "tokenizer.json": 12_809_320,
    "tokenizer_config.json": 17_928,
    "chat_template.jinja": 8_952,
    "generation_config.json": 202,
    "preprocessor_config.json": 390,
    "video_preprocessor_config.json": 385,
}
Parents = list[tuple[str, list[str]]]


@dataclass(frozen=True)
class Heads:
    """Attention or GDN rows: ``key`` and ``value`` heads of dimension ``dim`` (attention: kv heads twice)."""

    query: int
    kv: int
    dim: int


@dataclass
class Model:
    """Collects objects, bindings and uses in emission order."""

    hidden: int
    tensors: list[PlannedTensor] = field(default_factory=list)
    bindings: dict[str, Binding] = field(default_factory=dict)
    uses: list[Use] = field(default_factory=list)

    def add(self, shape: tuple[int, ...], format_name: str) -> str:
        """A new object; its id."""
        self.tensors.append(PlannedTensor(f"weight/{len(self.tensors):06d}", shape, format_name))
        return self.tensors[-1].id

    def parent(self, format_name: str, columns: int, rows: dict[str, int], use: str = "") -> None:
        """One matrix object that holds the named parameters' rows one after the other."""
        total, first = sum(rows.values()), 0
        object_id = self.add((total, columns), format_name)
        for name, count in rows.items():
            span = [(object_id, first * columns, (first + count) * columns)]
            self.bindings[name] = Binding.whole(object_id) if count == total else Binding.ranges(span)
            if use:
                self.uses.append(Use(name, use, "A16Only"))
            first += count

    def whole(self, name: str, *shape: int, form: str = "bf16", use: str = "") -> None:
        """One unfused parameter."""
        self.bindings[name] = Binding.whole(self.add(shape, form))
        if use:
            self.uses.append(Use(name, use, "A16Only"))

    def vectors(self, prefix: str, size: int, *names: str) -> None:
        for name in names:
            self.whole(f"{prefix}/{name}", size)

    def bank(self, layer: str, format_name: str, names: list[str], shape: tuple[int, int]) -> None:
        """One object with the rows of the named projections of all 256 experts."""
        size = math.prod(shape)
        object_id = self.add((256 * len(names) * shape[0], shape[1]), format_name)
        for index, (expert, name) in enumerate((e, n) for e in range(256) for n in names):
            parameter = f"{layer}/moe/experts/{expert}/{name}"
            use = f"{layer}/moe/experts/{expert}/product" if name == "down" else f"{layer}/ffn_input"
            self.bindings[parameter] = Binding.ranges([(object_id, index * size, (index + 1) * size)])
            self.uses.append(Use(parameter, use, "A16Only"))


def norms(model: Model, layer: str) -> None:
    model.vectors(layer, model.hidden, "input_norm", "post_attention_norm")


def attention(model: Model, layer: str, heads: Heads, parents: Parents, output: str) -> None:
    rows = {"query": heads.query, "gate": heads.query, "key": heads.kv, "value": heads.kv}
    for format_name, names in parents:
        fused = {f"{layer}/attention/{name}": rows[name] * heads.dim for name in names}
        model.parent(format_name, model.hidden, fused, f"{layer}/mixer_input")
    shape = (model.hidden, heads.query * heads.dim)
    model.whole(f"{layer}/attention/output", *shape, form=output, use=f"{layer}/attention/gated_output")
    model.vectors(f"{layer}/attention", heads.dim, "query_norm", "key_norm")


def gdn(
    model: Model, layer: str, heads: int, parents: Parents, output: str, controls: list[list[str]]
) -> None:
    """16 key heads and ``heads`` value heads of 128; ``controls``: how a and b share objects."""
    key_rows, value_rows = 16 * 128, heads * 128
    rows = {"query": key_rows, "key": key_rows, "value": value_rows, "z": value_rows}
    for format_name, names in parents:
        fused = {f"{layer}/gdn/{name}": rows[name] for name in names}
        model.parent(format_name, model.hidden, fused, f"{layer}/mixer_input")
    for group in controls:
        fused = {f"{layer}/gdn/{name}_projection": heads for name in group}
        model.parent("bf16", model.hidden, fused, f"{layer}/mixer_input")
    model.whole(f"{layer}/gdn/output", model.hidden, value_rows, form=output, use=f"{layer}/gdn/gated_output")
    model.whole(f"{layer}/gdn/a_log", heads, form="fp32")
    model.whole(f"{layer}/gdn/dt_bias", heads, form="fp32")
    model.whole(f"{layer}/gdn/convolution", 4, 2 * key_rows + value_rows)
    model.whole(f"{layer}/gdn/norm", 128)


def mlp(model: Model, layer: str, width: int, forms: tuple[str, str], inputs: tuple[str, str]) -> None:
    fused = {f"{layer}/mlp/gate": width, f"{layer}/mlp/up": width}
    model.parent(forms[0], model.hidden, fused, f"{layer}/{inputs[0]}")
    model.whole(f"{layer}/mlp/down", model.hidden, width, form=forms[1], use=f"{layer}/{inputs[1]}")


def moe(model: Model, layer: str, gate_up: str, down: str) -> None:
    control = {f"{layer}/moe/router": 256, f"{layer}/moe/shared_score": 1}
    model.parent("bf16", model.hidden, control, f"{layer}/ffn_input")
    model.bank(layer, gate_up, ["gate", "up"], (512, model.hidden))
    model.bank(layer, down, ["down"], (model.hidden, 512))
    shared = f"{layer}/moe/shared"
    model.parent(Q8, model.hidden, {f"{shared}/gate": 512, f"{shared}/up": 512}, f"{layer}/ffn_input")
    model.whole(f"{shared}/down", model.hidden, 512, form=Q8, use=f"{shared}/product")


def vision(model: Model) -> None:
    width, inner = 1152, 4304
    model.whole("vision/patch_embedding", width, 1536, form=Q6, use="vision/patch_input")
    model.whole("vision/patch_embedding_bias", width)
    model.whole("vision/position_embedding", 2304, width)
    for block in range(27):
        layer = f"vision/layers/{block}"
        model.vectors(layer, width, "norm1_weight", "norm1_bias", "norm2_weight", "norm2_bias")
        qkv = {f"{layer}/attention/{name}": width for name in ("query", "key", "value")}
        model.parent(Q4, width, qkv, f"{layer}/attention_input")
        model.parent("bf16", 1, {f"{name}_bias": width for name in qkv})
        model.tensors[-1] = PlannedTensor(model.tensors[-1].id, (3 * width,), "bf16")
        for name, form, rows, columns, use in [
            ("attention/output", Q5, width, width, "attention_output"),
            ("mlp/fc1", Q4, inner, width, "mlp_input"),
            ("mlp/fc2", Q5, width, inner, "mlp_activation"),
        ]:
            model.whole(f"{layer}/{name}", rows, columns, form=form, use=f"{layer}/{use}")
            model.whole(f"{layer}/{name}_bias", rows)
    model.vectors("vision/merger", width, "norm_weight", "norm_bias")
    for name, rows, use in [("fc1", 4 * width, "input"), ("fc2", model.hidden, "activation")]:
        model.whole(f"vision/merger/{name}", rows, 4 * width, form=Q8, use=f"vision/merger/{use}")
        model.whole(f"vision/merger/{name}_bias", rows)


def drafter(model: Model, name: str, layers: int, taps: int, width: int) -> None:
    """DFlash, or with its convolutions and candidate selector DFlash2; 32 and 8 heads of 128."""
    hidden, second = model.hidden, name == "dflash2"
    feature = f"{name}/feature_projection"
    model.whole(feature, hidden, taps * hidden, form=Q8, use=f"{name}/target_features")
    model.vectors(name, hidden, "context_norm", "final_norm")
    for index in range(layers):
        layer = f"{name}/layers/{index}"
        norms(model, layer)
        rows = {f"{layer}/attention/{part}": n * 128 for part, n in [("query", 32), ("key", 8), ("value", 8)]}
        model.parent(Q8, hidden, rows, f"{layer}/query_projection_input")
        for part in ("key", "value"):
            context = f"{layer}/attention/context_{part}"
            model.bindings[context] = model.bindings[f"{layer}/attention/{part}"]
            model.uses.append(Use(context, f"{name}/context_input", "A16Only"))
        model.whole(f"{layer}/attention/output", hidden, 4096, form=Q8, use=f"{layer}/attention_output")
        model.vectors(f"{layer}/attention", 128, "query_norm", "key_norm")
        mlp(model, layer, width, (Q8, Q8), ("mlp_input", "mlp_product"))
        for conv in ("attention_conv", "mlp_conv") if second else ():
            model.whole(f"{layer}/{conv}/base_kernel", 2, 2, hidden)
            kernel = f"{layer}/{conv}/kernel_projection"
            model.whole(kernel, 2 * 2 * hidden // 16, hidden, use=f"{layer}/{conv}_input")
    if second:
        selector = f"{name}/candidate_selector"
        model.whole(f"{selector}/hidden_projection", 256, hidden, use=f"{name}/final_hidden")
        model.whole(f"{selector}/predecessor_codebook", VOCAB, 256)
        model.whole(f"{selector}/successor_codebook", VOCAB, 256)


def vocabulary(model: Model, embedding: str, head: str, drafters: list[str]) -> None:
    model.whole("text/token_embedding", VOCAB, model.hidden, form=embedding)
    model.whole("text/final_norm", model.hidden)
    model.whole("text/output_head", VOCAB, model.hidden, form=head, use="text/final_hidden")
    model.whole("proposal/head", PROPOSAL_ROWS, model.hidden, form=Q4)
    model.whole("proposal/token_ids", PROPOSAL_ROWS, form="int32")
    for parameter in ("text/output_head", "proposal/head"):
        model.uses.extend(Use(parameter, f"{name}/final_hidden", "A16Only") for name in drafters)


def mtp(model: Model, heads: Heads) -> str:
    """The head without its feed-forward; the prefix of its layer."""
    layer = "mtp/layers/0"
    model.whole("mtp/input_projection", model.hidden, 2 * model.hidden, form=Q8, use="mtp/stem_input")
    model.vectors("mtp", model.hidden, "embedding_norm", "hidden_norm", "final_norm")
    norms(model, layer)
    attention(model, layer, heads, [(Q8, ["query", "key", "gate", "value"])], Q8)
    return layer


def dense_27b() -> ArtifactPlan:
    """qwen3_8_27b, groupwise-int, with vision, MTP, DFlash2 and an indexed proposal head."""
    model, heads = Model(hidden=5120), Heads(24, 4, 256)
    vocabulary(model, Q8, Q8, ["mtp", "dflash2"])
    for index in range(64):
        layer = f"text/layers/{index}"
        norms(model, layer)
        if index % 4 == 3:
            attention(model, layer, heads, [(Q4, ["query", "key"]), (Q5, ["gate", "value"])], Q5)
        else:
            gdn(model, layer, 48, [(Q4, ["query", "key"]), (Q5, ["value", "z"])], Q5, [["a"], ["b"]])
        mlp(model, layer, 17_408, (Q4, Q5), ("ffn_input", "mlp/product"))
    mlp(model, mtp(model, heads), 17_408, (Q8, Q8), ("ffn_input", "mlp/product"))
    vision(model)
    drafter(model, "dflash2", layers=5, taps=5, width=17_408)
    return _plan(model, "qwen3.8-27b", "Qwen3_5ForCausalLM", "dflash2")


def moe_35b_a3b() -> ArtifactPlan:
    """qwen3_6_35b_a3b with vision, MTP, DFlash and an indexed proposal head."""
    model, heads = Model(hidden=2048), Heads(16, 2, 256)
    vocabulary(model, Q8, Q6, ["mtp", "dflash"])
    for index in range(40):
        layer = f"text/layers/{index}"
        norms(model, layer)
        if index % 4 == 3:
            attention(model, layer, heads, [(Q8, ["query", "key", "gate", "value"])], Q8)
        else:
            gdn(model, layer, 32, [(Q8, ["query", "key", "value", "z"])], Q8, [["a", "b"]])
        moe(model, layer, Q4, Q6 if index in (34, 38, 39) else Q5)
    moe(model, mtp(model, heads), Q8, Q8)
    vision(model)
    drafter(model, "dflash", layers=6, taps=8, width=6_144)
    return _plan(model, "qwen3.6-35b-a3b", "Qwen3_5MoeForCausalLM", "dflash")


def _plan(model: Model, name: str, architecture: str, draft: str) -> ArtifactPlan:
    def resources(component: str, roles: Iterable[str]) -> dict[str, str]:
        return {role: f"resource/{component}/{role}" for role in roles}

    roles = list(RESOURCE_BYTES)
    config: dict[str, Any] = {
        "architectures": [architecture],
        "hidden_size": model.hidden,
        "vocab_size": VOCAB,
    }
    text, images = resources("text", roles[:4]), resources("vision", roles[4:])
    components = {
        "text": Component(config, None, text, Proposal("indexed", PROPOSAL_ROWS)),
        "vision": Component({"depth": 27}, "text", images),
        "mtp": Component({"architectures": ["Qwen3_5MTP"]}, "text"),
        draft: Component({"architectures": ["DFlashDraftModel"]}, "text"),
    }
    stored = {**text, **images}
    return ArtifactPlan(
        components=components,
        resources=[PlannedResource(stored[role], bytes(size)) for role, size in RESOURCE_BYTES.items()],
        tensors=model.tensors,
        bindings=model.bindings,
        uses=model.uses,
        metadata={"name": name},
    )
