"""The model routes: one alias, its ceiling and the facts of the artifact behind it."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import pytest

from conformance.http.client import Client
from conformance.http.schemas import check_answer
from ninfer.artifact import Artifact
from ninfer.cli.parser import parse
from ninfer.convert import convert
from ninfer.engine.interface import SerialEngine
from ninfer.prompt import Tokenizer
from ninfer.server.assemble import open_model
from ninfer.server.models import model_object
from tests.server.engines import RecordingEngine
from tests.server.inprocess import serving
from tests.support.nano import nano_checkpoint


def entry(client: Client) -> dict[str, Any]:
    """The only entry of the list."""
    answer = client.get("/v1/models")
    assert answer.status == 200
    check_answer("GET", "/v1/models", 200, answer.json)
    (only,) = answer.json["data"]
    return dict(only)


def config_of(artifact: Path) -> dict[str, Any]:
    with Artifact.open(artifact) as opened:
        return dict(opened.directory.components["text"].config)


def weights_of(artifact: Path) -> dict[str, tuple[int, int, str]]:
    """Distinct weight objects: elements, encoded bytes and format, from the file's own JSON."""
    with Artifact.open(artifact) as opened:
        directory = opened.directory
        ids = set()
        for binding in directory.bindings.values():
            ids |= {binding.object} if binding.object else {part.object for part in binding.parts}
        tensors = {index: directory.tensor(index) for index in ids}
    return {index: (math.prod(t.shape), t.bytes, t.format) for index, t in tensors.items()}


@pytest.mark.clause("START-001", "HTTP-003", "MODELS-001")
def test_one_artifact_is_one_model(reference: Client) -> None:
    model = entry(reference)
    assert model["id"] == "nano"
    assert {"max_model_len", "meta"} <= set(model)


@pytest.mark.clause("HTTP-004", "MODELS-010")
def test_the_alias_finds_the_same_object(reference: Client) -> None:
    answer = reference.get("/v1/models/nano")
    assert answer.status == 200
    check_answer("GET", "/v1/models/{model_id}", 200, answer.json)
    assert answer.json == entry(reference)


@pytest.mark.clause("MODELS-011")
@pytest.mark.parametrize("name", ["other", "nano2", "nan", "NANO", "a/b", "nano%2Fx", "%00", "%C3%B6"])
def test_any_other_id_is_404(reference: Client, name: str) -> None:
    answer = reference.get(f"/v1/models/{name}")
    assert answer.status == 404
    check_answer("GET", "/v1/models/{model_id}", 404, answer.json)
    assert answer.error["code"] == "model_not_found"


def test_a_name_with_slashes_is_found(nano: Path) -> None:
    with serving(nano, RecordingEngine(), ("--model-id", "Org/Model-1.5 B")) as client:
        assert client.get("/v1/models/Org/Model-1.5%20B").json["id"] == "Org/Model-1.5 B"
        assert client.get("/v1/models/Org%2FModel-1.5%20B").status == 200


@pytest.mark.clause("MODELS-002", "MODELS-004", "MODELS-005")
def test_the_context_of_the_instance_and_of_the_model(nano: Path) -> None:
    trained = set()
    for ceiling in (4096, 8192):
        with serving(nano, RecordingEngine(), ("--max-context", str(ceiling))) as client:
            model = entry(client)
            assert model["max_model_len"] == model["meta"]["n_ctx"] == ceiling
            trained.add(model["meta"]["n_ctx_train"])
    assert trained == {config_of(nano)["max_position_embeddings"]}


@pytest.mark.clause("MODELS-003", "MODELS-006")
def test_vocabulary_and_width(reference: Client, nano: Path) -> None:
    meta = entry(reference)["meta"]
    with Artifact.open(nano) as artifact:
        form = artifact.resource("text", "tokenizer.json")
        tokenizer = Tokenizer.from_resources(form, artifact.resource("text", "tokenizer_config.json"))
        config = json.loads(artifact.resource("text", "tokenizer_config.json"))
    highest = max(*json.loads(form)["model"]["vocab"].values(), *map(int, config["added_tokens_decoder"]))
    assert meta["n_vocab"] == tokenizer.vocabulary_size == highest + 1
    assert meta["n_embd"] == config_of(nano)["hidden_size"]


@pytest.mark.clause("MODELS-007", "MODELS-008", "MODELS-009")
@pytest.mark.parametrize(
    ("kind", "recipe", "ftype"), [("dense", "bf16", "bf16"), ("moe", "q4", "q4_g64_fp16")]
)
def test_weights_are_counted_from_the_file(
    tmp_path: Path, kind: Literal["dense", "moe"], recipe: str, ftype: str
) -> None:
    """A tied model: the shared embedding counts once."""
    artifact = tmp_path / "x.ninfer"
    convert(nano_checkpoint(tmp_path / "checkpoint", kind=kind, tied=True), artifact, recipe, name="x")
    weights = weights_of(artifact)
    with serving(artifact, RecordingEngine()) as client:
        meta = entry(client)["meta"]
    assert meta["n_params"] == sum(elements for elements, _, _ in weights.values())
    assert meta["size"] == sum(size for _, size, _ in weights.values())
    by_format = Counter[str]()
    for _, size, form in weights.values():
        by_format[form] += size
    assert meta["ftype"] == by_format.most_common(1)[0][0] == ftype


@pytest.mark.clause("START-025")
def test_the_stored_name_is_the_public_one(tmp_path: Path) -> None:
    artifact = tmp_path / "file.ninfer"
    convert(nano_checkpoint(tmp_path / "checkpoint"), artifact, "bf16", name="x")
    with serving(artifact, RecordingEngine()) as client:
        assert entry(client)["id"] == "x"
        assert client.chat(model="x").status == 200


@pytest.mark.clause("START-026", "OPT-004", "START-027", "MODELS-012")
def test_the_public_name_in_its_three_forms(
    tmp_path: Path, nano: Path, reference_engine: SerialEngine
) -> None:
    """Stored name, architecture without one, and the option, which changes nothing but the name."""
    with Artifact.open(nano) as opened:
        stored = str(opened.directory.metadata["name"])
    question = {"max_tokens": 12, "seed": 5, "temperature": 1}
    with serving(nano, reference_engine) as client:
        assert entry(client)["id"] == stored
        plain = client.chat(model=stored, **question)
        greedy = client.chat(model=stored, max_tokens=12, temperature=0)
    nameless = tmp_path / "nameless.ninfer"
    data = nano.read_bytes()
    assert data.count(f'"name":"{stored}"'.encode()) == 1
    nameless.write_bytes(data.replace(f'"name":"{stored}"'.encode(), f'"nick":"{stored}"'.encode()))
    with serving(nameless, reference_engine) as client:
        assert entry(client)["id"] == config_of(nano)["architectures"][0]
    with serving(nano, reference_engine, ("--model-id", "bar")) as client:
        assert entry(client)["id"] == "bar"
        assert client.get("/v1/models/bar").status == 200
        assert client.get(f"/v1/models/{stored}").status == 404
        assert client.chat(model=stored).status == 404
        for want, members in ((plain, question), (greedy, {"max_tokens": 12, "temperature": 0})):
            renamed = client.chat(model="bar", **members)
            assert renamed.status == 200
            assert renamed.json["choices"] == want.json["choices"]


def test_the_demonstration_model_says_so(nano: Path) -> None:
    named = open_model(parse("ninfer-serve", [str(nano)]), nano)
    bundled = open_model(parse("ninfer-serve", []), nano)
    assert "warning" not in model_object(named)
    assert "demonstration model" in model_object(bundled)["warning"]
