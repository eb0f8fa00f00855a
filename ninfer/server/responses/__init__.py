"""OpenAI Responses Core: bodies of Items in, typed Items or semantic events out, and the local store.

``request.py`` reads a body, ``items.py`` its Items, ``history.py`` turns Items into the conversation,
``output.py`` and ``stream.py`` an answer into Items and events. What later requests may name is kept in
``ninfer/server/response_store.py``. Limits, fields and the placeholder stand in ``spec/http/responses.yaml``,
the order of events in ``spec/http/streams.yaml``.
"""
