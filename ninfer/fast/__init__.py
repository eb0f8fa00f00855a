"""The fast engine: Numba on CPUs (Triton on GPUs comes beside it), checked against the reference token by
token.

``ops/`` one folder per operation, ``program/`` the forward passes, ``memory/`` lanes, pages and state images,
``prefix/`` the prefix cache, ``schedule/`` order and pauses. ``engine.py`` is the worker that owns all of it:
``residents.py`` who has memory, ``units.py`` what is computed. Never imports reference.
"""
