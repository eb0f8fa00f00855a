"""Tests of ``ninfer/output``."""
