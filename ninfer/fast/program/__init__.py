"""The forward passes of the fast engine.

``table.py`` numbers the operations of a round, ``round.py`` runs a table with a team of threads, ``text.py``
builds the tables of a model, ``prefill.py`` computes chunks with the platform's GEMM, ``workspace.py`` and
``weights.py`` hold what they work on.
"""
