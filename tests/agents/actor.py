"""An engine that plays a model which fixes a bug: it reads prompts and writes calls in the model's markup.

Owns the play only; which tool reads, edits and runs is the client's business.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ninfer.artifact import Artifact
from ninfer.engine.events import RequestEvent
from ninfer.engine.requests import GenerationRequest
from ninfer.engine.scripted import Play, Script, ScriptedEngine, Step
from ninfer.prompt import Tokenizer

Call = tuple[str, Mapping[str, str]]
_USER_TURN = "<|im_start|>user\n"


@dataclass(frozen=True, slots=True)
class Part:
    """What the model is to do: ``calls`` one after another once ``task`` was asked, then ``farewell``.

    A prompt that does not ask the task, or lacks one of the calls' tools, is a side question: ``aside``.
    """

    task: str
    calls: Sequence[Call]
    farewell: str
    aside: str = "Fix add"


class Actor(ScriptedEngine):
    """Plays ``part``; ``prompts`` are those that asked for the task, in order."""

    name = "actor"

    def __init__(self, artifact: Path, part: Part) -> None:
        super().__init__(Script())
        with Artifact.open(artifact) as opened:
            self._tokenizer = Tokenizer.from_resources(
                opened.resource("text", "tokenizer.json"), opened.resource("text", "tokenizer_config.json")
            )
        self._part = part
        self.prompts: list[str] = []

    def generate(
        self, request: GenerationRequest, cancelled: Callable[[], bool], queue_s: float
    ) -> Iterator[RequestEvent]:
        prompt = self._tokenizer.decode(np.frombuffer(request.tokens, "<i4").tolist())
        reply = self._reply(prompt)
        if request.initial_channel == "reasoning":
            reply = f"Let me see.</think>\n\n{reply}"
        self._script = Script(default=Play(tuple(Step(text=piece) for piece in _pieces(reply))))
        return super().generate(request, cancelled, queue_s)

    def _reply(self, prompt: str) -> str:
        part = self._part
        asked = prompt.rfind(part.task)
        declared = set(re.findall(r'"name": ?"([^"]+)"', prompt[: prompt.find(_USER_TURN)]))
        if asked < 0 or not declared.issuperset(name for name, _ in part.calls):
            return part.aside
        self.prompts.append(prompt)
        done = prompt.count("<tool_response>", asked)
        return _markup(*part.calls[done]) if done < len(part.calls) else part.farewell


def _markup(name: str, arguments: Mapping[str, str]) -> str:
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"I use {name}.\n\n<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def _pieces(text: str) -> list[str]:
    """Tokens of a few characters, so that markup arrives in cuts."""
    return [text[at : at + 7] for at in range(0, len(text), 7)]
