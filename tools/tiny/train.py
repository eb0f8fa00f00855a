"""Trains ninfer-tiny on one GPU (or, slowly, on a CPU); stops and resumes.

    python -m tools.tiny.train --out OUT --minutes 9.8 --tokens 500M --seed 1 [--resume DIR]

Writes OUT/checkpoint.NN (the model and all that a resumed run needs) and OUT/train.log. ``--tokens``
fixes the learning-rate schedule, ``--stop-at SHARE`` ends a run early on the same schedule.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor
from torch.nn import functional

from tools.tiny import attend, checkpoint, checks, tokenizer
from tools.tiny.data.pack import START
from tools.tiny.evaluate import HeldOut, label_weights, measure, shift_labels
from tools.tiny.feed import Feed
from tools.tiny.model import Parameters, TinyModel, init_parameters
from tools.tiny.optimiser import Optimiser, Recipe
from tools.tiny.shape import TINY, Shape

_BATCHES_PER_SHARD = 4
_FINISH_S = 20.0  # kept back from --minutes for the last measures and the checkpoint


@dataclass(frozen=True, slots=True)
class Losses:
    """Mean weighted cross entropies of the text model and of the MTP head."""

    text: Tensor
    draft: Tensor


class Trainer:
    """One model in training: parameters, optimiser and the loss of a batch."""

    def __init__(
        self, shape: Shape, recipe: Recipe, seed: int, device: torch.device, settings: argparse.Namespace
    ):
        self.device, self.recipe = device, recipe
        self.parameters: Parameters = init_parameters(shape, seed, device)
        # What is frozen keeps its bits: a head trained later cannot change what the text model says.
        self.trained = {n: p for n, p in self.parameters.items() if n.startswith(settings.only)}
        for name in self.parameters.keys() - self.trained.keys():
            self.parameters[name].requires_grad_(False)
        self.optimiser = Optimiser(self.trained, recipe)
        self.draft_weight: float = settings.draft_weight
        on_gpu = device.type == "cuda"
        wrap: Callable[..., Any] = _compiled if settings.compile else _as_is
        act = torch.bfloat16 if on_gpu else torch.float32
        self.fast = TinyModel(shape, self.parameters, act=act, attention=settings.attention, wrap=wrap)
        # Plain twins: for measures (no second compilation) and for the gradient check.
        self.plain = TinyModel(shape, self.parameters, act=act)
        self.exact = TinyModel(shape, self.parameters, act=torch.float32)
        self._cross_entropy = wrap(_cross_entropy)

    def losses(self, model: TinyModel, tokens: Tensor, marks: Tensor) -> Losses:
        """Text and draft losses of one batch of rows."""
        score = self._cross_entropy if model is self.fast else _cross_entropy
        embedding = self.parameters["model.embed_tokens.weight"]
        forward = model.forward(tokens, (marks & START) > 0)
        text = score(forward.hidden, embedding, shift_labels(tokens), label_weights(marks))
        draft = score(forward.draft, embedding, shift_labels(tokens, 2), label_weights(marks, 2))
        return Losses(text, draft)

    def total(self, losses: Losses) -> Tensor:
        return losses.text + self.draft_weight * losses.draft

    def step(self, tokens: Tensor, marks: Tensor, share: float) -> tuple[Losses, Tensor]:
        """One update; returns the losses and the gradients' norm, both still on the device."""
        losses = self.losses(self.fast, tokens, marks)
        self.total(losses).backward()
        return losses, self.optimiser.step(share)

    def check(self, tokens: Tensor, marks: Tensor, log: Callable[[str], None]) -> None:
        """The compiled gradient of this batch against the plain float32 one; raises where it is wrong."""
        checks.check_gradients(
            *(
                lambda model=model: self.total(self.losses(model, tokens, marks))
                for model in (self.fast, self.plain, self.exact)
            ),
            self.trained,
            log,
        )


