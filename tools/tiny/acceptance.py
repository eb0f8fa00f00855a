"""How many drafts of the MTP head a greedy answer would accept, position by position.

Owns the measure only; head and text model are the reference engine's. It walks the answer as speculative
decoding would: after the accepted drafts and one more token of the text model, the next round begins.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from ninfer.artifact import Artifact
from ninfer.model.config import parse_text_config
from ninfer.reference.model import ReferenceModel, text_positions
from ninfer.reference.mtp import MtpHead
from ninfer.reference.weights import load_mtp, load_text

DRAFTS = 5


class Acceptance:
    """Measures one artifact's MTP head."""

    def __init__(self, model: ReferenceModel, head: MtpHead) -> None:
        self._model, self._head = model, head

    @classmethod
    def open(cls, path: Path) -> Self | None:
        """None where the artifact has no MTP head."""
        with Artifact.open(path) as artifact:
            if "mtp" not in artifact.directory.components:
                return None
            config = parse_text_config(artifact.directory.components["text"].config)
            model = ReferenceModel(config, load_text(artifact, config, torch.float32))
            return cls(model, MtpHead(config, load_mtp(artifact, config, torch.float32), model))

    def measure(self, prompt: list[int], answer: list[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(accepted, offered) by draft position; drafts past the answer's end are not offered."""
        tokens = torch.tensor(prompt + answer)
        hidden = self._model.forward(tokens, text_positions(0, len(tokens)), self._model.new_state())
        accepted, offered = [0] * DRAFTS, [0] * DRAFTS
        cache, known, drafted = self._head.new_cache(), 0, None
        at = len(prompt)  # answer tokens before ``at + 1`` are committed when a round begins
        while at + 1 < len(tokens):
            drafted = self._forward(tokens, hidden, known, at, cache)
            known = at
            count = min(DRAFTS, len(tokens) - at - 1)
            drafts = self._head.draft(drafted, text_positions(at - 1, 1)[:, 0], count, cache)
            taken = 0
            for position, draft in enumerate(drafts):
                offered[position] += 1
                if draft != int(tokens[at + 1 + position]):
                    break
                accepted[position] += 1
                taken += 1
            at += taken + 1
        return tuple(accepted), tuple(offered)

    def _forward(self, tokens: Tensor, hidden: Tensor, begin: int, end: int, cache: object) -> Tensor:
        """Take pairs ``begin`` … ``end - 1``: hidden row i with token i + 1; the last output row."""
        rows = self._head.forward(
            tokens[begin + 1 : end + 1],
            hidden[begin:end],
            text_positions(begin, end - begin),
            cache,  # type: ignore[arg-type]
        )
        return rows[-1]
