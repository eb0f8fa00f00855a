"""Tests of ``ninfer/prompt``."""
