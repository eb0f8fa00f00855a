"""Copies of a request's own text: an index of positions by hashed suffixes, and what a match licenses.

``kernels.py`` hashes and finds, ``index.py`` owns the memory and the rules of a proposal.
"""
