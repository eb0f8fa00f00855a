"""The data recipe of ninfer-tiny: exchanges by skill, documents, rendering, packing, the held-out rule.

``skills/`` write single exchanges, ``documents.py`` composes conversations from them, ``render.py``
renders as the chat template does, ``pack.py`` fills rows, ``split.py`` decides what training never sees.
"""
