"""``POST /v1/chat/completions``: OpenAI Chat Completions, streaming and not.

``request.py`` reads a body (``messages.py`` its history, ``template.py`` its thinking fields, ``refusals.py``
what cannot be honoured), ``answers.py`` builds responses and chunks, ``handler.py`` joins them to a
generation. Limits and refused fields stand in ``spec/http/chat.yaml``, the stream's order in
``spec/http/streams.yaml``.
"""
