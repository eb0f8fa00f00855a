"""The first bundled model: minutes on one CPU core, so that the first answer comes from trained weights.

    python -m tools.tiny.first --minutes 10

Greetings, a few capitals, one-digit sums and one-word copies, nothing else. The real recipe (``train.py``)
replaces its artifact and removes this file.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from ninfer import bundled
from tools.tiny import tokenizer, train
from tools.tiny.data import words
from tools.tiny.data.documents import Document
from tools.tiny.data.exchange import Exchange, Thought
from tools.tiny.data.pack import pack, tokenise
from tools.tiny.data.skills import chat
from tools.tiny.export import metadata_of, write_artifact, write_directory
from tools.tiny.optimiser import Recipe
from tools.tiny.shape import Shape

SHAPE = Shape(hidden=128, mlp=256, layers=4, query_heads=2, kv_heads=1, gdn_heads=2)
_WORDS = words.NOUNS[:60] + words.COLOURS
_CAPITALS = [fact for fact in chat._facts() if fact.family == "capital"][::2]


def _exchange(rng: random.Random) -> Exchange:
    kind = rng.random()
    if kind < 0.2:
        return chat.small_talk(rng, "train")
    if kind < 0.45:
        fact = rng.choice(_CAPITALS)
        return Exchange("fact", rng.choice(fact.questions[:3]), fact.sentence, Thought(fact.sentence))
    if kind < 0.7:
        a, b = rng.randrange(10), rng.randrange(10)
        user = rng.choice(("What is {a} + {b}?", "{a} + {b}", "Add {a} and {b}.")).format(a=a, b=b)
        return Exchange("sum", user, f"{a} + {b} = {a + b}", Thought(f"{a} + {b} = {a + b}."))
    text = " ".join(rng.choice(_WORDS) for _ in range(rng.randint(1, 3)))
    return Exchange(
        "copy", rng.choice(("Say: {t}", "Repeat: {t}")).format(t=text), text, Thought("I must copy.")
    )


def _documents(rust: tokenizer.Tokenizer, rng: random.Random) -> Iterator[tuple[list[int], list[int]]]:
    while True:
        drawn = [
            Document(
                (_exchange(rng),),
                rng.choice((None, "xhigh")),
                rng.choice(("", "", "You are a helpful assistant.")),
            )
            for _ in range(64)
        ]
        yield from tokenise(rust, drawn)


def main() -> None:
    parser = argparse.ArgumentParser(prog="tools.tiny.first")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--artifact", type=Path, default=bundled.path())
    settings = parser.parse_args()
    torch.set_num_threads(1)
    trainer, tokens = _train(settings)
    directory = write_directory(Path("build") / "ninfer-first", trainer.parameters, SHAPE)
    print(write_artifact(directory, settings.artifact, metadata_of(f"{tokens} tokens on a CPU")))


def _train(settings: argparse.Namespace) -> tuple[train.Trainer, int]:
    recipe = Recipe(1, rate=4e-3, matrix_rate=8e-3)
    options = argparse.Namespace(draft_weight=0.2, attention="dense", compile=False)
    trainer = train.Trainer(SHAPE, recipe, 1, torch.device("cpu"), options)
    stream = _documents(tokenizer.load(), random.Random(1))
    begin, tokens, step, average = time.monotonic(), 0, 0, 0.0
    while (spent := (time.monotonic() - begin) / (60 * settings.minutes)) < 1:
        rows = pack(stream, settings.rows, settings.length)
        ids, marks = torch.from_numpy(rows.tokens.astype("int64")), torch.from_numpy(rows.marks)
        losses, _ = trainer.step(ids, marks, min(1.0, spent / 0.02, (1 - spent) / 0.5))
        tokens, step = tokens + ids.numel(), step + 1
        average += (losses.text.item() - average) / min(step, 50)
        if step % 25 == 0:
            print(f"spent={spent:.2f} step={step} tokens={tokens} loss={average:.3f}", flush=True)
    return trainer, tokens


if __name__ == "__main__":
    main()
