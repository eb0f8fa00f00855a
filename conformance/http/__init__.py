"""Black-box checks over HTTP: what any live server must answer, and what ours must over a scripted engine.

    pytest conformance/http                                     # servers of ours, started when needed
    pytest conformance/ --base-url URL [--model --api-key]      # a server elsewhere; a line for every clause

``cases/`` are requests as data, a folder a protocol (``cases.schema.json``), each naming its clauses;
``protocols/`` says what an answer of each protocol must be. Nothing here imports the server but
``scripted.py``, which puts an engine that plays given tokens behind it.
"""
