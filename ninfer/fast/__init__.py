"""The fast engine: Numba on CPUs (Triton on GPUs comes beside it), checked against the reference token by
token.

``ops/`` one folder per operation, ``program/`` the forward passes, ``memory/`` pages and state images,
``schedule/`` admission and permits, ``engine.py`` the worker that owns all of it. Never imports
reference.
"""
