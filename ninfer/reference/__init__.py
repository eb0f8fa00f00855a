"""The oracle: text model and MTP head in plain PyTorch, and the engine that answers with them.

``ops/`` has one file per mathematical operation, ``layers.py`` joins them to mixers and feed-forwards,
``model.py`` and ``mtp.py`` are the forward passes, ``state.py`` what a prefix is, ``weights.py`` loads an
artifact, ``engine.py`` answers requests. Written to be read and checked against formulas, never to be fast.
"""
