"""The forward passes on a GPU: the same program as on CPUs over Triton kernels, one upload and one download a
round.

``weights.py`` puts matrices on the device in the kernels' order, ``parameters.py`` joins them to a model,
``buffers.py`` is a round's workspace, ``forward.py`` and ``chunk.py`` launch rounds and prefill chunks,
``control.py`` uploads what changes, ``graphs.py`` replays, ``memory.py`` holds pages and states,
``program.py`` is what the worker sees.
"""
