"""``ninfer-serve``: OpenAI- and Anthropic-compatible HTTP over one resident engine.

``main.py`` starts it, ``app.py`` builds the routes, one folder per protocol (``chat/``) translates between
its wire format and the protocol-neutral conversation. Codes, limits and event orders stand in ``spec/http``.
Imports no engine and no torch: engines are reached through ``ninfer.engine``.
"""
