"""Suites that hold an implementation against the spec from outside.

``engine``: the fast engine against the oracle; ``http``: any base URL.
"""
