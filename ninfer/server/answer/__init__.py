"""What the three generation protocols share: one request's way through the server, one reader of its answer.

``exchange.py`` takes a body to a running generation, ``reader.py`` turns the engine's events into the
neutral pieces of ``pieces.py``, which ``whole.py`` puts together and ``streaming.py`` writes as server-sent
events in an adapter's frames. Adapters (``chat/``, ``responses/``, ``messages/``) own wire shapes only: they
read a body into an ``Ask`` and build JSON from pieces.
"""
