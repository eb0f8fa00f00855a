"""Committed tokens to published text, for any engine.

``session.py`` (``OutputSession``) is the whole way of one answer: bytes to characters, ``thinking.py`` the
split into reasoning and content, ``stops.py`` the stop strings. The result never depends on how the tokens
were cut into pushes. The rules stand in ``spec/output.yaml``.
"""

from ninfer.output.session import OutputSession, OutputStep

__all__ = ["OutputSession", "OutputStep"]
