"""The routes of stored Responses: retrieval, deletion, their input Items, and what is not provided.

Owns the reading of queries; every object comes from the store as it was answered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sanic import HTTPResponse
from sanic.request import Request

from ninfer import spec
from ninfer.errors import RequestError
from ninfer.server.generation import Services
from ninfer.server.members import shown
from ninfer.server.response_store import StoredResponse


async def get_response(request: Request, response_id: str) -> HTTPResponse:
    """The terminal object as it was answered."""
    for name in ("stream", "starting_after"):
        if request.args.get(name) not in (None, "", "false"):
            raise _unsupported(name, "streams of stored Responses")
    _refuse_include(request)
    return _json(_stored(request, response_id).body)


async def delete_response(request: Request, response_id: str) -> HTTPResponse:
    """Forget the Response; those that continue it keep its Items."""
    services: Services = request.app.ctx.services
    if not services.responses.delete(response_id):
        raise _not_found(response_id)
    return _json(msgspec.json.encode({"id": response_id, "object": "response.deleted", "deleted": True}))


async def list_input_items(request: Request, response_id: str) -> HTTPResponse:
    """A page of the Items that came with the request, without those of Responses before it."""
    _refuse_include(request)
    limit, after, order = _limit(request), _queried(request, "after"), _queried(request, "order")
    order = "desc" if order is None else order
    if order not in ("asc", "desc"):
        raise RequestError("invalid_value", f"order must be asc or desc, not {shown(order)}.", "order")
    items: list[dict[str, Any]] = msgspec.json.decode(_stored(request, response_id).context.inputs)
    if order == "desc":
        items.reverse()
    start = 0 if after is None else _index(items, after) + 1
    page = items[start : start + limit]
    return _json(
        msgspec.json.encode(
            {
                "object": "list",
                "data": page,
                "first_id": page[0]["id"] if page else None,
                "last_id": page[-1]["id"] if page else None,
                "has_more": start + limit < len(items),
            }
        )
    )


async def cancel_response(request: Request, response_id: str) -> HTTPResponse:
    """Nothing runs in the background, so nothing can be cancelled."""
    raise RequestError(
        "background_not_supported",
        "Responses cannot be cancelled: NInfer does not provide background execution; close the "
        "connection of a running request instead.",
    )


async def compact_response(request: Request) -> HTTPResponse:
    raise RequestError("compaction_not_supported", "NInfer does not provide compaction of Responses.")


def _stored(request: Request, response_id: str) -> StoredResponse:
    services: Services = request.app.ctx.services
    record = services.responses.find(response_id)
    if record is None:
        raise _not_found(response_id)
    return record


def _queried(request: Request, name: str) -> str | None:
    """One parameter of the query; one without a value is there, and empty."""
    value: str | None = request.get_args(keep_blank_values=True).get(name)
    return value


def _limit(request: Request) -> int:
    limits = spec.document("http/responses")["input_items"]
    text = _queried(request, "limit")
    if text is None:
        return int(limits["default"])
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
    if value is None or not limits["minimum"] <= value <= limits["maximum"]:
        raise RequestError(
            "invalid_value",
            f"limit must be an integer in {limits['minimum']}..{limits['maximum']}, not {shown(text)}.",
            "limit",
        )
    return value


def _index(items: Sequence[dict[str, Any]], item_id: str) -> int:
    for index, item in enumerate(items):
        if item["id"] == item_id:
            return index
    raise RequestError(
        "invalid_value", f"after {shown(item_id)} names no input Item of this Response.", "after"
    )


def _refuse_include(request: Request) -> None:
    for name in ("include", "include[]"):
        if any(request.args.getlist(name, [])):
            raise _unsupported("include", "further contents of stored Responses")


def _unsupported(name: str, lacking: str) -> RequestError:
    return RequestError(
        "unsupported_parameter", f"{name} is not supported: NInfer does not provide {lacking}.", name
    )


def _not_found(response_id: str) -> RequestError:
    return RequestError(
        "response_not_found", f"No stored Response has the id {shown(response_id)}.", "response_id"
    )


def _json(body: bytes) -> HTTPResponse:
    return HTTPResponse(body, content_type="application/json")
