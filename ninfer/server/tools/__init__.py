"""Tools of a request, whatever its protocol: what may be declared, called and told of earlier calls.

``declarations.py`` has names and definitions, ``choice.py`` what a choice permits, ``history.py`` the pairing
of calls and results. Adapters read their own members and hand them here; calls are read out of answers in
``ninfer/output/tools``.
"""

from ninfer.server.tools.choice import ChoiceKind, Names, ToolChoice, ToolFields, permitted
from ninfer.server.tools.declarations import Declarations, custom_definition, tool_name
from ninfer.server.tools.history import HistoryEntry, call_arguments, paired

__all__ = [
    "ChoiceKind",
    "Declarations",
    "HistoryEntry",
    "Names",
    "ToolChoice",
    "ToolFields",
    "call_arguments",
    "custom_definition",
    "paired",
    "permitted",
    "tool_name",
]
