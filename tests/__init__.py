"""The tests, one file per module of ``ninfer/``."""
