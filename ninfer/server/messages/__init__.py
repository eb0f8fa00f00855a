"""``POST /v1/messages`` and ``/v1/messages/count_tokens``: Anthropic Messages, streaming and not.

``request.py`` reads a body (``blocks.py`` content, ``history.py`` turns, ``thinking.py`` thinking fields and
signatures, ``tools.py`` declarations, ``cache_control.py`` markers), ``answers.py`` builds responses,
``stream.py`` events, ``envelope.py`` errors, ``handler.py`` joins them to a generation. Limits, refused
fields and blocks stand in ``spec/http/messages.yaml``.
"""
