"""Suites that hold an implementation against the spec from outside: ``http`` (any base URL)."""
