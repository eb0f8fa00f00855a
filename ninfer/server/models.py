"""``GET /v1/models`` and ``GET /v1/models/{id}``: the one model this process serves."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import msgspec
from sanic import HTTPResponse
from sanic.request import Request

from ninfer.server.generation import Services
from ninfer.server.served_model import ServedModel, require_model


async def list_models(request: Request) -> HTTPResponse:
    services: Services = request.app.ctx.services
    return _json({"object": "list", "data": [model_object(services.model)]})


async def get_model(request: Request, model_id: str) -> HTTPResponse:
    services: Services = request.app.ctx.services
    require_model(services.model, unquote(model_id))  # Sanic leaves the rest of a path as it was sent
    return _json(model_object(services.model))


def model_object(model: ServedModel) -> dict[str, Any]:
    """The entry of the list; ``meta`` has the members that llama.cpp's server gives."""
    entry: dict[str, Any] = {
        "id": model.public_id,
        "object": "model",
        "created": model.created,
        "owned_by": "ninfer",
        "max_model_len": model.max_context,
        "meta": {
            "n_vocab": model.token_domain,
            "n_ctx": model.max_context,
            "n_ctx_train": model.config.max_positions,
            "n_embd": model.config.hidden,
            "n_params": model.weights.parameters,
            "size": model.weights.payload_bytes,
            "ftype": model.weights.dominant_format,
        },
    }
    if model.warning is not None:
        entry["warning"] = model.warning
    return entry


def _json(value: object) -> HTTPResponse:
    return HTTPResponse(msgspec.json.encode(value), content_type="application/json")