def _cross_entropy(hidden: Tensor, embedding: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    logits = functional.linear(hidden, embedding.to(hidden.dtype)).flatten(0, 1)
    losses = functional.cross_entropy(logits.float(), labels.flatten(), reduction="none")
    weights = weights.flatten()
    return (losses * weights).sum() / weights.sum().clamp(min=1.0)


def _compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    compiled: Callable[..., Tensor] = torch.compile(function, dynamic=False)
    return compiled


def _as_is(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return function


class Journal:
    """Log lines to a file and to standard output, each with the seconds since the start."""

    def __init__(self, file: TextIO, begin: float) -> None:
        self._file, self._begin = file, begin

    def __call__(self, message: str) -> None:
        line = f"t={time.monotonic() - self._begin:.1f} {message}"
        print(line, flush=True)
        self._file.write(line + "\n")
        self._file.flush()


@dataclass(slots=True)
class Progress:
    """Where a run stands; ``shard`` is the next one to read."""

    tokens: int = 0
    step: int = 0
    shard: int = 0


def run(settings: argparse.Namespace, shape: Shape = TINY) -> None:
    """Train as ``settings`` say until the schedule, the share or the time is through."""
    begin = time.monotonic()
    out = Path(settings.out)
    out.mkdir(parents=True, exist_ok=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    _set_up(device)
    with (out / "train.log").open("a") as file:
        log = Journal(file, begin)
        feed, progress, state = _feed(settings)
        with feed:  # workers make data while kernels compile
            log(f"device={device} torch={torch.__version__} settings={vars(settings)}")
            if settings.check:
                checks.check_delta_rule(device, log)
            settings.attention = settings.attention or attend.choose(device, log)
            log(f"attention={settings.attention} chosen")
            trainer = _trainer(settings, shape, device, state)
            held_out = HeldOut.make(tokenizer.load(), settings.held_out, settings.length)
            log(f"held_out_documents={len(held_out.skills)} rows={len(held_out.rows.tokens)}")
            _loop(settings, trainer, feed, held_out, progress, log, begin)
            _save(settings, trainer, progress)
            log(f"saved tokens={progress.tokens} step={progress.step}")


def _set_up(device: torch.device) -> None:
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    else:
        torch.set_num_threads(int(os.environ.get("TINY_THREADS", "1")))


def _feed(settings: argparse.Namespace) -> tuple[Feed, Progress, dict[str, Any]]:
    progress, state = Progress(), {}
    if settings.resume:
        tensors, saved = checkpoint.read(Path(settings.resume))
        tokenizer.check_fingerprint(saved)
        progress = Progress(saved["tokens"], saved["step"], saved["shard"])
        state = {"tensors": tensors, **saved}
        settings.seed = saved["seed"]
    feed = Feed(
        Path(settings.scratch), settings.seed, rows=settings.rows, length=settings.length,
        batches=_BATCHES_PER_SHARD, workers=settings.workers, first=progress.shard,
    )  # fmt: skip
    return feed, progress, state


def _trainer(
    settings: argparse.Namespace, shape: Shape, device: torch.device, state: dict[str, Any]
) -> Trainer:
    recipe = Recipe(settings.tokens, settings.rule, settings.rate, settings.matrix_rate, settings.warmup)
    trainer = Trainer(shape, recipe, settings.seed, device, settings)
    if state:
        checkpoint.restore(state["tensors"], trainer.parameters, trainer.optimiser)
        trainer.optimiser.steps = state["step"]
    return trainer


def _loop(
    settings: argparse.Namespace, trainer: Trainer, feed: Feed, held_out: HeldOut, progress: Progress,
    log: Journal, begin: float,
) -> None:  # fmt: skip
    end = int(trainer.recipe.total_tokens * settings.stop_at)
    batches = feed.batches(trainer.device)
    meter = _Meter(log, feed)
    next_measure = (progress.tokens // settings.measure_every + 1) * settings.measure_every
    while progress.tokens < end and time.monotonic() - begin < settings.minutes * 60 - _FINISH_S:
        tokens, marks = next(batches)
        if progress.step == 0 and settings.check:
            trainer.check(tokens, marks, log)
        share = trainer.recipe.schedule(progress.tokens + tokens.numel())
        losses, norm = trainer.step(tokens, marks, share)
        progress.tokens += tokens.numel()
        progress.step += 1
        progress.shard = feed.shard + 1
        meter.add(losses, norm, share, progress)
        if progress.tokens >= next_measure:
            next_measure += settings.measure_every
            _measure(trainer, held_out, progress, log)
            _save(settings, trainer, progress)  # a run that is cut off leaves this one behind
            meter.restart()
    _measure(trainer, held_out, progress, log)


def _measure(trainer: Trainer, held_out: HeldOut, progress: Progress, log: Journal) -> None:
    measures = measure(trainer.plain, held_out, trainer.device)
    log(f"tokens={progress.tokens} {measures.line()}")
    log(f"tokens={progress.tokens} {measures.draft_line()}")


class _Meter:
    """Averages over steps, printed about every ten seconds; reads the device only then."""

    def __init__(self, log: Journal, feed: Feed) -> None:
        self._log, self._feed = log, feed
        self.restart()

    def restart(self) -> None:
        self._begin, self._tokens, self._steps = time.monotonic(), -1, 0
        self._sums: Tensor | None = None
        self._waited = self._feed.waited_s

    def add(self, losses: Losses, norm: Tensor, share: float, progress: Progress) -> None:
        if self._tokens < 0:
            self._tokens = progress.tokens
        values = torch.stack([losses.text.detach(), losses.draft.detach(), norm])
        self._sums = values if self._sums is None else self._sums + values
        self._steps += 1
        if time.monotonic() - self._begin > 10:
            self._print(share, progress)
            self.restart()

    def _print(self, share: float, progress: Progress) -> None:
        assert self._sums is not None
        text, draft, norm = (self._sums / self._steps).tolist()  # waits for the device
        if not math.isfinite(text):
            raise FloatingPointError(f"the loss at step {progress.step} is {text}")
        speed = (progress.tokens - self._tokens) / (time.monotonic() - self._begin)
        self._log(
            f"step={progress.step} tokens={progress.tokens} loss={text:.4f} draft_loss={draft:.4f} "
            f"grad_norm={norm:.2f} rate={share:.3f} tokens_per_s={speed:.0f} "
            f"waited_s={self._feed.waited_s - self._waited:.2f}"
        )


def _save(settings: argparse.Namespace, trainer: Trainer, progress: Progress) -> None:
    state = {
        "tokens": progress.tokens,
        "step": progress.step,
        "shard": progress.shard,
        "seed": settings.seed,
        "tokenizer": tokenizer.fingerprint(),
    }
    checkpoint.write(Path(settings.out), trainer.parameters, trainer.optimiser, state)


def _count(text: str) -> int:
    units = {"K": 1_000, "M": 1_000_000, "G": 1_000_000_000}
    unit = units.get(text[-1:].upper())
    return int(float(text[:-1]) * unit) if unit else int(text)


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line; defaults are the recipe of the bundled model."""
    parser = argparse.ArgumentParser(prog="tools.tiny.train", description="Train ninfer-tiny.")
    parser.add_argument("--out", required=True)
    parser.add_argument("--resume", help="folder of checkpoint.NN to go on from")
    parser.add_argument("--minutes", type=float, default=9.8, help="wall time, start and end included")
    parser.add_argument("--tokens", type=_count, default=_count("500M"), help="length of the schedule")
    parser.add_argument("--stop-at", type=float, default=1.0, help="share of the schedule at which to stop")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rows", type=int, default=32, help="rows a step")
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--rule", choices=("muon", "adamw"), default="muon")
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--matrix-rate", type=float, default=5e-3)
    parser.add_argument("--warmup", type=_count, default=_count("10M"))
    parser.add_argument("--draft-weight", type=float, default=0.2)
    parser.add_argument("--only", default="", help="train only parameters whose names begin so (mtp.)")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 3))
    parser.add_argument("--scratch", default="/tmp/ninfer-tiny-shards")
    parser.add_argument("--held-out", type=int, default=32, help="held-out conversations a skill")
    parser.add_argument("--measure-every", type=_count, help="default: every twentieth of the schedule")
    parser.add_argument(
        "--attention", choices=tuple(attend.CANDIDATES), help="default: the fastest that is right"
    )
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=torch.cuda.is_available())
    parser.add_argument("--check", action=argparse.BooleanOptionalAction, default=True)
    settings = parser.parse_args(argv)
    settings.measure_every = settings.measure_every or settings.tokens // 20
    return settings


if __name__ == "__main__":
    run(arguments())
