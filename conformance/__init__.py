"""Suites that hold an implementation against the spec from outside: ``engine`` (fast against the
oracle) and ``http`` (any base URL)."""
