"""Protocol-neutral conversations to prepared prompts: chat template, tokenizer, positions.

``conversation.py`` and ``prepared.py`` are the values; ``prepare.py`` (``PromptPreparer``) the way between.
``template.py`` runs Jinja with the origin of every character kept (``provenance.py``), ``tokenizer.py``
encodes, ``replay.py`` and ``history.py`` make follow-up turns cheap. ``templates/`` holds our own template.
"""

from ninfer.prompt.conversation import (
    Conversation,
    MediaPart,
    Message,
    TemplateOptions,
    TextPart,
    Tool,
    ToolCall,
)
from ninfer.prompt.prepare import PromptPreparer
from ninfer.prompt.prepared import PreparedPrompt
from ninfer.prompt.template import ChatTemplate
from ninfer.prompt.tokenizer import Tokenizer

__all__ = [
    "ChatTemplate",
    "Conversation",
    "MediaPart",
    "Message",
    "PreparedPrompt",
    "PromptPreparer",
    "TemplateOptions",
    "TextPart",
    "Tokenizer",
    "Tool",
    "ToolCall",
]
