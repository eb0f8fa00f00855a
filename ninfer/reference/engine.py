"""The reference engine: one request at a time, from prompt ids to published text.

Owns the order of one answer (prefill, then draw, commit, publish and decode until it ends) and its times.
What ends an answer stands in ``engine/turn.py``; mathematics in ``model.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ninfer.artifact import Artifact
from ninfer.engine.events import Delta, Finished, Progress, RequestEvent, Started, Usage
from ninfer.engine.requests import GenerationRequest
from ninfer.engine.settings import DraftSettings, EngineSettings
from ninfer.engine.statistics import EngineResources
from ninfer.engine.turn import Turn
from ninfer.errors import ArtifactError, RequestError
from ninfer.model.config import TextConfig, check_mtp_config, parse_text_config
from ninfer.prompt.tokenizer import Tokenizer
from ninfer.reference.drafting import Drafting
from ninfer.reference.model import ReferenceModel
from ninfer.reference.mtp import MtpHead
from ninfer.reference.state import State
from ninfer.reference.weights import LoadListener, load_mtp, load_text
from ninfer.sampling.distribution import Logits

# With fewer weights than this, products are too small to share: threads that wait for each other cost more
# than they save (measured: 7.5 M weights on two busy cores, 99 tokens/s with one thread, 9 with two).
SHARED_FROM_WEIGHTS = 100_000_000
# Rows of one forward pass; a multiple of the chunk of 64, so that a state does not depend on the pieces.
PREFILL_PIECE = 512


def open_engine(settings: EngineSettings, listener: LoadListener | None = None) -> ReferenceEngine:
    """Load ``settings.artifact`` and stand ready to answer.

    ``listener`` hears weight elements loaded and in all. Errors: ``ArtifactError`` naming what is wrong.
    """
    with Artifact.open(Path(settings.artifact)) as artifact:
        config = parse_text_config(artifact.directory.components["text"].config)
        tokenizer = Tokenizer.from_resources(
            artifact.resource("text", "tokenizer.json"), artifact.resource("text", "tokenizer_config.json")
        )
        dtype = torch.float64 if settings.float64 else torch.float32
        weights = load_text(artifact, config, dtype, listener)
        mtp = None if settings.draft is None else _load_drafter(artifact, config, dtype)
    if sum(weight.numel() for weight in weights.values()) < SHARED_FROM_WEIGHTS:
        torch.set_num_threads(1)
    vocabulary = min(tokenizer.vocabulary_size, config.vocab)
    model = ReferenceModel(config, weights)
    return ReferenceEngine(
        model,
        tokenizer.token_bytes,
        vocabulary,
        settings.max_context,
        weight_bytes=sum(weight.numel() * weight.element_size() for weight in weights.values()),
        head=None if mtp is None else MtpHead(config, mtp, model),
        draft=settings.draft,
    )


def _load_drafter(artifact: Artifact, config: TextConfig, dtype: torch.dtype) -> dict[str, Tensor]:
    """Errors: ``ArtifactError`` where the artifact has no head to draft with."""
    component = artifact.directory.components.get("mtp")
    if component is None:
        raise ArtifactError(
            "components.mtp", "missing: the artifact holds no MTP head, which --spec mtp drafts with"
        )
    check_mtp_config(component.config, config)
    return load_mtp(artifact, config, dtype)


class ReferenceEngine:
    """Implements ``SerialEngine`` over a ``ReferenceModel``.

    ``token_bytes`` gives an id's bytes; ids from ``vocabulary`` on are never drawn; ``max_context`` bounds
    prompt plus output; ``clock`` is monotonic, in seconds. With ``head`` and ``draft`` the usage says what
    drafts would have come to.
    """

    name = "reference"

    def __init__(
        self,
        model: ReferenceModel,
        token_bytes: Callable[[int], bytes],
        vocabulary: int,
        max_context: int,
        clock: Callable[[], float] = time.perf_counter,
        weight_bytes: int = 0,
        head: MtpHead | None = None,
        draft: DraftSettings | None = None,
    ) -> None:
        self.resources = EngineResources(
            kernels="torch", threads=torch.get_num_threads(), kv_format="float32", weight_bytes=weight_bytes
        )
        self._model = model
        self._token_bytes = token_bytes
        self._vocabulary = vocabulary
        self._max_context = max_context
        self._clock = clock
        self._head, self._draft = head, draft

    def generate(
        self, request: GenerationRequest, cancelled: Callable[[], bool], queue_s: float
    ) -> Iterator[RequestEvent]:
        """``Started``, ``Progress`` after every piece, ``Delta`` as text becomes whole, one ``Finished``.

        Errors: ``RequestError`` for a prompt that is empty, too long or has ids outside the model;
        ``EngineError`` when the model returns something that is not a number.
        """
        tokens, positions = self._prompt(request)
        room = min(request.max_tokens, self._max_context - len(tokens))
        turn = Turn(request, self._token_bytes, len(tokens), room, self._vocabulary)
        began = self._clock()
        turn.begin(began)
        yield Started(request.id, prompt_tokens=len(tokens), cached_tokens=0, queue_s=queue_s)
        state, drafting = self._model.new_state(), None
        if self._head is not None and self._draft is not None:
            drafting = Drafting(self._head, self._draft, request.sampling, self._vocabulary)
        hidden = yield from self._prefill(request.id, tokens, positions, state, cancelled, drafting)
        # Rotary positions go on from the largest one: media spans fewer positions than tokens.
        shift = int(positions.max()) + 1 - len(tokens)
        prefilled = self._clock()
        try:
            yield from self._decode(turn, hidden, state, shift, cancelled, drafting)
        except Exception:  # what was drawn reaches the client, whatever fails
            yield from turn.close()
            raise
        yield from turn.close()
        first = turn.first if turn.committed else prefilled
        assert turn.reason is not None
        usage = Usage(
            prompt_tokens=len(tokens),
            cached_tokens=0,
            completion_tokens=turn.committed,
            reasoning_tokens=turn.reasoning_tokens,
            prefill_s=first - began,
            decode_s=turn.last - turn.first,
            time_to_first_token_s=queue_s + first - began,
            draft=None if drafting is None else drafting.tally.usage,
        )
        ends = (
            turn.stop_string,
            turn.stop_token,
            None,
            turn.in_thinking,
            turn.control_tokens,
            turn.model_thinking_tokens,
        )
        yield Finished(request.id, turn.reason, usage, *ends)

    def _prompt(self, request: GenerationRequest) -> tuple[Tensor, Tensor]:
        """The request's tokens [T] and positions [3, T], checked."""
        tokens = np.frombuffer(request.tokens, dtype="<i4")
        count, rows = len(tokens), self._model.config.vocab
        if count == 0:
            raise RequestError("invalid_prompt", "the prompt has no tokens")
        if count > self._max_context:
            raise RequestError(
                "context_length_exceeded",
                f"the prompt has {count} tokens, more than the context of {self._max_context}",
            )
        if tokens.min() < 0 or tokens.max() >= rows:
            raise RequestError("invalid_prompt", f"a prompt token is outside 0..{rows - 1}")
        axes = np.frombuffer(request.positions, dtype="<i4").reshape(3, -1)
        positions = axes if axes.size else np.tile(np.arange(count), (3, 1))
        if positions.shape[1] != count:
            raise RequestError("invalid_prompt", f"{positions.shape[1]} positions for {count} tokens")
        return torch.from_numpy(tokens.astype(np.int64)), torch.from_numpy(positions.astype(np.int64))

    def _prefill(
        self,
        request_id: str,
        tokens: Tensor,
        positions: Tensor,
        state: State,
        cancelled: Callable[[], bool],
        drafting: Drafting | None,
    ) -> Generator[RequestEvent, None, Tensor | None]:
        """Take the prompt into ``state`` piece by piece; the last hidden row, or None when cancelled."""
        began, hidden = self._clock(), None
        for start in range(0, len(tokens), PREFILL_PIECE):
            if cancelled():
                return None
            piece = slice(start, start + PREFILL_PIECE)
            rows = self._model.forward(tokens[piece], positions[:, piece], state)
            if drafting is not None:
                drafting.took(tokens[piece], positions[:, piece], rows)
            hidden = rows[-1:]
            yield Progress(request_id, len(tokens), 0, state.length, self._clock() - began)
        return None if cancelled() else hidden

    def _decode(
        self,
        turn: Turn,
        hidden: Tensor | None,
        state: State,
        shift: int,
        cancelled: Callable[[], bool],
        drafting: Drafting | None,
    ) -> Iterator[Delta]:
        """Token by token from the prompt's last row (None: it was cancelled) to the end of the answer."""
        if hidden is None:
            turn.cancel()
        while hidden is not None and turn.reason is None:
            token = turn.draw(self._logits(hidden)) if turn.forced is None else turn.forced
            yield from turn.commit(token, self._clock())
            if drafting is not None:
                drafting.committed(token, state.length, turn)
            if turn.reason is None and cancelled():
                turn.cancel()
            if turn.reason is None:
                position = torch.full((3, 1), state.length + shift)
                hidden = self._model.forward(torch.tensor([token]), position, state)
                if drafting is not None:
                    drafting.took(torch.tensor([token]), position, hidden)

    def _logits(self, hidden: Tensor) -> Logits:
        """The logits [V] of the last row as the draw takes them."""
        logits: Logits = self._model.logits(hidden)[-1].to(torch.float32).numpy()
        return logits
