"""The prefix cache: what of earlier sequences a request need not compute again.

``tree.py`` holds content-addressed blocks of 64 tokens, ``snapshots.py`` whole state images where a request
can resume, ``index.py`` looks up, publishes and evicts, ``taps.py`` plans where a prompt leaves images,
``cost.py`` ranks, ``lineage.py`` follows one sequence through all of it. Memory is injected: nothing here
knows a kernel, a program or a clock.
"""
