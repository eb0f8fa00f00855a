"""Tool calls in a model's text, without constraints: the Qwen form, read leniently where nothing is lost.

``parser.py`` (``ToolParser``) is the whole way of one turn: ``markers.py`` publishes what is no call,
``tags.py`` finds the tags of the rest, ``value_ends.py`` where values end, ``regions.py`` what is a turn of
calls, ``values.py`` what their arguments mean. One result for any cut of the text, at linear cost. The rules
stand in ``spec/tools.yaml``.
"""

from ninfer.output.tools.parsed import ParsedCall, ParsedTurn, ToolParse, shown_markup
from ninfer.output.tools.parser import ToolParser

__all__ = ["ParsedCall", "ParsedTurn", "ToolParse", "ToolParser", "shown_markup"]
